/* SPDX-License-Identifier: Apache-2.0 */
/* Halting all other threads of the process, for milliseconds. */
#ifndef VRDMA_HALT_H
#define VRDMA_HALT_H

#include <stdbool.h>

/*
 * halt_begin halts every other thread. It returns within some 60 ms. False: all threads run on,
 * and the caller must not replace pages. The caller holds memory_lock, and no lock that a halted
 * thread may hold (malloc's). Several pieces of work fit under one halt, 20 ms in all.
 */
bool halt_begin(void);
void halt_end(void);

/*
 * Whether the program has made a process that shares this memory and is no thread (clone with
 * CLONE_VM, without CLONE_VFORK). Nothing can halt it, so halt_begin returns false from then on,
 * and a single thread is not alone either.
 */
bool halt_shared(void);
void halt_cloned(unsigned long flags); /* the program is about to clone */

/* Valgrind aborts at a bare clone, and does not know userfaultfd: no page is replaced there. */
bool under_valgrind(void);

#endif
