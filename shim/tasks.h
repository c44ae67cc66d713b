/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of this process, and the memory of theirs that must not be held back. */
#ifndef VRDMA_TASKS_H
#define VRDMA_TASKS_H

#include "maps.h"
#include "ranges.h"

unsigned tasks_count(void); /* how many threads; 0: unknown */
/*
 * The stacks and descriptors of all threads, and the stack around this thread's stack pointer. With
 * where: only of the threads whose descriptor is there.
 */
void tasks_ranges(struct maps *m, struct ranges *out, const struct ranges *where);
void tasks_here(struct maps *m, struct ranges *out); /* only the latter */

#endif
