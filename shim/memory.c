/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registration: the pages under a buffer become pages of the process's memfd, at
 * the same address and at a file offset equal to that address, so that the daemon
 * finds them by address.
 *
 *   private memory     hold writers back > copy what exists > map over > let go
 *   ours already       nothing to do
 *   anything else      FOREIGN: the daemon copies with process_vm_readv/writev
 *
 * glibc frees, reuses and moves memory without our seeing it, so nothing is
 * remembered as "already shared": the mappings are read every time. Any failure
 * leaves the memory as it was and the extent FOREIGN.
 *
 * How many regions cover a page is counted (regions.c). When the last one is gone, the
 * memory becomes private again (reclaim.c).
 *
 * While writers are held back this thread must not write to application memory,
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

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define POPULATE_MAX (2ul << 30)    /* fault in at most this much at one registration */
#define PAGEMAP_PRESENT (3ull << 62) /* in memory or in swap */

pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
struct ranges swapped;
struct maps memory_maps;
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

/* ---- copying what exists ---- */

struct copier {
	int pagemap; /* -1: copy everything */
	uint64_t bits[HOLD_CHUNK / PAGE];
};

static bool copy_run(uint64_t from, uint64_t to)
{
	while (from < to) {
		long n = sys(SYS_pwrite64, memfd(), from, to - from, from);
		if (n <= 0)
			return false;
		from += (uint64_t)n;
	}
	return true;
}

static bool copy_existing(struct copier *c, uint64_t start, uint64_t end)
{
	size_t n = (end - start) / PAGE;
	if (c->pagemap < 0 ||
	    sys(SYS_pread64, c->pagemap, c->bits, n * 8, start / PAGE * 8) != (long)(n * 8))
		return copy_run(start, end);
	for (size_t i = 0, j; i < n; i = j) {
		bool exists = c->bits[i] & PAGEMAP_PRESENT;
		for (j = i + 1; j < n && !(c->bits[j] & PAGEMAP_PRESENT) == !exists; j++)
			;
		if (exists && !copy_run(start + i * PAGE, start + j * PAGE))
			return false;
	}
	return true;
}

/* ---- one registration ---- */

struct registration {
	bool ready; /* the next two are */
	struct hold hold;
	struct copier copier;
	bool replaced; /* anything */
	uint64_t populated;
	struct vrdma_extent *out;
	uint32_t n, room;
	uint64_t start, end; /* exact, not rounded to pages */
};
static struct registration registration; /* too big for a stack; under memory_lock */

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
 * A former life of these addresses may have left pages in the file. Usually nobody uses
 * them; but mremap can have carried the old mapping elsewhere, and then that one becomes
 * private first.
 */
static bool make_fresh(struct registration *g, uint64_t start, uint64_t end)
{
	struct range r;
	if (ranges_find(&swapped, start, end, &r) && !reclaim_aliases(&g->hold, start, end))
		return false;
	pages_punch(start, end);
	return true;
}

static void populate(struct registration *g, uint64_t start, uint64_t end, int prot)
{
	if (!(prot & PROT_WRITE) || g->populated + (end - start) > POPULATE_MAX)
		return;
	g->populated += end - start;
	if (sys(SYS_madvise, start, end - start, MADV_POPULATE_WRITE) == -EINVAL)
		sys(SYS_fallocate, memfd(), 0, start, end - start);
}

/* Replaces [start, end), at most a chunk of one mapping. */
static bool replace(struct registration *g, uint64_t start, uint64_t end, const struct vma *v)
{
	struct guard *guard = &g->hold.guard;
	bool held = false, ok;

	/* What is shared is always known: so there is room to note it before it is. */
	if (!ranges_ready(&swapped) || !make_fresh(g, start, end))
		return false;
	swap_begin();
	if (guard->fd >= 0) {
		held = guard_hold(guard, start, end);
		if (!held) {
			swap_end();
			return false;
		}
	}
	ok = v->kind == VMA_ANONYMOUS ? copy_existing(&g->copier, start, end) : copy_run(start, end);
	if (ok)
		ok = !failed(sys(SYS_mmap, start, end - start, v->prot, MAP_SHARED | MAP_FIXED, memfd(),
				 start));
	if (ok)
		advice_shared(start, end);
	if (held && ok)
		guard_wake(guard, start, end);
	else if (held)
		guard_undo(guard, start, end);
	swap_end();
	if (!ok) {
		pages_punch(start, end);
		return false;
	}
	atomic_store(&any_swapped, true);
	ranges_add(&swapped, start, end);
	populate(g, start, end, v->prot);
	return true;
}

