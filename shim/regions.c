/* SPDX-License-Identifier: Apache-2.0 */
/* See regions.h. All memory comes from mmap: malloc may be locked by a thread that waits for us. */
#include "regions.h"

#include <string.h>
#include <sys/mman.h>

#include "sys.h"

/* Sorted and disjoint; neighbours have different counts. */
struct counted {
	uint64_t start, end;
	uint64_t count; /* not 0 */
};

struct name {
	const void *file;
	uint32_t handle;
	int32_t next; /* in its bucket, or in the list of free ones; -1: the last */
	struct range range;
};

#define BUCKETS 4096u /* a power of two */

static struct counted *base; /* segment_room elements */
static size_t head;          /* unused elements before the first, which is removed without moving the rest */
#define segment (base + head)
static size_t nsegments, segment_room;
static struct name *name;
static size_t nnames, name_room; /* nnames: used once, perhaps free now */
static size_t held;              /* how many regions there are, named or not yet */
static int32_t bucket[BUCKETS], unused;
static bool ready;

/* Grows an array to n elements of size bytes, and keeps the old ones. */
static bool grow(void **array, size_t *room, size_t n, size_t size)
{
	size_t more = *room ? *room : 4096 / size;
	if (n <= *room)
		return true;
	while (more < n)
		more *= 2;
	long r = *array ? sys(SYS_mremap, *array, *room * size, more * size, MREMAP_MAYMOVE)
			: sys(SYS_mmap, NULL, more * size, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (r < 0 && r > -4096)
		return false;
	*array = (void *)r;
	*room = more;
	return true;
}

/* Reserves memory for n more segments after the existing ones. */
static bool grow_segments(size_t n)
{
	if (head && head + nsegments + n > segment_room && head >= segment_room / 2) {
		memmove(base, segment, nsegments * sizeof *base);
		head = 0;
	}
	return grow((void **)&base, &segment_room, head + nsegments + n, sizeof *base);
}

/* ---- counts ---- */

/* The first segment that ends after address. */
static size_t seek(uint64_t address)
{
	size_t lo = 0, hi = nsegments;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (segment[mid].end <= address)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static void insert(size_t i, struct counted s)
{
	if (head && i < nsegments / 2) { /* the shorter side makes room */
		memmove(segment - 1, segment, i * sizeof *base);
		head--;
	} else {
		memmove(segment + i + 1, segment + i, (nsegments - i) * sizeof *base);
	}
	segment[i] = s;
	nsegments++;
}

/* Removes the segments [i, j). */
static void erase(size_t i, size_t j)
{
	if (i < nsegments - j) {
		memmove(segment + (j - i), segment, i * sizeof *base);
		head += j - i;
	} else {
		memmove(segment + i, segment + j, (nsegments - j) * sizeof *base);
	}
	nsegments -= j - i;
}

/* Makes a border at address, if it lies inside a segment. */
static void split(uint64_t address)
{
	size_t i = seek(address);
	if (i == nsegments || segment[i].start >= address)
		return;
	struct counted left = segment[i];
	left.end = segment[i].start = address;
	insert(i, left);
}

/* Joins what has become equal between the segments i-1 and j. */
static void join(size_t i, size_t j)
{
	size_t to = i ? i - 1 : 0, last = j < nsegments ? j : nsegments - 1;
	if (nsegments == 0)
		return;
	for (size_t from = to + 1; from <= last; from++) {
		if (segment[to].end == segment[from].start && segment[to].count == segment[from].count)
			segment[to].end = segment[from].end;
		else
			segment[++to] = segment[from];
	}
	erase(to + 1, last + 1);
}

bool regions_hold(uint64_t start, uint64_t end)
{
	size_t i, inside = 0;
	for (i = seek(start); i < nsegments && segment[i].start < end; i++)
		inside++;
	/* Two borders, and a new segment for each gap. */
	if (!grow_segments(inside + 3) ||
	    !grow((void **)&name, &name_room, held + 1, sizeof *name))
		return false;
	held++;
	split(start);
	split(end);
	size_t first = i = seek(start);
	for (uint64_t at = start; at < end; at = segment[i++].end) {
		if (i < nsegments && segment[i].start == at) {
			segment[i].count++;
			continue;
		}
		uint64_t to = i < nsegments && segment[i].start < end ? segment[i].start : end;
		insert(i, (struct counted){at, to, 1});
	}
	join(first, i);
	return true;
}

void regions_drop(uint64_t start, uint64_t end, struct ranges *gone)
{
	/* If there is no memory for the two borders, the count stays, and the pages stay shared. */
	if (!grow_segments(2))
		return;
	if (held)
		held--;
	split(start);
	split(end);
	size_t first = seek(start), i = first;
	while (i < nsegments && segment[i].start < end) {
		if (--segment[i].count) {
			i++;
			continue;
		}
		ranges_add(gone, segment[i].start, segment[i].end);
		size_t j = i + 1; /* segments that go together are taken out together */
		for (; j < nsegments && segment[j].start < end && segment[j].count == 1; j++)
			ranges_add(gone, segment[j].start, segment[j].end);
		erase(i, j);
	}
	join(first, i);
}

bool regions_several(uint64_t start, uint64_t end, uint64_t *to)
{
	size_t i = seek(start);
	bool here = i < nsegments && segment[i].start <= start, several = here && segment[i].count > 1;
	*to = end;
	if (i < nsegments && (here ? segment[i].end : segment[i].start) < end)
		*to = here ? segment[i].end : segment[i].start;
	return several;
}

uint64_t regions_next(uint64_t address)
{
	size_t i = seek(address);
	if (i == nsegments)
		return ~0ull;
	return segment[i].start > address ? segment[i].start : address;
}

/* ---- names ---- */

static int32_t *chain(const void *file, uint32_t handle)
{
	uint64_t h = ((uint64_t)(uintptr_t)file >> 6 ^ handle) * 0x9e3779b97f4a7c15ull;
	if (!ready) {
		memset(bucket, 0xff, sizeof bucket);
		unused = -1;
		ready = true;
	}
	return &bucket[h >> 52 & (BUCKETS - 1)];
}

void regions_name(const void *file, uint32_t handle, uint64_t start, uint64_t end)
{
	int32_t *head = chain(file, handle), i = unused;
	if (i >= 0)
		unused = name[i].next;
	else if (nnames < name_room)
		i = (int32_t)nnames++;
	else
		return;
	name[i] = (struct name){file, handle, *head, {start, end}};
	*head = i;
}

static void take(int32_t *link, struct range *out)
{
	int32_t i = *link;
	*out = name[i].range;
	*link = name[i].next;
	name[i].file = NULL;
	name[i].next = unused;
	unused = i;
}

bool regions_take(const void *file, uint32_t handle, struct range *out)
{
	for (int32_t *link = chain(file, handle); *link >= 0; link = &name[*link].next)
		if (name[*link].file == file && name[*link].handle == handle)
			return take(link, out), true;
	return false;
}

bool regions_any(const void *file)
{
	for (size_t i = 0; i < nnames; i++)
		if (name[i].file == file)
			return true;
	return false;
}

bool regions_take_next(const void *file, size_t *at, struct range *out)
{
	while (*at < nnames) {
		const struct name *n = &name[(*at)++];
		if (n->file == file)
			return regions_take(file, n->handle, out);
	}
	return false;
}

void regions_forget(void)
{
	nsegments = nnames = held = head = 0;
	ready = false;
}
