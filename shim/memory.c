/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registration: the pages under a buffer become pages of the process's memfd, at
 * the same address and at a file offset equal to that address, so that the daemon
 * finds them by address.
 *
 *   private memory     stop other threads > replace.c > let them go on
 *   ours already       nothing to do
 *   anything else      FOREIGN: the daemon copies through /proc/PID/mem
 *
 * glibc frees, reuses and moves memory without our seeing it, so nothing is
 * remembered as "already shared": the mappings are read every time. Any failure
 * leaves the memory as it was and the extent FOREIGN, with the reason.
 *
 * How many regions cover a page is counted (regions.c). When the last one is gone, the
 * memory becomes private again (reclaim.c).
 *
 * While threads are stopped this thread must not write to application memory,
 * must not allocate and must not take a lock that one of them may hold: it uses
 * bare system calls and static storage only.
 */
#include "memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "hold.h"
#include "pages.h"
#include "reclaim.h"
#include "regions.h"
#include "replace.h"
#include "shared.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define POPULATE_MAX (2ul << 30)    /* fault in at most this much at one registration */
#ifndef OWN_MAX
#define OWN_MAX 8192 /* stretches of shared memory: two mappings each, of the 65530 that there may be */
#endif

pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
struct ranges swapped;
struct maps memory_maps;
struct ranges memory_foreign;
bool memory_moved;
_Atomic int memory_forker;
static _Atomic bool any_swapped;
static _Atomic unsigned swaps; /* odd: writers may be held back now */

static int memfd(void)
{
	return atomic_load(&process.memory);
}

bool memory_swapped(void)
{
	return atomic_load(&any_swapped);
}

void memory_note(bool any)
{
	atomic_store(&any_swapped, any);
}

void swap_begin(void)
{
	atomic_fetch_add(&swaps, 1);
}

void swap_end(void)
{
	atomic_fetch_add(&swaps, 1);
}

/* Each thread repeats a failed call once for every replacement it may have met. */
bool memory_retry(void)
{
	static __thread unsigned seen __attribute__((tls_model("initial-exec")));
	unsigned now = atomic_load(&swaps);
	while (now % 2) {
		sys(SYS_sched_yield);
		now = atomic_load(&swaps);
	}
	bool again = now != seen;
	seen = now;
	return again;
}

static uint64_t page_floor(uint64_t address)
{
	return address & ~(PAGE - 1);
}

static uint64_t page_ceil(uint64_t address)
{
	return page_floor(address + PAGE - 1);
}

/* ---- one registration ---- */

struct registration {
	struct hold hold;
	struct ranges fresh; /* replaced since the hold began, and not yet populated */
	bool replaced;       /* anything */
	uint64_t populated;
	struct shared *shared;
	struct vrdma_extent *out;
	uint32_t n, room;
	uint64_t start, end; /* exact, not rounded to pages */
};
static struct registration registration; /* under memory_lock */

bool own_mappings(bool (*f)(const struct vma *, void *), void *arg)
{
	static struct maps m;
	struct vma v;
	if (!maps_open(&m))
		return false;
	for (uint64_t at = 0; maps_find(&m, at, &v); at = v.end)
		if (v.kind == VMA_OWN && !f(&v, arg))
			break;
	maps_close(&m);
	return !m.broken;
}

/*
 * Removes pages that an earlier mapping at these addresses has left in the file. They are
 * usually unused. But mremap can have moved the old mapping elsewhere, and then that one
 * becomes private first.
 */
static bool make_fresh(struct registration *g, uint64_t start, uint64_t end)
{
	struct range r;
	if (ranges_find(&swapped, start, end, &r) && !reclaim_aliases(&g->hold, start, end))
		return false;
	pages_punch(start, end);
	return true;
}

/* Whether the process may have the mappings for sharing [start, end): each stretch needs two. */
static bool room_for(uint64_t start, uint64_t end)
{
	struct range r;
	return swapped.n < OWN_MAX || ranges_find(&swapped, start - 1, end + 1, &r);
}

/* Allocates pages before the daemon accesses them, while other threads run. */
static void populate(struct registration *g, uint64_t start, uint64_t end)
{
	if (g->populated + (end - start) > POPULATE_MAX)
		return;
	g->populated += end - start;
	if (sys(SYS_madvise, start, end - start, MADV_POPULATE_WRITE) == -EINVAL)
		sys(SYS_fallocate, memfd(), 0, start, end - start);
}

