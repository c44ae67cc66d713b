/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of the memfd take the place of private pages. Under memory_lock. */
#ifndef VRDMA_REPLACE_H
#define VRDMA_REPLACE_H

#include "hold.h"

/* What a mapping has besides its protection and advice, and should keep. */
struct attributes {
	bool locked;             /* by mlock */
	int mode;                /* memory policy; 0: none */
	unsigned long nodes[16]; /* of the policy */
};
void attributes_read(struct attributes *a, uint64_t start, uint64_t end);
void attributes_say(const struct attributes *a, uint64_t start, uint64_t end); /* its policy */
void attributes_lock(uint64_t start, uint64_t end);

enum fate {
	FATE_OWN,    /* now a page of the memfd */
	FATE_PINNED, /* as it was: a device or the kernel holds it */
	FATE_GUARD,  /* as it was: a guard page */
	FATE_KEPT,   /* as it was: for want of memory */
};

/*
 * Replaces the pages of [start, end), at most a chunk of one mapping, while other threads are
 * held. 0: replace_fate knows what became of each. Else why all of them are as they were.
 */
enum vrdma_why replace_pages(struct hold *h, uint64_t start, uint64_t end, const struct vma *v);
/* What became of the pages from at on, of the last chunk that was replaced, and up to where. */
enum fate replace_fate(uint64_t at, uint64_t *to);
bool replace_any(void); /* was a page replaced? */

#endif
