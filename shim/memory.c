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
 * While writers are held back this thread must not write to application memory,
 * must not allocate and must not take a lock that one of them may hold: it uses
 * bare system calls and static storage only.
 */
#include "memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "freeze.h"
#include "tasks.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define CHUNK (8ul << 20)           /* replaced at a time: bounds how long a writer waits */
#define CHUNK_UNGUARDED (64ul << 10) /* where writers can be neither held nor stopped, and writes are lost */
#define POPULATE_MAX (2ul << 30)    /* fault in at most this much at one registration */
#define PAGEMAP_PRESENT (3ull << 62) /* in memory or in swap */

pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
struct ranges swapped, dontfork;
struct maps memory_maps;
_Atomic int memory_forker;
static struct ranges untouchable;
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
	uint64_t bits[CHUNK / PAGE];
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
	bool ready;  /* the next four are */
	bool alone;  /* no other thread runs */
	bool frozen; /* because they are stopped */
	struct guard guard;
	struct copier copier;
	uint64_t populated;
	struct vrdma_extent *out;
	uint32_t n, room;
	uint64_t start, end; /* exact, not rounded to pages */
};
static struct registration registration; /* too big for a stack; under memory_lock */

static void punch(uint64_t start, uint64_t end)
{
	sys(SYS_fallocate, memfd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, end - start);
}

void own_mappings(bool (*f)(const struct vma *, void *), void *arg)
{
	static struct maps m;
	struct vma v;
	if (!maps_open(&m))
		return;
	for (uint64_t at = 0; maps_find(&m, at, &v); at = v.end)
		if (v.kind == VMA_OWN && !f(&v, arg))
			break;
	maps_close(&m);
}

struct alias {
	uint64_t start, end; /* file range asked about */
	struct vma found;
	bool any;
};

static bool find_alias(const struct vma *v, void *arg)
{
	struct alias *a = arg;
	uint64_t last = v->offset + (v->end - v->start);
	if (v->offset == v->start || v->offset >= a->end || last <= a->start)
		return true;
	a->found = *v;
	a->any = true;
	return false;
}

static bool replace(struct registration *g, uint64_t start, uint64_t end, const struct vma *v,
		    int depth);

/*
 * A former life of these addresses may have left pages in the file. Usually nobody
 * uses them; but mremap (realloc) can have carried the old mapping elsewhere, and
 * then it must move to the offset of its new address first.
 */
