/* SPDX-License-Identifier: Apache-2.0 */
/* What is needed to replace pages under running threads. One at a time, under memory_lock. */
#ifndef VRDMA_HOLD_H
#define VRDMA_HOLD_H

#include "maps.h"
#include "protect.h"
#include "ranges.h"

struct hold {
	bool ready;  /* the rest is */
	bool alone;  /* no other thread runs, */
	bool halted; /* because they are stopped */
	struct guard guard;
	struct ranges *untouchable; /* memory of threads, which is never replaced */
	bool complete;              /* of all threads: else only what lies in swapped memory */
};

/*
 * The most that is replaced at a time. It bounds how long a writer waits; and where writers
 * can be neither held nor stopped, what they write into it meanwhile is lost.
 */
#define HOLD_CHUNK (8ul << 20)
#define HOLD_CHUNK_UNGUARDED (64ul << 10)

enum hold_what {
	HOLD_PRIVATE, /* writers of private pages */
	HOLD_SHARED,  /* of pages of our memfd too */
	HOLD_ALL,     /* all threads, if they can be stopped; else as HOLD_SHARED */
};
/* Gets ready, unless it is. */
void hold_begin(struct hold *h, struct maps *m, enum hold_what what);
/* Pages of the memfd were found that are not known as swapped: a thread's memory may lie there too. */
void hold_complete(struct hold *h, struct maps *m);
void hold_end(struct hold *h);
/* Where the chunk ends that begins at start. */
uint64_t hold_chunk(const struct hold *h, uint64_t start, uint64_t end);

#endif
