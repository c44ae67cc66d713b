/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes pages that no region covers any more private again, with their bytes, and removes
 * them from the memfd. This is necessary because libc and others call mremap and madvise
 * where we do not see it, and these have other effects on shared pages. For example, mremap
 * would let a buffer grow into the file's next pages, which belong to another buffer.
 *
 * Other threads are stopped. Memory without access rights replaces the shared pages. So an access
 * from outside (process_vm_writev) is not lost: it fails, or waits where full userfaultfd is
 * allowed. Then the memory gets the bytes, and then its protection. It is made in place, so that the
 * kernel can merge it with its neighbours again.
 *
 * There is no way to detect whether a page of the memfd is pinned. So while the process holds a
 * descriptor that may pin pages (async.c), they stay shared.
 *
 * The daemon must have stopped using the pages. Any failure leaves them shared; they are
 * tried again later.
 */
#include "reclaim.h"

#include <fcntl.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#include "async.h"
#include "pages.h"
#include "regions.h"
#include "replace.h"
#include "scratch.h"

#define CHUNK (1ul << 20) /* small: the next one gets the pages that this one leaves, still in the cache */

#define APART_MAX 4096ul /* mappings that nothing joins with their neighbours */

static struct ranges left;  /* not covered, and still shared */
static struct ranges apart; /* the first byte of each such mapping */

/* ---- one run of pages of one mapping ---- */

static struct {
	struct hold *hold;
	uint64_t offset, window; /* the file from offset on is mapped at window */
	uint64_t end;            /* of the chunk that was filled last */
	uint64_t mapping;        /* where the mapping ends of which a chunk is filled */
} filling;

static bool write_all(uint64_t from, uint64_t n, uint64_t at)
{
	int memory = hold_memory(filling.hold);
	while (n) {
		long got = memory < 0 ? -1 : sys(SYS_pwrite64, memory, from, n, at);
		if (got <= 0)
			return false;
		from += (uint64_t)got;
		at += (uint64_t)got;
		n -= (uint64_t)got;
	}
	return true;
}

static bool fill(uint64_t offset, uint64_t n, uint64_t at)
{
	uint64_t from = filling.window + (offset - filling.offset);
	return filling.hold->mover.fd >= 0 ? mover_copy(&filling.hold->mover, at, from, n) : write_all(from, n, at);
}

/*
 * Whether one more mapping may stay apart from its neighbours. At the limit, one of APART_MAX calls
 * forgets those that exist no more.
 */
static bool apart_room(void)
{
	static unsigned turn;
	struct vma v;
	size_t n = 0;
	if (apart.n < APART_MAX)
		return true;
	if (++turn % APART_MAX)
		return false;
	maps_rewind(&memory_maps);
	for (size_t i = 0; i < apart.n; i++)
		if (maps_find(&memory_maps, apart.v[i].start, &v) && v.start == apart.v[i].start)
			apart.v[n++] = apart.v[i];
	apart.n = n;
	return n < APART_MAX;
}

/*
 * The kernel joins a mapping with a neighbour only if both have the same anon_vma, which a mapping
 * gets with its first page, from a neighbour whose flags are the same. So a page of a neighbour is
 * watched with the range: with it, what is watched from at on, or 0.
 */
static uint64_t neighbour(struct hold *h, uint64_t at, int prot)
{
	struct vma v;
	if (!memory_maps.query || !maps_find(&memory_maps, at, &v) || v.start > at || v.kind != VMA_ANONYMOUS ||
	    v.prot != prot)
		return 0;
	return mover_watch(&h->mover, at, at + PAGE) == 0 ? at : 0;
}

/* Fills the range page by page with userfaultfd. A thread that accesses a missing page waits for it. */
static bool fill_watched(struct hold *h, uint64_t start, uint64_t end, uint64_t offset, int prot)
{
	if (mover_watch(&h->mover, start, end) < 0)
		return false;
	uint64_t beside = neighbour(h, start - PAGE, prot);
	if (!beside)
		beside = neighbour(h, end, prot);
	bool ok = sys(SYS_mprotect, start, end - start, prot) == 0 &&
		  pages_each(offset, end - start, fill, start);
	mover_unwatch(&h->mover, start, end);
	mover_wake(&h->mover, start, end);
	if (beside) {
		mover_unwatch(&h->mover, beside, beside + PAGE);
		mover_wake(&h->mover, beside, beside + PAGE);
	}
	return ok;
}

/*
 * Without userfaultfd: the last page of the chunk before this one, which is the application's for
 * sure, loses its access and is made longer by n bytes. So both are one mapping.
 */
