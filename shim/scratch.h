/* SPDX-License-Identifier: Apache-2.0 */
/* Private memory that pages are moved to or from. */
#ifndef VRDMA_SCRATCH_H
#define VRDMA_SCRATCH_H

#include <sys/mman.h>

#include "vrdma.h"

struct scratch {
	uint64_t at; /* has the same offset in a huge page as the memory that it is for: page tables move, not pages */
	uint64_t area, size;
};

/* Maps n bytes for memory at start. 0 or -errno. */
static inline long scratch_map(struct scratch *s, uint64_t start, uint64_t n)
{
	const uint64_t huge = 2ul << 20;
	s->size = n + (n >= huge ? huge : 0);
	long r = sys(SYS_mmap, NULL, s->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r < 0 && r > -4096)
		return r;
	s->area = s->at = (uint64_t)r;
	if (n >= huge)
		s->at += (start - s->area) % huge;
	return 0;
}

static inline void scratch_unmap(const struct scratch *s)
{
	sys(SYS_munmap, s->area, s->size);
}

/* Unmaps all but the n bytes. */
static inline void scratch_trim(struct scratch *s, uint64_t n)
{
	uint64_t end = s->area + s->size;
	if (s->at > s->area)
		sys(SYS_munmap, s->area, s->at - s->area);
	if (end > s->at + n)
		sys(SYS_munmap, s->at + n, end - (s->at + n));
}

#endif
