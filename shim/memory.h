/* SPDX-License-Identifier: Apache-2.0 */
/* What memory.c and fork.c share: the process's swapped memory, under one lock. */
#ifndef VRDMA_MEMORY_H
#define VRDMA_MEMORY_H

#include "maps.h"
#include "protect.h"
#include "ranges.h"

extern pthread_mutex_t memory_lock; /* guards all below */
extern struct ranges swapped;       /* where pages of our memfd were put, ever */
extern struct ranges dontfork;      /* what the application keeps from fork children */
extern struct maps memory_maps;     /* scratch */

static inline bool failed(long r)
{
	return r < 0 && r > -4096;
}

extern _Atomic int memory_forker;   /* the thread that is in fork() and holds the lock */

void swap_begin(void); /* writers may be held back from here... */
void swap_end(void);   /* ...to here: calls.c repeats what failed in between */
/* Calls f for every mapping of our memfd. */
void own_mappings(bool (*f)(const struct vma *, void *), void *arg);
void memory_forget(void); /* nothing is swapped any more */
void memory_child(void);
bool memory_swapped(void); /* anything to do at a fork? without the lock */

#endif