static bool lengthen(uint64_t start, uint64_t n, int prot)
{
	struct vma v;
	uint64_t at = start - PAGE;
	if (filling.end != start)
		return false;
	maps_rewind(&memory_maps); /* threads may have run since */
	if (!maps_find(&memory_maps, at, &v) || v.start > at || v.end != start || v.kind != VMA_ANONYMOUS ||
	    v.prot != prot || sys(SYS_mprotect, at, PAGE, PROT_NONE) < 0)
		return false;
	sys(SYS_munmap, start, n);
	bool ok = !failed(sys(SYS_mremap, at, PAGE, PAGE + n, 0));
	sys(SYS_mprotect, at, PAGE, prot);
	return ok;
}

/* Memory without access takes the place of [start, end). */
static bool take_place(uint64_t start, uint64_t end, int prot, bool moves)
{
	if (!moves && lengthen(start, end - start, prot))
		return true;
	if (!moves && !apart_room())
		return false;
	if (failed(sys(SYS_mmap, start, end - start, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)))
		return false;
	if (!moves)
		ranges_add(&apart, start, start + 1);
	return true;
}

/* Private memory in the place of [start, end) gets what the file has. False: not all of it. */
static bool make_private(struct hold *h, uint64_t start, uint64_t end, uint64_t offset, int prot,
			 const struct attributes *a)
{
	bool moves = h->mover.fd >= 0;
	if (!take_place(start, end, prot, moves))
		return false;
	advice_private(start, end);
	attributes_say(a, start, end);
	if (moves)
		return fill_watched(h, start, end, offset, prot);
	return pages_each(offset, end - start, fill, start) && sys(SYS_mprotect, start, end - start, prot) == 0;
}

static bool read_pages(uint64_t offset, uint64_t n, uint64_t at)
{
	sys(SYS_madvise, at, n, MADV_POPULATE_WRITE); /* otherwise the read makes the pages one by one */
	return pages_read(offset, n, at);
}

/*
 * Private memory for a mapping, of which parts have moved there. The parts become one mapping again, as they have the same
 * anon_vma. Other mappings are not merged with it.
 */
static struct {
	uint64_t at, end; /* what is left */
	uint64_t next;    /* the address that at is for */
} spare;

static void spare_end(void)
{
	if (spare.at < spare.end)
		sys(SYS_munmap, spare.at, spare.end - spare.at);
	spare.at = spare.end = 0;
}

/* Makes spare memory for a mapping that begins at start, or continues there. */
static bool spare_for(uint64_t start, uint64_t end)
{
	struct scratch s;
	if (spare.next == start && spare.end - spare.at >= end - start)
		return true;
	spare_end();
	if (filling.mapping < end || scratch_map(&s, start, filling.mapping - start) < 0)
		return false;
	scratch_trim(&s, filling.mapping - start);
	spare.at = s.at;
	spare.end = s.at + (filling.mapping - start);
	spare.next = start;
	return true;
}

/*
 * Fills pages elsewhere, and moves them to [start, end): several times faster than the other ways. But the kernel does not merge
 * them with their neighbours, so mremap cannot make them longer. For memory that will be shared again.
 */
static bool make_elsewhere(uint64_t start, uint64_t end, uint64_t offset, int prot, const struct attributes *a)
{
	uint64_t n = end - start;
	if (!spare_for(start, end))
		return false;
	attributes_say(a, spare.at, spare.at + n);
	if (failed(sys(SYS_mmap, start, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0)) ||
	    !pages_each(offset, n, read_pages, spare.at) || sys(SYS_mprotect, spare.at, n, prot) < 0 ||
	    failed(sys(SYS_mremap, spare.at, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, start))) {
		spare_end();
		return false;
	}
	spare.at += n;
	spare.next = end;
	advice_private(start, end);
	return true;
}

static void share_back(uint64_t start, uint64_t end, uint64_t offset, int prot, const struct attributes *a)
{
	sys(SYS_mmap, start, end - start, prot, MAP_SHARED | MAP_FIXED, atomic_load(&process.memory), offset);
	seams_again(start, end);
	advice_shared(start, end);
	attributes_say(a, start, end);
}

static bool convert_elsewhere(uint64_t start, uint64_t end, uint64_t offset, int prot)
{
	struct attributes a;
	attributes_read(&a, start, end);
	bool ok = make_elsewhere(start, end, offset, prot, &a);
	if (ok)
		pages_punch(offset, offset + (end - start));
	else
		share_back(start, end, offset, prot, &a);
	if (a.locked)
		attributes_lock(start, end);
	return ok;
}

