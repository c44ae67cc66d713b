/* SPDX-License-Identifier: Apache-2.0 */
/* System calls that a halt interrupts go on as if nothing had happened. */
#ifndef VRDMA_REPEAT_H
#define VRDMA_REPEAT_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The tracer of a stopped thread has its call repeated, if it is one of those. Now is in nanoseconds;
 * nonce is a word of our memory, by which is seen whether the thread has it too.
 */
void repeat_interrupted(int tid, uint64_t now, const uint64_t *nonce);
/* Whether a stopped thread shares our memory: it does no more when it has called exec. */
bool repeat_shares(int tid, const uint64_t *nonce);

#endif