static void emit(struct registration *g, uint64_t start, uint64_t end, uint32_t kind, int prot)
{
	uint32_t p = (prot & PROT_READ ? VRDMA_PROT_READ : 0) | (prot & PROT_WRITE ? VRDMA_PROT_WRITE : 0);
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
		last->prot &= p;
		last->length += end - start;
	}
}

/* [start, end) lies in v and touches no thread's memory. */
static void share(struct registration *g, uint64_t start, uint64_t end, const struct vma *v)
{
	while (start < end) {
		uint64_t stop = hold_chunk(&g->hold, start, end);
		bool ok = replace(g, start, stop, v);
		g->replaced |= ok;
		emit(g, start, stop, ok ? VRDMA_EXTENT_SHARED : VRDMA_EXTENT_FOREIGN, v->prot);
		start = stop;
	}
}

/* What is needed to replace pages, and not where they are shared already. */
static void get_ready(struct registration *g)
{
	if (g->ready)
		return;
	g->ready = true;
	hold_begin(&g->hold, &memory_maps, HOLD_PRIVATE);
	g->copier.pagemap = maps_file("pagemap");
}

static void put_away(struct registration *g)
{
	if (!g->ready)
		return;
	if (g->copier.pagemap >= 0)
		sys(SYS_close, g->copier.pagemap);
	hold_end(&g->hold);
}

static void share_around_threads(struct registration *g, uint64_t start, uint64_t end,
				 const struct vma *v)
{
	struct range r;
	while (ranges_find(g->hold.untouchable, start, end, &r)) {
		share(g, start, r.start, v);
		emit(g, r.start, r.end, VRDMA_EXTENT_FOREIGN, v->prot);
		start = r.end;
	}
	share(g, start, end, v);
}

static bool replaceable(struct registration *g, const struct vma *v)
{
	if (v->kind == VMA_SPECIAL || v->kind == VMA_BORROWED)
		return false;
	get_ready(g);
	/* Writers of a file mapping cannot be held back. */
	return v->kind != VMA_PRIVATE || ((v->prot & PROT_WRITE) && g->hold.alone);
}

static void handle(struct registration *g, uint64_t start, uint64_t end, const struct vma *v)
{
	if (!(v->prot & (PROT_READ | PROT_WRITE)))
		emit(g, start, end, VRDMA_EXTENT_HOLE, 0);
	else if (v->kind == VMA_OWN && v->offset == v->start && ranges_add(&swapped, start, end))
		emit(g, start, end, VRDMA_EXTENT_SHARED, v->prot); /* noted: mremap may have appended it */
	else if (v->kind == VMA_OWN && v->offset == v->start)
		emit(g, start, end, VRDMA_EXTENT_FOREIGN, v->prot);
	else if (replaceable(g, v))
		share_around_threads(g, start, end, v);
	else
		emit(g, start, end, VRDMA_EXTENT_FOREIGN, v->prot);
}

static void walk(struct registration *g)
{
	uint64_t at = g->start & ~(PAGE - 1), end = (g->end + PAGE - 1) & ~(PAGE - 1);
	struct vma v;

	while (at < end) {
		if (!maps_find(&memory_maps, at, &v) || v.start >= end) {
			if (memory_maps.broken)
				emit(g, at, end, VRDMA_EXTENT_FOREIGN, PROT_READ | PROT_WRITE);
			else
				emit(g, at, end, VRDMA_EXTENT_HOLE, 0);
			return;
		}
		if (v.start > at)
			emit(g, at, v.start, VRDMA_EXTENT_HOLE, 0);
		uint64_t from = v.start > at ? v.start : at, to = v.end < end ? v.end : end;
		handle(g, from, to, &v);
		at = to;
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

	if (++turn % 8 || !any_stale())
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

static uint64_t page_floor(uint64_t address)
{
	return address & ~(PAGE - 1);
}

static uint64_t page_ceil(uint64_t address)
{
	return page_floor(address + PAGE - 1);
}

bool memory_sound(uint64_t start, uint64_t length)
{
	return start + length >= start && start + length <= 1ull << 62;
}

uint32_t memory_prepare(uint64_t start, uint64_t length, struct vrdma_extent *out, uint32_t room,
			bool *held)
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
	g->n = 0;
	g->room = room;
	g->populated = 0;
	g->ready = g->replaced = false;
	/* Held before anything is looked at: another thread may be giving these pages back. */
	*held = regions_hold(page_floor(start), page_ceil(end));
	if (*held && maps_open(&memory_maps)) {
		walk(g);
		if (g->replaced)
			seams_add(page_floor(start), page_ceil(end));
		maps_close(&memory_maps);
	} else {
		emit(g, start, end, VRDMA_EXTENT_FOREIGN, PROT_READ | PROT_WRITE);
	}
	put_away(g);
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

/* This thread is in fork(), in a handler of somebody else: it holds the lock. */
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
	swapped.n = 0;
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