static bool convert_chunk(struct hold *h, uint64_t start, uint64_t end, uint64_t offset, int prot)
{
	struct attributes a;
	uint64_t n = end - start;
	if (h->leaves && h->mover.fd < 0 && convert_elsewhere(start, end, offset, prot))
		return true;
	attributes_read(&a, start, end);
	long r = sys(SYS_mmap, NULL, n, PROT_READ, MAP_SHARED, atomic_load(&process.memory), offset);
	if (failed(r))
		return false;
	filling.hold = h;
	filling.offset = offset;
	filling.window = (uint64_t)r;
	bool ok = make_private(h, start, end, offset, prot, &a);
	if (!ok)
		share_back(start, end, offset, prot, &a);
	sys(SYS_munmap, r, n);
	if (a.locked)
		attributes_lock(start, end);
	filling.end = ok ? end : 0;
	if (ok)
		pages_punch(offset, offset + n);
	return ok;
}

/* Memory that is not filled through userfaultfd stays a separate mapping, so then all of it is one chunk. */
static uint64_t chunk(const struct hold *h, uint64_t start, uint64_t end)
{
	uint64_t stop = (start / CHUNK + 1) * CHUNK;
	return stop < end && h->mover.fd >= 0 ? stop : end;
}

static bool convert(struct hold *h, uint64_t start, uint64_t end, uint64_t offset, int prot)
{
	bool ok = true;
	uint64_t to;
	for (uint64_t at = start; ok && at < end; at = to) {
		to = chunk(h, at, end);
		ok = convert_chunk(h, at, to, offset + (at - start), prot);
	}
	return ok;
}

/* A mapping of our memfd, or a part of one. False: some of it stays shared. */
static bool reclaim_mapping(struct hold *h, const struct vma *v)
{
	uint64_t at = v->start;
	struct range r;
	bool ok = true, any = false;
	while (ok && ranges_find(h->untouchable, at, v->end, &r)) {
		ok = convert(h, at, r.start, v->offset + (at - v->start), v->prot);
		at = r.end;
		any = true;
	}
	return ok && convert(h, at, v->end, v->offset + (at - v->start), v->prot) && !any;
}

/* ---- where the pages are ---- */

/* Stops the other threads, unless they were stopped just now. False: they run. */
static bool get_ready(struct hold *h)
{
	if (hold_long(h))
		hold_end(h);
	if (h->ready)
		return true;
	bool ok = hold_begin(h, &memory_maps, HOLD_SHARED);
	maps_rewind(&memory_maps);
	return ok;
}

struct alias {
	uint64_t start, end; /* pages of the file */
	struct vma found;    /* some of them, and not at the address that is their offset */
	bool any;
};

static bool find_alias(const struct vma *v, void *arg)
{
	struct alias *a = arg;
	struct vma part = *v;
	uint64_t last = v->offset + (v->end - v->start);
	if (v->offset == v->start || v->offset >= a->end || last <= a->start)
		return !a->any;
	if (part.offset < a->start) {
		part.start += a->start - part.offset;
		part.offset = a->start;
	}
	if (last > a->end)
		part.end -= last - a->end;
	if (part.end - part.start > HOLD_CHUNK)
		part.end = part.start + HOLD_CHUNK;
	a->found = part;
	a->any = true;
	memory_moved = true; /* perhaps unseen by us */
	return false;
}

bool reclaim_aliases(struct hold *h, uint64_t start, uint64_t end)
{
	for (;;) {
		struct alias a = {.start = start, .end = end};
		if (!own_mappings(find_alias, &a))
			return false;
		if (!a.any)
			return true;
		if (!h->ready) { /* what was found may be gone by now */
			if (!get_ready(h))
				return false;
			continue;
		}
		if (async_any(ASYNC_PINS))
			return false;
		hold_complete(h, &memory_maps);
		if (!reclaim_mapping(h, &a.found))
			return false;
	}
}

/* Pages that the kernel appended to our mapping, unseen by us (mremap): up to where? */
static uint64_t appended(const struct vma *v, uint64_t end)
{
	uint64_t next = regions_next(end);
	return next < v->end ? next : v->end;
}