static void let_go(struct registration *g)
{
	struct range r;
	hold_end(&g->hold);
	for (uint64_t at = 0; ranges_find(&g->fresh, at, ~0ull, &r); at = r.end)
		populate(g, r.start, r.end);
	g->fresh.n = 0;
}

static void emit(struct registration *g, uint64_t start, uint64_t end, uint32_t kind, int prot)
{
	uint32_t p = (prot & PROT_READ ? VRDMA_PROT_READ : 0) | (prot & PROT_WRITE ? VRDMA_PROT_WRITE : 0) |
		     ((uint32_t)prot & ~0xffu);
	struct vrdma_extent *last = g->n ? &g->out[g->n - 1] : NULL;

	if (start < g->start)
		start = g->start;
	if (end > g->end)
		end = g->end;
	if (last && last->kind == kind && last->prot == p) {
		last->length += end - start;
	} else if (g->n < g->room) {
		g->out[g->n++] = (struct vrdma_extent){start, end - start, kind, p};
	} else { /* more pieces than a message holds: the tail is copied, unless it has holes */
		last->kind = last->kind && kind ? VRDMA_EXTENT_FOREIGN : VRDMA_EXTENT_HOLE;
		last->prot = (last->prot & p & 0xffu) |
			     (last->kind ? (uint32_t)VRDMA_WHY_MAPPINGS << VRDMA_WHY_SHIFT : 0);
		last->length += end - start;
	}
}

static void emit_foreign(struct registration *g, uint64_t start, uint64_t end, int prot, enum vrdma_why why)
{
	if (why != VRDMA_WHY_SPECIAL && why != VRDMA_WHY_FILE) /* those are never replaced */
		ranges_add(&memory_foreign, start, end);
	emit(g, start, end, VRDMA_EXTENT_FOREIGN, (prot & 0xff) | (int)why << VRDMA_WHY_SHIFT);
}

/* What became of each page of a chunk. */
static void emit_fates(struct registration *g, uint64_t start, uint64_t end, const struct vma *v)
{
	uint64_t to;
	for (uint64_t at = start; at < end; at = to)
		switch (replace_fate(at, &to)) {
		case FATE_OWN:
			g->replaced = true;
			ranges_add(&swapped, at, to);
			if (v->prot & PROT_WRITE)
				ranges_add(&g->fresh, at, to);
			emit(g, at, to, VRDMA_EXTENT_OWN, v->prot);
			break;
		case FATE_PINNED:
			emit_foreign(g, at, to, v->prot, VRDMA_WHY_PINNED);
			break;
		case FATE_GUARD: /* Linux refuses to register it, too */
			emit(g, at, to, VRDMA_EXTENT_HOLE, 0);
			break;
		case FATE_KEPT:
			emit_foreign(g, at, to, v->prot, VRDMA_WHY_MEMORY);
			break;
		}
}

/* Replaces [start, end), at most a chunk of one mapping. */
static void replace(struct registration *g, uint64_t start, uint64_t end, const struct vma *v)
{
	enum vrdma_why why = VRDMA_WHY_MEMORY;
	/* swapped must have every shared page, so its memory is reserved before pages become shared. */
	if (!ranges_room(&swapped, (end - start) / PAGE))
		why = VRDMA_WHY_MEMORY;
	else if (make_fresh(g, start, end))
		why = replace_pages(&g->hold, start, end, v);
	if (why) {
		emit_foreign(g, start, end, v->prot, why);
		return;
	}
	atomic_store(&any_swapped, true);
	emit_fates(g, start, end, v);
}

/* Shares the first chunk of [start, end), which is in v. Returns the end of that chunk. */
static uint64_t share(struct registration *g, uint64_t start, uint64_t end, const struct vma *v)
{
	struct range r;
	end = hold_chunk(start, end);
	if (!ranges_find(g->hold.untouchable, start, end, &r)) {
		replace(g, start, end, v);
		return end;
	}
	if (r.start > start)
		replace(g, start, r.start, v);
	emit_foreign(g, r.start, r.end, v->prot, VRDMA_WHY_THREAD);
	return r.end;
}

/* Why this mapping is not replaced; 0: it is, if possible. */
static enum vrdma_why unfit(const struct vma *v)
{
	if (v->kind == VMA_SPECIAL || v->kind == VMA_BORROWED || v->kind == VMA_SHARED)
		return VRDMA_WHY_SPECIAL;
	return v->kind == VMA_PRIVATE && !(v->prot & PROT_WRITE) ? VRDMA_WHY_FILE : 0;
}