static bool make_fresh(struct registration *g, uint64_t start, uint64_t end, int depth)
{
	struct range r;
	if (!ranges_find(&swapped, start, end, &r))
		return true;
	for (;;) {
		struct alias a = {.start = start, .end = end};
		own_mappings(find_alias, &a);
		if (!a.any)
			break;
		if (depth == 4)
			return false;
		for (uint64_t at = a.found.start, to; at < a.found.end; at = to) {
			to = at + CHUNK < a.found.end ? at + CHUNK : a.found.end;
			if (!replace(g, at, to, &a.found, depth + 1))
				return false;
		}
	}
	punch(start, end);
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

static void keep_from_children(uint64_t start, uint64_t end)
{
	struct range r;
	for (; ranges_find(&dontfork, start, end, &r); start = r.end)
		sys(SYS_madvise, r.start, r.end - r.start, MADV_DONTFORK);
}

/* Replaces [start, end), at most a chunk of one mapping. */
static bool replace(struct registration *g, uint64_t start, uint64_t end, const struct vma *v,
		    int depth)
{
	bool held = false, ok;

	if (!make_fresh(g, start, end, depth))
		return false;
	swap_begin();
	if (g->guard.fd >= 0) {
		held = guard_hold(&g->guard, start, end);
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
		keep_from_children(start, end);
	if (held && ok)
		guard_wake(&g->guard, start, end);
	else if (held)
		guard_undo(&g->guard, start, end);
	swap_end();
	if (!ok) {
		punch(start, end);
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
	uint64_t chunk = g->alone || g->guard.fd >= 0 ? CHUNK : CHUNK_UNGUARDED;
	while (start < end) {
		uint64_t stop = (start / chunk + 1) * chunk;
		if (stop > end)
			stop = end;
		bool ok = replace(g, start, stop, v, 0);
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
	g->alone = tasks_count() == 1;
	g->frozen = false;
	if (!g->alone && !guard_open(&g->guard, false))
		g->alone = g->frozen = freeze_begin();
	g->copier.pagemap = (int)sys(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	tasks_ranges(&memory_maps, &untouchable);
}

static void put_away(struct registration *g)
{
	if (!g->ready)
		return;
	if (g->copier.pagemap >= 0)
		sys(SYS_close, g->copier.pagemap);
	guard_close(&g->guard);
	if (g->frozen)
		freeze_end();
}

static void share_around_threads(struct registration *g, uint64_t start, uint64_t end,
				 const struct vma *v)
{
	struct range r;
	while (ranges_find(&untouchable, start, end, &r)) {
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
	return v->kind != VMA_PRIVATE || ((v->prot & PROT_WRITE) && g->alone);
}

static void handle(struct registration *g, uint64_t start, uint64_t end, const struct vma *v)
{
	if (!(v->prot & (PROT_READ | PROT_WRITE)))
		emit(g, start, end, VRDMA_EXTENT_HOLE, 0);
	else if (v->kind == VMA_OWN && v->offset == v->start)
		emit(g, start, end, VRDMA_EXTENT_SHARED, v->prot);
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
		stale = !maps_find(&memory_maps, r.start, &v) || v.kind != VMA_OWN ||
			v.start > r.start || v.offset != v.start || v.end < r.end;
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
	own_mappings(cross_out, &gone);
	own_mappings(cross_out, &gone); /* again: mremap may have moved one past the first reading */
	for (uint64_t at = 0; ranges_find(&gone, at, ~0ull, &r); at = r.end) {
		punch(r.start, r.end);
		ranges_remove(&swapped, r.start, r.end);
	}
}

uint32_t memory_prepare(uint64_t start, uint64_t length, struct vrdma_extent *out, uint32_t room)
{
	struct registration *g = &registration;
	uint64_t end = start + length;

	if (length == 0)
		return 0;
	if (end < start || end > (1ull << 62)) {
		out[0] = (struct vrdma_extent){start, length, VRDMA_EXTENT_HOLE, 0};
		return 1;
	}
	pthread_mutex_lock(&memory_lock);
	reap();
	g->start = start;
	g->end = end;
	g->out = out;
	g->n = 0;
	g->room = room;
	g->populated = 0;
	g->guard.fd = -1;
	g->ready = false;
	if (maps_open(&memory_maps)) {
		walk(g);
		maps_close(&memory_maps);
	} else {
		emit(g, start, end, VRDMA_EXTENT_FOREIGN, PROT_READ | PROT_WRITE);
	}
	put_away(g);
	uint32_t n = g->n;
	pthread_mutex_unlock(&memory_lock);
	return n;
}

/* ---- madvise ---- */

/* DONTNEED on private memory means zeros. Ours are shared pages, which it would leave alone. */
static void forget(uint64_t start, uint64_t end)
{
	struct vma v;
	if (!maps_open(&memory_maps))
		return;
	for (uint64_t at = start; at < end && maps_find(&memory_maps, at, &v); at = v.end) {
		uint64_t from = v.start > at ? v.start : at, to = v.end < end ? v.end : end;
		if (v.kind == VMA_OWN && from < to)
			punch(v.offset + (from - v.start), v.offset + (to - v.start));
	}
	maps_close(&memory_maps);
}

static bool overlaps(uint64_t start, uint64_t end)
{
	struct range r;
	return ranges_find(&swapped, start, end, &r);
}

int memory_madvise(void *addr, size_t n, int advice)
{
	uint64_t start = (uint64_t)(uintptr_t)addr, end = (start + n + PAGE - 1) & ~(PAGE - 1);
	bool fork = advice == MADV_DONTFORK || advice == MADV_DOFORK;
	int r = REAL(madvise)(addr, n, advice), e = errno;

	if ((!fork && !memory_swapped()) || (fork && r < 0))
		return r;
	if (atomic_load(&memory_forker) == (int)sys(SYS_gettid))
		return errno = e, r; /* an atfork handler: this thread holds the lock */
	sigmask old = signals_block();
	pthread_mutex_lock(&memory_lock);
	if (advice == MADV_DONTFORK)
		ranges_add(&dontfork, start, end);
	else if (advice == MADV_DOFORK)
		ranges_remove(&dontfork, start, end);
	else if (advice == MADV_DONTNEED && r == 0 && overlaps(start, end))
		forget(start, end);
	else if (advice == MADV_FREE && r < 0 && e == EINVAL && overlaps(start, end))
		r = 0; /* may free, need not */
	pthread_mutex_unlock(&memory_lock);
	signals_restore(old);
	errno = e;
	return r;
}

void memory_forget(void)
{
	swapped.n = 0;
	atomic_store(&any_swapped, false);
}

void memory_child(void)
{
	pthread_mutex_init(&memory_lock, NULL);
	memory_forget();
	if (atomic_load(&swaps) % 2)
		swap_end();
}
