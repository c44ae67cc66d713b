/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way back: pages that no region covers any more become ordinary private memory,
 * with the bytes that they have, and leave the memfd. Ordinary, because libc and others
 * call mremap and madvise where we do not see it, and these mean something else on
 * shared pages: mremap would let a buffer grow into the file's next pages, which are
 * those of another buffer.
 *
 *   no other thread runs   map private memory in place, read the bytes into it
 *   else                   fill private memory elsewhere while writers are held back, and
 *                          move it into place: in one step, since readers are not held
 *
 * The second way costs: the kernel never joins memory that was moved with its neighbours
 * again, and a process may have only so many mappings. So these are counted, and when
 * there are many all threads are stopped, if possible, for the first way.
 *
 * The daemon must have stopped using the pages. Any failure leaves them shared; they are
 * tried again the next time.
 */
#include "reclaim.h"

#include <sys/mman.h>

#include "pages.h"
#include "regions.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define CHUNK (1ul << 20) /* small: the next one gets the pages that this one leaves, still in the cache */
#define HUGE (2ul << 20)  /* what the kernel may use one page for */
#ifndef MOVED_MAX         /* a test has less time */
#define MOVED_MAX 16384   /* mappings that nothing joins with: well below vm.max_map_count, 65530 */
#endif
#define COUNT_EVERY 1024  /* counting all mappings takes milliseconds */

static struct ranges left;  /* not covered, and still shared */
static struct ranges moved; /* the first byte of each moved mapping */

/* ---- one run of pages of one mapping ---- */

static bool populate(uint64_t offset, uint64_t n, uint64_t at)
{
	(void)offset;
	sys(SYS_madvise, at, n, MADV_POPULATE_WRITE);
	return true;
}

static bool fill(uint64_t offset, uint64_t n, uint64_t at)
{
	if (n > PAGE) /* at once: faults one by one take longer */
		populate(offset, n, at);
	return pages_read(offset, n, at);
}

/*
 * Is it still what was found? A thread may have unmapped it since, and another one have mapped
 * something there. (The text of maps cannot be read again.)
 */
static bool still_there(uint64_t start, uint64_t end, uint64_t offset)
{
	struct vma v;
	for (uint64_t at = start; memory_maps.query && at < end; at = v.end)
		if (!maps_find(&memory_maps, at, &v) || v.kind != VMA_OWN || v.start > at ||
		    v.offset + (at - v.start) != offset + (at - start))
			return false;
	return true;
}