/* Makes [start, end) private. It was made shared before, and no region covers it now. */
static bool restore(struct hold *h, uint64_t start, uint64_t end)
{
	bool ok = true, elsewhere = false;
	struct vma v;
	uint64_t at = start, to = end;
	while (at < to && (ok = get_ready(h))) {
		maps_rewind(&memory_maps);
		if (!maps_find(&memory_maps, at, &v) || v.start >= to)
			break;
		elsewhere |= v.start > at;
		if (v.start < at) {
			v.offset += at - v.start;
			v.start = at;
		}
		if (v.kind != VMA_OWN || v.offset != v.start) {
			elsewhere = true;
			at = v.end;
			continue;
		}
		if (v.end > end && to == end) { /* perhaps by pages that we do not know */
			hold_complete(h, &memory_maps);
			to = appended(&v, end);
		}
		struct vma next; /* our seams are borders of mappings, too */
		while (v.end < to && maps_find(&memory_maps, v.end, &next) && next.kind == VMA_OWN &&
		       next.start == v.end && next.offset == next.start && next.prot == v.prot)
			v.end = next.end;
		uint64_t stop = v.end < to ? v.end : to;
		v.end = h->halted ? hold_chunk(v.start, stop) : stop;
		ok = reclaim_mapping(h, &v);
		at = v.end;
		if (!ok)
			break;
	}
	/* The buffer was unmapped, or is where mremap carried it. */
	elsewhere |= at < end;
	if (ok && elsewhere && !memory_maps.broken)
		ok = reclaim_aliases(h, start, end);
	ok = ok && !memory_maps.broken;
	if (ok && elsewhere) /* else each chunk left the file when it became private */
		pages_punch(start, end);
	return ok;
}

static void restore_all(struct hold *h, const struct ranges *gone)
{
	struct range g, r;
	for (uint64_t at = 0; ranges_find(gone, at, ~0ull, &g); at = g.end)
		for (uint64_t from = g.start; ranges_find(&swapped, from, g.end, &r); from = r.end)
			if (restore(h, r.start, r.end)) {
				ranges_remove(&swapped, r.start, r.end);
				seams_remove(r.start, r.end);
			} else {
				ranges_add(&left, r.start, r.end);
			}
}

static struct ranges gone; /* scratch */

/* Adds the ranges that could not be made private before, and that no region covers. */
static void add_left(void)
{
	struct range r;
	for (uint64_t at = 0; ranges_find(&left, at, ~0ull, &r); at = r.end)
		for (uint64_t from = r.start, to; from < r.end; from = to) {
			to = regions_next(from);
			if (to > from)
				ranges_add(&gone, from, to < r.end ? to : r.end);
			else
				to = from + PAGE;
		}
	left.n = 0;
}

void reclaim_ready(void)
{
	ranges_ready(&gone);
	ranges_ready(&left);
	ranges_ready(&apart);
}

/* Leaves the shared parts of gone shared, and records them in left. */
static void leave(void)
{
	struct range g, r;
	for (uint64_t at = 0; ranges_find(&gone, at, ~0ull, &g); at = g.end)
		for (uint64_t from = g.start; ranges_find(&swapped, from, g.end, &r); from = r.end)
			ranges_add(&left, r.start, r.end);
}

static bool any_swapped(void)
{
	struct range g, r;
	for (uint64_t at = 0; ranges_find(&gone, at, ~0ull, &g); at = g.end)
		if (ranges_find(&swapped, g.start, g.end, &r))
			return true;
	return false;
}

void reclaim_gone(const struct range *r, size_t n)
{
	static unsigned turn;
	struct hold h = {.ready = false};
	gone.n = 0;
	for (size_t i = 0; i < n; i++)
		regions_drop(r[i].start, r[i].end, &gone);
	for (size_t i = 0; memory_foreign.n && i < gone.n; i++)
		ranges_remove(&memory_foreign, gone.v[i].start, gone.v[i].end);
	if (++turn > left.n / 8) { /* seldom, where there is much */
		add_left();
		turn = 0;
	}
	if (!gone.n || !any_swapped())
		return;
	if (!maps_open(&memory_maps)) { /* no descriptor is free: later */
		leave();
		return;
	}
	restore_all(&h, &gone);
	hold_end(&h);
	maps_close(&memory_maps);
}

/* ---- everything ---- */

static bool first(const struct vma *v, void *arg)
{
	struct alias *a = arg;
	a->found = *v;
	a->any = true;
	return false;
}

bool reclaim_all(struct hold *h)
{
	bool ok = true;
	while (ok && (ok = get_ready(h))) {
		struct alias a = {.any = false};
		ok = own_mappings(first, &a);
		if (!ok || !a.any)
			break;
		hold_complete(h, &memory_maps);
		filling.mapping = a.found.end;
		a.found.end = hold_chunk(a.found.start, a.found.end);
		ok = reclaim_mapping(h, &a.found);
	}
	spare_end();
	return ok;
}

bool memory_reclaim(void)
{
	struct hold h = {.ready = false};
	bool ok = true;
	pthread_mutex_lock(&memory_lock);
	if (memory_swapped() && (ok = maps_open(&memory_maps))) {
		ok = reclaim_all(&h);
		hold_end(&h);
		maps_close(&memory_maps);
	}
	if (ok)
		memory_forget();
	pthread_mutex_unlock(&memory_lock);
	return ok;
}

void reclaim_forget(void)
{
	left.n = 0;
}
