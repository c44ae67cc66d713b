/* SPDX-License-Identifier: Apache-2.0 */
/* Holding back the writers of pages that are being replaced. */
#ifndef VRDMA_PROTECT_H
#define VRDMA_PROTECT_H

#include "vrdma.h"

int uffd_create(uint64_t features, uint64_t *available); /* a userfaultfd, or -errno */

struct guard {
	int fd;         /* userfaultfd; -1: none */
	bool shmem;     /* can protect shared pages too */
	bool moves;     /* protection stays with pages that mremap moves */
	bool unpopulated; /* can protect pages that do not exist yet */
};

/* With moves, a thread that calls mremap waits until another thread has called guard_fault. */
bool guard_open(struct guard *g, bool moves);
void guard_close(struct guard *g);
/* Stop every write to [start, end). False: nothing is protected. */
bool guard_hold(struct guard *g, uint64_t start, uint64_t end);
/* Let the writers of one page continue. */
void guard_release_page(struct guard *g, uint64_t page);
/* The range was replaced by another mapping: wake the waiting writers, which then retry. */
void guard_wake(struct guard *g, uint64_t start, uint64_t end);
/* The range was not replaced: remove the protection. */
void guard_undo(struct guard *g, uint64_t start, uint64_t end);
/* A fault that waits, and the thread that had it. False: none. */
bool guard_fault(struct guard *g, uint64_t *page, uint32_t *thread);

#endif