static bool in_place(uint64_t start, uint64_t end, uint64_t offset, int prot)
{
	uint64_t n = end - start;
	swap_begin();
	bool ok = !failed(sys(SYS_mmap, start, n, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	if (ok) {
		advice_private(start, end);
		ok = pages_each(offset, n, fill, start) &&
		     (prot == (PROT_READ | PROT_WRITE) || sys(SYS_mprotect, start, n, prot) == 0);
		if (!ok)
			sys(SYS_mmap, start, n, prot, MAP_SHARED | MAP_FIXED,
			    atomic_load(&process.memory), offset);
	}
	swap_end();
	return ok;
}

static uint64_t chunk(const struct hold *h, uint64_t start, uint64_t end)
{
	uint64_t stop = (start / CHUNK + 1) * CHUNK;
	return hold_chunk(h, start, stop < end ? stop : end);
}

/* from: n bytes of fresh private memory. */
static bool by_move(struct guard *g, uint64_t from, uint64_t start, uint64_t end, uint64_t offset,
		    int prot)
{
	uint64_t n = end - start;
	bool ok;
	if (n > PAGE)
		pages_each(offset, n, populate, from); /* not yet while writers wait */
	swap_begin();
	if (g->fd >= 0 && !guard_hold(g, start, end)) {
		swap_end();
		return false;
	}
	ok = pages_each(offset, n, pages_read, from) &&
	     (prot == (PROT_READ | PROT_WRITE) || sys(SYS_mprotect, from, n, prot) == 0) &&
	     still_there(start, end, offset) &&
	     !failed(sys(SYS_mremap, from, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, start));
	if (ok)
		advice_private(start, end);
	if (g->fd >= 0 && ok)
		guard_wake(g, start, end);
	else if (g->fd >= 0)
		guard_undo(g, start, end);
	swap_end();
	return ok;
}

/*
 * One area for all chunks, so that they are one mapping again in the end; placed so that
 * huge pages fit.
 */
static bool move_all(struct hold *h, uint64_t start, uint64_t end, uint64_t offset, int prot)
{
	uint64_t room = end - start + (end - start >= HUGE ? HUGE : 0), to;
	bool ok = true;
	long r = sys(SYS_mmap, NULL, room, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (failed(r))
		return false;
	uint64_t area = (uint64_t)r, at = area, skip = (start - area) % HUGE, from = start;
	if (room > end - start)
		at += skip;
	advice_huge(at, start, end);
	for (; ok && from < end; from = ok ? to : from) {
		uint64_t page = offset + (from - start);
		to = chunk(h, from, end);
		ok = by_move(&h->guard, at + (from - start), from, to, page, prot);
		if (ok)
			pages_punch(page, page + (to - from));
	}
	/* What is left of the area, and only that: another thread may have mapped something where it was. */
	uint64_t rest = at + (from - start);
	if (at > area)
		sys(SYS_munmap, area, at - area);
	if (rest < area + room)
		sys(SYS_munmap, rest, area + room - rest);
	ranges_remove(&moved, start, end);
	ranges_add(&moved, start, start + 1);
	return ok;
}

static bool convert(struct hold *h, uint64_t start, uint64_t end, uint64_t offset, int prot)
{
	bool ok = true;
	uint64_t to;
	if (!h->alone)
		return start >= end || move_all(h, start, end, offset, prot);
	for (uint64_t at = start; ok && at < end; at = to) {
		uint64_t page = offset + (at - start);
		to = chunk(h, at, end);
		ok = still_there(at, to, page) && in_place(at, to, page, prot);
		if (ok)
			pages_punch(page, page + (to - at));
	}
	ranges_remove(&moved, start, end);
	return ok;
}

bool reclaim_mapping(struct hold *h, const struct vma *v)
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

/*
 * Are there too many mappings that nothing joins with? The moved ones that are known may be
 * gone with their buffers, so all there are are counted, every so often.
 */
static bool too_many(void)
{
	static struct maps m;
	static unsigned turn;
	static bool many;
	struct vma v;
	size_t n = 0;
	if (moved.n <= MOVED_MAX)
		return false;
	if (turn++ % COUNT_EVERY || !maps_open(&m))
		return many;
	for (uint64_t at = 0; n <= 2 * MOVED_MAX && maps_find(&m, at, &v); at = v.end)
		n++;
	maps_close(&m);
	many = n > 2 * MOVED_MAX;
	if (!many) {
		moved.n = 0; /* count anew */
		turn = 0;
	}
	return many;
}

static void get_ready(struct hold *h)
{
	if (!h->ready)
		hold_begin(h, &memory_maps, too_many() ? HOLD_ALL : HOLD_SHARED);
}

struct alias {
	uint64_t start, end; /* pages of the file */
	struct vma found;    /* some of them, and not at the address that is their offset */
	bool any;
};

/* Does b go on where a ends, in memory and in the file? Then they become one mapping again. */
static bool goes_on(const struct vma *a, const struct vma *b)
{
	return b->start == a->end && b->offset == a->offset + (a->end - a->start) && b->prot == a->prot &&
	       b->kind == a->kind;
}

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
	if (a->any && !goes_on(&a->found, &part))
		return false;
	if (a->any)
		part = (struct vma){a->found.start, part.end, a->found.offset, part.prot, part.kind};
	a->found = part;
	a->any = true;
	memory_moved = true; /* perhaps unseen by us */
	return true;
}

bool reclaim_aliases(struct hold *h, uint64_t start, uint64_t end)
{
	for (;;) {
		struct alias a = {.start = start, .end = end};
		if (!own_mappings(find_alias, &a))
			return false;
		if (!a.any)
			return true;
		get_ready(h);
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

/*
 * The mappings from v on that are one but for our seams; next is what comes after them. Not
 * beyond end: maps cannot be read backwards.
 */
static struct vma together(struct vma v, uint64_t end, struct vma *next, bool *more)
{
	while ((*more = v.end < end && maps_find(&memory_maps, v.end, next)) && goes_on(&v, next))
		v.end = next->end;
	return v;
}

/* [start, end) was made shared once, and nobody covers it now. */
static bool restore(struct hold *h, uint64_t start, uint64_t end)
{
	bool ok = true, elsewhere = false;
	struct vma v, next;
	bool more = maps_find(&memory_maps, start, &v);
	uint64_t at = start;
	for (; more && v.start < end; v = next) {
		bool in_place = v.kind == VMA_OWN && v.offset == v.start;
		elsewhere |= !in_place || v.start > at;
		v = together(v, end, &next, &more);
		at = v.end;
		if (!in_place)
			continue;
		get_ready(h);
		if (v.end > end) /* perhaps by pages that we do not know */
			hold_complete(h, &memory_maps);
		if (v.start < start)
			v.start = v.offset = start;
		if (v.end > end)
			v.end = appended(&v, end);
		bool done = reclaim_mapping(h, &v);
		if (done && v.end > end)
			pages_punch(end, v.end);
		ok &= done;
	}
	/* The buffer was unmapped, or is where mremap carried it. */
	elsewhere |= at < end;
	if (elsewhere && !memory_maps.broken)
		ok = reclaim_aliases(h, start, end) && ok;
	ok = ok && !memory_maps.broken;
	if (ok && elsewhere) /* else each chunk left the file when it became private */
		pages_punch(start, end);
	return ok;
}

static void restore_all(struct hold *h, const struct ranges *gone)
{
	struct range g, r;
	for (uint64_t at = 0; ranges_find(gone, at, ~0ull, &g); at = g.end) {
		bool ok = true;
		for (uint64_t from = g.start; ranges_find(&swapped, from, g.end, &r); from = r.end)
			ok = restore(h, r.start, r.end) && ok;
		if (ok) {
			ranges_remove(&swapped, g.start, g.end);
			seams_remove(g.start, g.end);
		} else {
			ranges_add(&left, g.start, g.end);
		}
	}
}

static struct ranges gone; /* scratch */

/* What is left over from before, and is not covered again. */
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
	ranges_ready(&moved);
}

void reclaim_gone(const struct range *r, size_t n)
{
	struct hold h = {.ready = false};
	gone.n = 0;
	for (size_t i = 0; i < n; i++)
		regions_drop(r[i].start, r[i].end, &gone);
	add_left();
	if (!gone.n)
		return;
	if (!maps_open(&memory_maps)) { /* no descriptor is free: later */
		for (size_t i = 0; i < gone.n; i++)
			ranges_add(&left, gone.v[i].start, gone.v[i].end);
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

bool memory_reclaim(void)
{
	struct hold h = {.ready = false};
	bool ok = true;
	pthread_mutex_lock(&memory_lock);
	if (memory_swapped() && (ok = maps_open(&memory_maps))) {
		for (struct alias a = {.any = true}; ok;) {
			a.any = false;
			ok = own_mappings(first, &a);
			if (!ok || !a.any)
				break;
			get_ready(&h);
			hold_complete(&h, &memory_maps);
			ok = reclaim_mapping(&h, &a.found);
		}
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
	left.n = moved.n = 0;
}
