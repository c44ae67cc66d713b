/* SPDX-License-Identifier: Apache-2.0 */
/* Shared pages become private again. Under memory_lock. */
#ifndef VRDMA_RECLAIM_H
#define VRDMA_RECLAIM_H

#include "hold.h"
#include "memory.h"

/* Makes mappings private that have [start, end) of the file at another address than its offset. */
bool reclaim_aliases(struct hold *h, uint64_t start, uint64_t end);
/*
 * Before a registration: so that memory of our own does not take the address of a buffer that
 * was unmapped, at its deregistration.
 */
void reclaim_ready(void);
/* These regions were deregistered: pages that no other region covers become private. */
void reclaim_gone(const struct range *r, size_t n);
/* All memory becomes private. memory_maps is open; the caller ends the hold. False: some is not. */
bool reclaim_all(struct hold *h);
void reclaim_forget(void);

#endif
