/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork() with registered memory. The child must get its own copy of pages that
 * are shared here, as they were at the moment of the fork; nothing that the child
 * does before it has the copy may reach the parent; and no write of another thread
 * of the parent may be lost. Between our prepare handler and the fork itself, libc
 * and other handlers run in this thread and may write to these pages too (malloc's
 * locks, FILE locks), and again in the child before our child handler.
 *
 *   prepare   hold back all writers of the shared ranges; copy them into a spare
 *             (private memory); put a MAP_PRIVATE mapping of the same file in their
 *             place, its writers held back from the start. A monitor thread lets
 *             this thread's own writes through (and those of a thread that
 *             it waits for).
 *   (fork)    parent and child have private mappings: whatever they write now
 *             goes to copies of single pages
 *   child     puts such pages into its copy of the spare, and moves the spare
 *             to where the memory was
 *   parent    puts the bytes that changed since the spare was filled into the
 *             shared file, maps it again, lets the writers go, drops the spare
 *
 * Reading is never stopped, and what the daemon writes meanwhile is kept. Other
 * threads may unmap memory at any time, so mappings are looked up again right
 * before each change. Ranges that the application marked MADV_DONTFORK are not changed. With one
 * thread there are no writers to hold back. vfork, posix_spawn and system run no
 * handlers, so they have no extra cost.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "anonymous.h"
#include "halt.h"
#include "memory.h"
#include "monitor.h"
#include "pages.h"
#include "tasks.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#define PAGEMAP_SHARED_FILE (1ull << 61) /* a page of the file, not our private copy of one */
#define PAGEMAP_EXISTS (3ull << 62)

struct piece {
	uint64_t start, end, offset; /* of the mapping */
	uint64_t spare;              /* where its copy is */
};

/* All of it is this thread's, from prepare to parent or child, under memory_lock. */
static struct {
	bool active;
	_Atomic bool filled; /* the spare holds the copy */
	sigmask mask;
	struct piece *piece;
	size_t n, room;
	uint64_t spare, spare_size;
	uint64_t *released; /* behind the spare, a bit for each page: it may be a private copy */
	int pagemap;
	struct guard guard;
	bool reading; /* memory_maps is open */
	bool halted; /* the other threads are stopped, since nothing can hold them back */
} fork_state = {.guard = {.fd = -1}};

static unsigned char *in_spare(const struct piece *p, uint64_t page)
{
	return (unsigned char *)(uintptr_t)(p->spare + (page - p->start));
}

/*
 * Copies the page to the spare before it is copied on write, so that the daemon's writes so far do
 * not count as changes of ours. Only the first time: afterwards the page has changes of ours.
 */
static void refresh(uint64_t page)
{
	for (size_t i = 0; fork_state.filled && i < fork_state.n; i++) {
		const struct piece *p = &fork_state.piece[i];
		if (page < p->start || page >= p->end)
			continue;
		uint64_t bit = (p->spare - fork_state.spare + (page - p->start)) / PAGE;
		if (!(fork_state.released[bit / 64] >> (bit % 64) & 1))
			memcpy(in_spare(p, page), (const void *)(uintptr_t)page, PAGE);
		fork_state.released[bit / 64] |= 1ull << (bit % 64);
	}
}

/* ---- prepare ---- */

