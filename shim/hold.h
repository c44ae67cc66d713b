/* SPDX-License-Identifier: Apache-2.0 */
/* The state for replacing pages of a program with threads. There is one hold at a time, under memory_lock. */
#ifndef VRDMA_HOLD_H
#define VRDMA_HOLD_H

#include "maps.h"
#include "move.h"
#include "ranges.h"

struct hold {
	bool ready;   /* no other thread of this address space runs, and the rest is valid */
	bool halted;  /* because they are stopped */
	bool leaves;  /* the program lets go of the daemon, and its memory will be shared again */
	enum vrdma_why refused; /* why nothing may be replaced; 0: it is not known yet */
	uint64_t since; /* when they were stopped, in ns */
	struct mover mover;
	int memory; /* /proc/self/mem; -1: not open */
	struct ranges *untouchable; /* memory of threads, which is never replaced */
	bool complete;              /* of all threads: else only what lies in swapped memory */
};

#define HOLD_CHUNK (8ul << 20) /* the most that is replaced at a time */
#define HOLD_TIME 8000000ull   /* ns: another chunk is begun only so long after threads stopped */

enum hold_what {
	HOLD_PRIVATE, /* private pages will be replaced */
	HOLD_SHARED,  /* pages of our memfd will be */
};
bool hold_filtered(void); /* a seccomp filter may end the process for a call that is seldom made */
/*
 * Stops the other threads, unless they are. False: they run on, and nothing may be replaced; it
 * is not tried again.
 */
bool hold_begin(struct hold *h, struct maps *m, enum hold_what what);
/* Pages of the memfd were found that are not known as swapped: a thread's memory may lie there too. */
void hold_complete(struct hold *h, struct maps *m);
void hold_end(struct hold *h);
int hold_memory(struct hold *h); /* a descriptor that writes also where there is no access; or -errno */
bool hold_long(const struct hold *h); /* threads are stopped for so long that they must run again */
/* Where the chunk ends that begins at start. */
uint64_t hold_chunk(uint64_t start, uint64_t end);

#endif
