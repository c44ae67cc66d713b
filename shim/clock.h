/* SPDX-License-Identifier: Apache-2.0 */
/* The monotonic clock by bare system calls, in nanoseconds. */
#ifndef VRDMA_CLOCK_H
#define VRDMA_CLOCK_H

#include <time.h>

#include "sys.h"

#define US 1000ull
#define MS 1000000ull

static inline uint64_t clock_now(void)
{
	struct timespec t;
	sys(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static inline void clock_sleep(uint64_t ns)
{
	struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
	sys(SYS_nanosleep, &t, NULL);
}

#endif
