/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory while the process has no daemon: it is private for a while, and then shared again, at the
 * same addresses, with another memfd. Regions stay as they are. No daemon touches the memory meanwhile.
 */
#include "memory.h"

#include <sys/mman.h>

#include "pages.h"
#include "reclaim.h"
#include "regions.h"
#include "replace.h"

static struct ranges again; /* what was shared, and is part of a region. Under memory_lock */

/* Notes the shared memory of regions in again. Pages that no region covers need not be shared again. */
static bool remember(void)
{
	struct range r;
	uint64_t to;
	again.n = 0;
	for (uint64_t at = 0; ranges_find(&swapped, at, ~0ull, &r); at = r.end)
		for (uint64_t from = regions_next(r.start); from < r.end; from = regions_next(to)) {
			regions_several(from, r.end, &to);
			if (!ranges_add(&again, from, to))
				return false;
		}
	return true;
}

static bool at_home(const struct vma *v, void *all)
{
	return *(bool *)all = v->offset == v->start;
}

/* Is all shared memory at the address that is its offset? What mremap has moved could not be found again. */
static bool unmoved(void)
{
	bool all = true;
	return own_mappings(at_home, &all) && all;
}

/* Shares a part of one mapping that is in a chunk; *to is its end. False: not all of it. */
static bool share(struct hold *h, uint64_t start, uint64_t end, const struct vma *v, uint64_t *to)
{
	uint64_t upto;
	bool all = true;
	*to = end = hold_chunk(start, end < v->end ? end : v->end);
	if (v->kind != VMA_ANONYMOUS && v->kind != VMA_PRIVATE)
		return true; /* it never was private; or another mapping took its place, and the region keeps its own pages */
	if (!ranges_room(&swapped, (end - start) / PAGE) || replace_pages(h, start, end, v))
		return false;
	memory_note(true);
	for (uint64_t at = start; at < end; at = upto)
		if (replace_fate(at, &upto) == FATE_OWN)
			ranges_add(&swapped, at, upto);
		else
			all = false;
	return all;
}

/*
 * Says whether a fork copies what is still to be shared from an address on. replace.c forks for each piece to find pinned pages, and
 * a copy of all other pieces would take most of the time. Only while other threads are held: theirs would fork without memory.
 */
static void forkable(uint64_t from, bool yes)
{
	struct range r;
	for (; ranges_find(&again, from, ~0ull, &r); from = r.end) {
		sys(SYS_madvise, r.start, r.end - r.start, yes ? MADV_DOFORK : MADV_DONTFORK);
		if (yes)
			advice_shared(r.start, r.end);
	}
}

static bool begin(struct hold *h, uint64_t at)
{
	if (h->ready)
		return true;
	if (!hold_begin(h, &memory_maps, HOLD_PRIVATE))
		return false;
	forkable(at, false);
	return true;
}

static void end_at(struct hold *h, uint64_t at)
{
	if (h->ready)
		forkable(at, true);
	hold_end(h);
}

/* Shares [start, end), as far as anything is mapped there. */
static bool share_range(struct hold *h, uint64_t start, uint64_t end)
{
	struct vma v;
	for (uint64_t at = start, to; at < end; at = to) {
		if (hold_long(h))
			end_at(h, at);
		if (!begin(h, at))
			return false;
		maps_rewind(&memory_maps);
		if (!maps_find(&memory_maps, at, &v) || v.start >= end)
			return !memory_maps.broken;
		if (v.start > at)
			at = v.start;
		if (!share(h, at, end, &v, &to))
			return false;
	}
	return true;
}

static bool share_all(void)
{
	struct hold h = {.ready = false};
	struct range r;
	bool ok = true;
	for (uint64_t at = 0; ok && ranges_find(&again, at, ~0ull, &r); at = r.end)
		ok = share_range(&h, r.start, r.end);
	end_at(&h, 0);
	for (uint64_t at = 0; ok && ranges_find(&again, at, ~0ull, &r); at = r.end)
		seams_add(r.start, r.end);
	return ok;
}

bool memory_leave(void (*then)(void))
{
	struct hold h = {.leaves = true};
	pthread_mutex_lock(&memory_lock);
	bool ok = maps_open(&memory_maps);
	if (ok) {
		ok = remember() && unmoved();
		bool begun = ok;
		if (ok)
			ok = reclaim_all(&h);
		if (ok)
			then();
		hold_end(&h);
		if (!ok && begun)
			share_all(); /* what became private: the memfd is the same */
		maps_close(&memory_maps);
	}
	if (ok) {
		swapped.n = 0;
		memory_moved = false;
		pages_forget();
		reclaim_forget();
		seams_forget();
		memory_note(false);
	}
	pthread_mutex_unlock(&memory_lock);
	return ok;
}

bool memory_return(void)
{
	pthread_mutex_lock(&memory_lock);
	pages_forget();
	reclaim_ready();
	bool ok = maps_open(&memory_maps);
	if (ok) {
		ok = share_all();
		maps_close(&memory_maps);
	}
	pthread_mutex_unlock(&memory_lock);
	return ok;
}

bool memory_alone(void (*then)(void))
{
	struct hold h = {.ready = false};
	pthread_mutex_lock(&memory_lock);
	bool ok = maps_open(&memory_maps);
	if (ok) {
		ok = hold_begin(&h, &memory_maps, HOLD_SHARED);
		if (ok)
			then();
		hold_end(&h);
		maps_close(&memory_maps);
	}
	pthread_mutex_unlock(&memory_lock);
	return ok;
}