static void emit_shared(struct registration *g, uint64_t start, uint64_t end, const struct vma *v)
{
	uint32_t fd = (uint32_t)(shared_file(g->shared, v) + 1);
	emit(g, start, end, VRDMA_EXTENT_SHARED, v->prot);
	struct vrdma_extent *last = &g->out[g->n - 1];
	if (fd && last->kind == VRDMA_EXTENT_SHARED && last->start + last->length == (end < g->end ? end : g->end))
		last->prot |= fd << VRDMA_DESCRIPTOR_SHIFT;
}

/*
 * Does another region have the pages from start on as foreign ones? Then the daemon may copy there
 * now, and would fail if they were replaced. Up to *to the answer is the same.
 */
static bool already_foreign(uint64_t start, uint64_t end, uint64_t *to)
{
	struct range r;
	if (!regions_several(start, end, to))
		return false;
	if (!ranges_find(&memory_foreign, start, *to, &r))
		return false;
	*to = r.start > start ? r.start : r.end;
	return r.start == start;
}

/*
 * Emits the extents of [start, end), which is in v. Returns the address up to which that is done: it
 * may be less than end. It is start if v must be looked up again, because threads have been stopped.
 */
static uint64_t handle(struct registration *g, uint64_t start, uint64_t end, const struct vma *v)
{
	enum vrdma_why why;
	uint64_t to = end;
	if (!(v->prot & (PROT_READ | PROT_WRITE))) {
		emit(g, start, end, VRDMA_EXTENT_HOLE, 0);
	} else if (v->kind == VMA_OWN && v->offset == v->start) {
		if (ranges_add(&swapped, start, end)) /* noted: mremap may have appended it */
			emit(g, start, end, VRDMA_EXTENT_OWN, v->prot);
		else
			emit_foreign(g, start, end, v->prot, VRDMA_WHY_MEMORY);
	} else if (v->kind == VMA_SHARED && shared_wanted()) {
		emit_shared(g, start, end, v);
	} else if ((why = unfit(v)) || (why = g->hold.refused) ||
		   (why = room_for(start, end) ? 0 : VRDMA_WHY_MAPPINGS)) {
		emit_foreign(g, start, end, v->prot, why);
	} else if (already_foreign(start, end, &to)) {
		emit_foreign(g, start, to, v->prot, VRDMA_WHY_COPIED);
		return to;
	} else if (g->hold.ready) {
		return share(g, start, to, v);
	} else {
		hold_begin(&g->hold, &memory_maps, HOLD_PRIVATE);
		return start;
	}
	return end;
}

static void walk(struct registration *g)
{
	uint64_t at = page_floor(g->start), end = page_ceil(g->end);
	struct vma v;

	while (at < end) {
		if (!maps_find(&memory_maps, at, &v) || v.start >= end) {
			if (memory_maps.broken)
				emit_foreign(g, at, end, PROT_READ | PROT_WRITE, VRDMA_WHY_MEMORY);
			else
				emit(g, at, end, VRDMA_EXTENT_HOLE, 0);
			return;
		}
		if (v.start > at)
			emit(g, at, v.start, VRDMA_EXTENT_HOLE, 0);
		at = v.start > at ? v.start : at;
		uint64_t from = at;
		bool held = g->hold.ready;
		at = handle(g, at, v.end < end ? v.end : end, &v);
		if (hold_long(&g->hold))
			let_go(g);
		if (held != g->hold.ready || (held && at > from)) /* mappings changed, by us or before threads stopped */
			maps_rewind(&memory_maps);
	}
}

/* ---- giving back the memory of buffers that are gone ---- */

static bool cross_out(const struct vma *v, void *arg)
{
	struct ranges *gone = arg;
	ranges_remove(gone, v->offset, v->offset + (v->end - v->start));
	return true;
}

/* Is some of our memory no longer where we put it? */
static bool any_stale(void)
{
	struct range r;
	struct vma v;
	bool stale = false;
	if (!maps_open(&memory_maps))
		return false;
	for (uint64_t at = 0; !stale && ranges_find(&swapped, at, ~0ull, &r); at = r.end)
		for (uint64_t from = r.start; !stale && from < r.end; from = v.end)
			stale = !maps_find(&memory_maps, from, &v) || v.kind != VMA_OWN ||
				v.start > from || v.offset != v.start;
	maps_close(&memory_maps);
	return stale;
}

