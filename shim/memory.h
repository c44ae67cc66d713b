/* SPDX-License-Identifier: Apache-2.0 */
/* What memory.c and fork.c share: the process's swapped memory, under one lock. */
#ifndef VRDMA_MEMORY_H
#define VRDMA_MEMORY_H

#include "maps.h"
#include "protect.h"
#include "ranges.h"

extern pthread_mutex_t memory_lock; /* guards all below */
extern struct ranges swapped;       /* where pages of our memfd were put, and not taken away yet */
extern struct ranges memory_foreign; /* what regions have as foreign, and could have been replaced */
extern struct maps memory_maps;     /* scratch */
extern bool memory_moved;           /* did mremap ever carry such pages elsewhere? */

static inline bool failed(long r)
{
	return r < 0 && r > -4096;
}

extern _Atomic int memory_forker;   /* the thread that is in fork() and holds the lock */

void swap_begin(void); /* writers may be held back from here... */
void swap_end(void);   /* ...to here: calls.c repeats what failed in between */
/* Calls f for every mapping of our memfd, until it says false. False: they could not be read. */
bool own_mappings(bool (*f)(const struct vma *, void *), void *arg);
void memory_forget(void); /* nothing is swapped any more */
void memory_child(void);
void memory_note(bool any); /* whether there is swapped memory */
bool memory_swapped(void); /* anything to do at a fork? without the lock */
bool memory_forking(void); /* this thread is in fork(), and holds the lock already */

/* ---- advice.c: memory that is replaced keeps the advice that it had ---- */
void advice_lock(void); /* around the next three: taken before threads are stopped */
void advice_unlock(void);
void advice_shared(uint64_t start, uint64_t end);  /* it is shared now */
void advice_private(uint64_t start, uint64_t end); /* it is private now */
/* Memory of [start, end) that is at another address for now: a fork child gets all of it. */
void advice_inherited(uint64_t at, uint64_t start, uint64_t end);
/* The first part of [start, end) that the application keeps from fork children. */
bool advice_dontfork(uint64_t start, uint64_t end, struct range *out);
void advice_wipe(uint64_t start, uint64_t end); /* in a fork child */
void advice_child(void);

/* ---- remap.c: a mapping that must not grow ---- */
void seams_add(uint64_t start, uint64_t end);    /* shared and registered now */
void seams_remove(uint64_t start, uint64_t end); /* private now */
void seams_again(uint64_t start, uint64_t end);  /* it was mapped anew */
void seams_forget(void);

#endif