static bool add_piece(uint64_t start, uint64_t end, const struct vma *v)
{
	if (fork_state.n == fork_state.room) {
		size_t room = fork_state.room ? 2 * fork_state.room : 128;
		size_t old = fork_state.room * sizeof(struct piece);
		long r = old ? sys(SYS_mremap, fork_state.piece, old, room * sizeof(struct piece),
				   MREMAP_MAYMOVE)
			     : sys(SYS_mmap, NULL, room * sizeof(struct piece), PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (failed(r))
			return false;
		fork_state.piece = (struct piece *)r;
		fork_state.room = room;
	}
	fork_state.piece[fork_state.n++] = (struct piece){
		.start = start, .end = end, .offset = v->offset + (start - v->start)};
	fork_state.spare_size += end - start;
	return true;
}

/* Everything of ours that the child inherits. */
static bool collect(const struct vma *v, void *arg)
{
	uint64_t at = v->start;
	struct range skip;
	bool ok = true;
	while (ok && advice_dontfork(at, v->end, &skip)) {
		if (skip.start > at)
			ok = add_piece(at, skip.start, v);
		at = skip.end;
	}
	if (ok && at < v->end)
		ok = add_piece(at, v->end, v);
	*(bool *)arg = ok;
	return ok;
}

static uint64_t spare_total(void)
{
	return fork_state.spare_size + fork_state.spare_size / PAGE / 8 + PAGE;
}

static bool make_spare(void)
{
	long r = sys(SYS_mmap, NULL, spare_total(), PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (failed(r))
		return false;
	fork_state.spare = (uint64_t)r;
	fork_state.released = (uint64_t *)(uintptr_t)(fork_state.spare + fork_state.spare_size);
	uint64_t at = fork_state.spare;
	for (size_t i = 0; i < fork_state.n; i++) {
		fork_state.piece[i].spare = at;
		at += fork_state.piece[i].end - fork_state.piece[i].start;
	}
	return true;
}

static bool map_run(uint64_t offset, uint64_t n, uint64_t at)
{
	(void)offset;
	sys(SYS_madvise, at, n, MADV_POPULATE_READ);
	return true;
}

static bool populate_run(uint64_t offset, uint64_t n, uint64_t at)
{
	(void)offset;
	sys(SYS_madvise, at, n, MADV_POPULATE_WRITE);
	return true;
}

/* Calls f for every part of a piece that is still mapped as we left it. */
static void each_part(enum vma_kind kind, void (*f)(const struct piece *, const struct vma *))
{
	struct vma v;
	if (fork_state.n)
		maps_rewind(&memory_maps);
	for (size_t i = 0; i < fork_state.n; i++) {
		const struct piece *p = &fork_state.piece[i];
		for (uint64_t at = p->start; at < p->end && maps_find(&memory_maps, at, &v); at = v.end) {
			uint64_t end = v.end;
			if (v.start < at) {
				v.offset += at - v.start;
				v.start = at;
			}
			if (v.end > p->end)
				v.end = p->end;
			if (v.start < v.end && v.kind == kind && v.offset == p->offset + (v.start - p->start))
				f(p, &v);
			v.end = end;
		}
	}
}

static long map(uint64_t at, const struct vma *v, int flags)
{
	return sys(SYS_mmap, at, v->end - v->start, v->prot, flags, atomic_load(&process.memory), v->offset);
}

/*
 * The private mapping is made elsewhere, protected, its pages looked up (so that a
 * writer is held before its page is copied, not after), and moved into place whole:
 * there is no moment at which a write could slip through.
 */
static bool move_private(const struct vma *v)
{
	uint64_t n = v->end - v->start;
	long at = map(0, v, MAP_PRIVATE);
	if (failed(at))
		return false;
	if (guard_hold(&fork_state.guard, (uint64_t)at, (uint64_t)at + n)) {
		pages_each(v->offset, n, map_run, (uint64_t)at);
		if (!failed(sys(SYS_mremap, at, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, v->start)))
			return true;
	}
	sys(SYS_munmap, at, n);
	return false;
}

static void make_private(const struct piece *p, const struct vma *v)
{
	(void)p;
	/* A halted monitor cannot read the event of mremap. Halted threads do not write, either. */
	if (fork_state.guard.fd >= 0 && fork_state.guard.moves && !fork_state.halted && move_private(v))
		return;
	map(v->start, v, MAP_PRIVATE | MAP_FIXED);
	if (fork_state.guard.fd < 0)
		return;
	pages_each(v->offset, v->end - v->start, map_run, v->start);
	guard_hold(&fork_state.guard, v->start, v->end);
}

static void make_shared(const struct piece *p, const struct vma *v)
{
	(void)p;
	map(v->start, v, MAP_SHARED | MAP_FIXED);
	seams_again(v->start, v->end);
	pages_each(v->offset, v->end - v->start, v->prot & PROT_WRITE ? populate_run : map_run, v->start);
}

static void hold(const struct piece *p, const struct vma *v)
{
	(void)p;
	guard_hold(&fork_state.guard, v->start, v->end);
}

static void hold_all(enum vma_kind kind)
{
	if (fork_state.guard.fd >= 0)
		each_part(kind, hold);
}

/* ---- pages that were written while the mappings were private ---- */

/* Calls f for each page of v of which this process has a private copy. */
static void each_copy(const struct piece *p, const struct vma *v, void (*f)(const struct piece *, uint64_t))
{
	static uint64_t bits[4096];
	if (!(v->prot & PROT_READ))
		return;
	for (uint64_t at = v->start; at < v->end;) {
		size_t want = (v->end - at) / PAGE;
		if (want > sizeof bits / 8)
			want = sizeof bits / 8;
		if (sys(SYS_pread64, fork_state.pagemap, bits, want * 8, at / PAGE * 8) != (long)(want * 8))
			for (size_t i = 0; i < want; i++)
				bits[i] = PAGEMAP_EXISTS; /* unknown: look at all of them */
		for (size_t i = 0; i < want; i++, at += PAGE)
			if ((bits[i] & PAGEMAP_EXISTS) && !(bits[i] & PAGEMAP_SHARED_FILE))
				f(p, at);
	}
}

/* The bytes that changed since the spare was filled go to the shared file, and into the spare. */
static void merge_page(const struct piece *p, uint64_t page)
{
	const unsigned char *now = (const unsigned char *)(uintptr_t)page;
	unsigned char *before = in_spare(p, page);
	for (size_t i = 0, j; i < PAGE; i = j) {
		bool changed = now[i] != before[i];
		for (j = i + 1; j < PAGE && (now[j] != before[j]) == changed; j++)
			;
		if (changed) {
			pages_write((uint64_t)(uintptr_t)(now + i), j - i, p->offset + (page - p->start) + i);
			memcpy(before + i, now + i, j - i);
		}
	}
}

static void keep_page(const struct piece *p, uint64_t page)
{
	memcpy(in_spare(p, page), (const void *)(uintptr_t)page, PAGE);
}

static void merge(const struct piece *p, const struct vma *v)
{
	each_copy(p, v, merge_page);
}

static void with_pagemap(enum vma_kind kind, void (*f)(const struct piece *, const struct vma *))
{
	fork_state.pagemap = maps_file("pagemap");
	each_part(kind, f);
	if (fork_state.pagemap >= 0)
		sys(SYS_close, fork_state.pagemap);
}

/* In the child: the copy takes the place of the memory. */
static void take_over(const struct piece *p, const struct vma *v)
{
	uint64_t n = v->end - v->start;
	each_copy(p, v, keep_page);
	sys(SYS_mremap, in_spare(p, v->start), n, n, MREMAP_MAYMOVE | MREMAP_FIXED, v->start);
	if (v->prot != (PROT_READ | PROT_WRITE))
		sys(SYS_mprotect, v->start, n, v->prot);
	advice_wipe(v->start, v->end);
}

/* ---- the three handlers ---- */

static void drop_spare(void)
{
	if (fork_state.spare)
		sys(SYS_munmap, fork_state.spare, spare_total());
	fork_state.spare = 0;
}

/*
 * Mappings change while threads are halted, if they can be: a thread that waits on a futex of the
 * old mapping looks for it in the new one when it goes on. Without a guard also because what is
 * written between a copy and the change of the mapping would count as old.
 */
static void halt(void)
{
	fork_state.halted = fork_state.n && tasks_count() != 1 && halt_begin();
}

static void thaw(void)
{
	if (fork_state.halted)
		halt_end();
	fork_state.halted = false;
}

/* Copies of everything in the spare, writers held back; false: as if nothing happened. */
static bool snapshot(void)
{
	bool complete = true;
	/* Kept open: the way back must not fail for want of a descriptor. */
	fork_state.reading = maps_open(&memory_maps);
	if (!fork_state.reading || !own_mappings(collect, &complete)) {
		complain("cannot read this process's mappings, perhaps no descriptor is free; "
			 "a fork child shares registered memory");
		fork_state.n = 0;
		return false;
	}
	if (!complete || fork_state.n == 0 || !make_spare())
		return false;
	if (tasks_count() != 1 && guard_open(&fork_state.guard, true)) {
		if (!fork_state.guard.shmem || !monitor_start(&fork_state.guard, refresh))
			guard_close(&fork_state.guard);
	}
	hold_all(VMA_OWN);
	halt();
	for (size_t i = 0; i < fork_state.n; i++)
		if (!pages_each(fork_state.piece[i].offset, fork_state.piece[i].end - fork_state.piece[i].start,
			      pages_read, fork_state.piece[i].spare))
			return false;
	atomic_store(&fork_state.filled, true);
	return true;
}

static void release(void)
{
	for (size_t i = 0; fork_state.guard.fd >= 0 && i < fork_state.n; i++)
		guard_wake(&fork_state.guard, fork_state.piece[i].start, fork_state.piece[i].end);
	if (fork_state.guard.fd >= 0)
		monitor_stop();
	guard_close(&fork_state.guard);
	drop_spare();
}

static void read_no_more(void)
{
	if (fork_state.reading)
		maps_close(&memory_maps);
	fork_state.reading = false;
}

static void prepare(void)
{
	if (!memory_swapped() || other_process())
		return;
	fork_state.mask = signals_block();
	pthread_mutex_lock(&memory_lock);
	atomic_store(&memory_forker, (int)sys(SYS_gettid));
	fork_state.active = true;
	atomic_store(&fork_state.filled, false);
	fork_state.n = 0;
	fork_state.spare_size = 0;
	swap_begin();
	if (!snapshot()) {
		thaw();
		if (fork_state.n)
			complain("no memory to copy %lu MiB of registered memory for a fork child; "
				 "the child shares it", (unsigned long)(fork_state.spare_size >> 20));
		release();
		read_no_more();
		fork_state.n = 0;
		return;
	}
	each_part(VMA_OWN, make_private);
	thaw();
	monitor_lenient(true);
}

static void finish(void)
{
	sigmask mask = fork_state.mask;
	fork_state.active = false;
	atomic_store(&memory_forker, 0);
	pthread_mutex_unlock(&memory_lock);
	signals_restore(mask);
}

static void parent(void)
{
	if (!fork_state.active || atomic_load(&memory_forker) != (int)sys(SYS_gettid))
		return;
	monitor_lenient(false);
	hold_all(VMA_BORROWED); /* also those pages that the monitor let go */
	halt();
	with_pagemap(VMA_BORROWED, merge);
	each_part(VMA_BORROWED, make_shared);
	thaw();
	read_no_more();
	release();
	swap_end();
	finish();
}

static void child(void)
{
	bool active = fork_state.active;
	if (active) {
		read_no_more(); /* that was the parent's */
		if (fork_state.n && maps_open(&memory_maps)) {
			with_pagemap(VMA_BORROWED, take_over);
			maps_close(&memory_maps);
		}
		if (fork_state.guard.fd >= 0) {
			sys(SYS_close, fork_state.guard.fd);
			monitor_child();
			fork_state.guard.fd = -1;
		}
		fork_state.active = false;
		drop_spare(); /* what is left of it */
		atomic_store(&memory_forker, 0);
	}
	memory_child();
	anonymous_child();
	files_child();
	wire_child();
	if (active)
		signals_restore(fork_state.mask);
}

/* pthread_atfork by its real name: libc exports only this one. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern void *__dso_handle;

__attribute__((constructor)) static void watch_fork(void)
{
	if (__register_atfork)
		__register_atfork(prepare, parent, child, &__dso_handle);
}