/* Every so often: what no mapping shows any more loses its pages. */
static void reap(void)
{
	static unsigned turn;
	static struct ranges gone;
	struct range r;

	if (++turn < 8 + swapped.n / 2) /* it looks at all of them */
		return;
	turn = 0;
	if (!any_stale())
		return;
	gone.n = 0;
	for (uint64_t at = 0; ranges_find(&swapped, at, ~0ull, &r); at = r.end)
		if (!ranges_add(&gone, r.start, r.end))
			return;
	/* Twice: mremap may have moved one past the first reading. */
	if (!own_mappings(cross_out, &gone) || !own_mappings(cross_out, &gone))
		return;
	for (uint64_t at = 0; ranges_find(&gone, at, ~0ull, &r); at = r.end) {
		pages_punch(r.start, r.end);
		ranges_remove(&swapped, r.start, r.end);
	}
}

bool memory_sound(uint64_t start, uint64_t length)
{
	return start + length >= start && start + length <= 1ull << 62;
}

uint32_t memory_prepare(uint64_t start, uint64_t length, struct vrdma_extent *out, uint32_t room,
			struct shared *shared, bool *held)
{
	struct registration *g = &registration;
	uint64_t end = start + length;

	*held = false;
	if (length == 0)
		return 0;
	if (!memory_sound(start, length)) {
		out[0] = (struct vrdma_extent){start, length, VRDMA_EXTENT_HOLE, 0};
		return 1;
	}
	pthread_mutex_lock(&memory_lock);
	reap();
	reclaim_ready();
	g->start = start;
	g->end = end;
	g->out = out;
	g->shared = shared;
	g->n = 0;
	g->room = room;
	g->populated = 0;
	g->replaced = false;
	g->hold = (struct hold){.ready = false};
	/* Held before anything is looked at: another thread may be giving these pages back. */
	*held = regions_hold(page_floor(start), page_ceil(end));
	if (*held && maps_open(&memory_maps)) {
		walk(g);
		let_go(g);
		if (g->replaced)
			seams_add(page_floor(start), page_ceil(end));
		maps_close(&memory_maps);
	} else {
		emit_foreign(g, start, end, PROT_READ | PROT_WRITE, VRDMA_WHY_MEMORY);
	}
	uint32_t n = g->n;
	pthread_mutex_unlock(&memory_lock);
	return n;
}

/* ---- the life of a region ---- */

void memory_registered(const struct file *f, uint32_t handle, uint64_t start, uint64_t length)
{
	pthread_mutex_lock(&memory_lock);
	regions_name(f, handle, page_floor(start), page_ceil(start + length));
	pthread_mutex_unlock(&memory_lock);
}

void memory_refused(uint64_t start, uint64_t length)
{
	struct range r = {page_floor(start), page_ceil(start + length)};
	pthread_mutex_lock(&memory_lock);
	reclaim_gone(&r, 1);
	pthread_mutex_unlock(&memory_lock);
}

void memory_deregistered(const struct file *f, uint32_t handle)
{
	struct range r;
	pthread_mutex_lock(&memory_lock);
	if (regions_take(f, handle, &r))
		reclaim_gone(&r, 1);
	pthread_mutex_unlock(&memory_lock);
}

/* Whether this thread is in fork(), in a handler that is not ours. Then it holds the lock. */
bool memory_forking(void)
{
	return atomic_load(&memory_forker) == (int)sys(SYS_gettid);
}

bool memory_regions(const struct file *f)
{
	if (!memory_swapped() || memory_forking())
		return false;
	sigmask old = signals_block();
	pthread_mutex_lock(&memory_lock);
	bool any = regions_any(f);
	pthread_mutex_unlock(&memory_lock);
	signals_restore(old);
	return any;
}

void memory_closed(const struct file *f)
{
	struct range r;
	size_t at = 0;
	sigmask old = signals_block();
	pthread_mutex_lock(&memory_lock);
	while (regions_take_next(f, &at, &r))
		reclaim_gone(&r, 1);
	pthread_mutex_unlock(&memory_lock);
	signals_restore(old);
}

void memory_forget(void)
{
	swapped.n = memory_foreign.n = 0;
	memory_moved = false;
	pages_forget();
	regions_forget();
	reclaim_forget();
	seams_forget();
	atomic_store(&any_swapped, false);
}

void memory_child(void)
{
	pthread_mutex_init(&memory_lock, NULL);
	advice_child();
	memory_forget();
	if (atomic_load(&swaps) % 2)
		swap_end();
}
