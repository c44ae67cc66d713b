/* SPDX-License-Identifier: Apache-2.0 */
/* See ranges.h. The array comes from mmap: malloc may be locked by a thread that waits for us. */
#include "ranges.h"

#include <string.h>
#include <sys/mman.h>

#include "sys.h"

/* Index of the first range that ends at or after address. */
static size_t seek(const struct ranges *s, uint64_t address)
{
	size_t lo = 0, hi = s->n;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (s->v[mid].end < address)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

bool ranges_ready(struct ranges *s)
{
	return ranges_room(s, 1);
}

bool ranges_room(struct ranges *s, size_t n)
{
	if (s->n + n <= s->room)
		return true;
	if (s->head) {
		memmove(s->v - s->head, s->v, s->n * sizeof *s->v);
		s->v -= s->head;
		s->room += s->head;
		s->head = 0;
		if (s->n + n <= s->room / 2) /* else this would be done again soon */
			return true;
	}
	size_t room = s->room ? 2 * s->room : 4096 / sizeof *s->v;
	while (room < s->n + n)
		room *= 2;
	long r = s->v ? sys(SYS_mremap, s->v, s->room * sizeof *s->v, room * sizeof *s->v, MREMAP_MAYMOVE)
		      : sys(SYS_mmap, NULL, room * sizeof *s->v, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (r < 0 && r > -4096)
		return false;
	s->v = (struct range *)r;
	s->room = room;
	return true;
}

/* Replaces ranges [i, j) by n others. The shorter side moves. */
static void splice(struct ranges *s, size_t i, size_t j, const struct range *with, size_t n)
{
	size_t fewer = j - i > n ? j - i - n : 0;
	if (fewer && i < s->n - j) {
		memmove(s->v + fewer, s->v, i * sizeof *s->v);
		s->v += fewer;
		s->head += fewer;
		s->room -= fewer;
		s->n -= fewer;
		j -= fewer;
	}
	memmove(s->v + i + n, s->v + j, (s->n - j) * sizeof *s->v);
	for (size_t k = 0; k < n; k++)
		s->v[i + k] = with[k];
	s->n = s->n - (j - i) + n;
}

bool ranges_add(struct ranges *s, uint64_t start, uint64_t end)
{
	if (!ranges_ready(s))
		return false;
	size_t i = seek(s, start), j = i;
	struct range r = {start, end};
	for (; j < s->n && s->v[j].start <= end; j++) {
		if (s->v[j].start < r.start)
			r.start = s->v[j].start;
		if (s->v[j].end > r.end)
			r.end = s->v[j].end;
	}
	splice(s, i, j, &r, 1);
	return true;
}

bool ranges_remove(struct ranges *s, uint64_t start, uint64_t end)
{
	struct range keep[2];
	size_t n = 0;
	if (!ranges_ready(s))
		return false;
	size_t i = seek(s, start + 1), j = i;
	for (; j < s->n && s->v[j].start < end; j++) {
		if (s->v[j].start < start)
			keep[n++] = (struct range){s->v[j].start, start};
		if (s->v[j].end > end)
			keep[n++] = (struct range){end, s->v[j].end};
	}
	splice(s, i, j, keep, n);
	return true;
}

bool ranges_find(const struct ranges *s, uint64_t start, uint64_t end, struct range *out)
{
	size_t i = seek(s, start + 1);
	if (start >= end || i >= s->n || s->v[i].start >= end)
		return false;
	out->start = s->v[i].start > start ? s->v[i].start : start;
	out->end = s->v[i].end < end ? s->v[i].end : end;
	return true;
}
