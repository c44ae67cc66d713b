/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registered regions: how many of them cover each page, and which one a
 * handle of the daemon names. Under memory_lock.
 */
#ifndef VRDMA_REGIONS_H
#define VRDMA_REGIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "ranges.h"

/* One more region covers [start, end), whole pages. False: no memory, nothing changed. */
bool regions_hold(uint64_t start, uint64_t end);
/* One region less. The parts that no region covers now are added to gone. */
void regions_drop(uint64_t start, uint64_t end, struct ranges *gone);
/* Does more than one region cover the page at start? Up to *to, at most end, the answer is the same. */
bool regions_several(uint64_t start, uint64_t end, uint64_t *to);
/* Where the first covered page at or after address is; ~0: nowhere. */
uint64_t regions_next(uint64_t address);

/* Gives the held range [start, end) a name. regions_hold has reserved memory for it. */
void regions_name(const void *file, uint32_t handle, uint64_t start, uint64_t end);
/* Removes a name. False: no region has it. */
bool regions_take(const void *file, uint32_t handle, struct range *out);
bool regions_any(const void *file); /* has this file one? */
/* The same for one region of a file after the other. *at is 0 at first. */
bool regions_take_next(const void *file, size_t *at, struct range *out);
void regions_forget(void); /* nothing is registered */

#endif
