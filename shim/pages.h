/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of our memfd. Under memory_lock. */
#ifndef VRDMA_PAGES_H
#define VRDMA_PAGES_H

#include "vrdma.h"

/* Calls f for every run of pages that exist in [offset, offset+n), with its place after arg. */
bool pages_each(uint64_t offset, uint64_t n, bool (*f)(uint64_t offset, uint64_t n, uint64_t arg),
		uint64_t arg);
bool pages_read(uint64_t offset, uint64_t n, uint64_t to); /* copies them to memory */
bool pages_write(uint64_t from, uint64_t n, uint64_t offset); /* copies memory to them */
void pages_punch(uint64_t start, uint64_t end);            /* gives them back */
void pages_forget(void);                                   /* it is another memfd */

#endif
