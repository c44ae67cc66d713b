/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that streams, through one socket and in one direction, takes breaks.
 *
 * Between two hosts a stream keeps four threads busy: two programs and two daemons. With fewer
 * processors, a program that polls for the next few KiB takes the processor from the daemon that
 * delivers them. Waking the program for each of them costs as much as polling. But a program that
 * sleeps while a part of its buffer fills, or empties, loses nothing: the other threads have
 * work meanwhile, and then it copies much at once.
 *
 *   buffer    [ being filled by the peer  |  to be read ]
 *   program    copy ── nothing left: sleep ── copy ── sleep …      a part of the buffer each time
 *
 * A thread sleeps here only after STREAM bytes in one direction and none in the other. So a
 * program with requests and replies never sleeps here.
 */
#include <time.h>

#include "sockets.h"

#define STREAM (4u << 20)  /* bytes one way, and it is a stream */
#define ENOUGH (512u << 10) /* bytes a break: a quarter of the buffer (table.c) */
#define BREAK_FIRST 25u    /* microseconds; the kernel adds some 50 */
#define BREAK_LAST 200u

static __thread struct {
	const struct entry *e;
	bool out;
	uint64_t bytes;  /* that way, and none the other */
	uint64_t rested; /* bytes at the last break */
	unsigned us;     /* of the last break */
} flow __attribute__((tls_model("initial-exec")));

void flow_moved(const struct entry *e, bool out, size_t n)
{
	if (unlikely(flow.e != e || flow.out != out)) {
		flow.e = e;
		flow.out = out;
		flow.bytes = flow.rested = 0;
		flow.us = BREAK_FIRST;
	}
	flow.bytes += n;
}

/* As long as what moves between two breaks is about as much as it should be. */
static unsigned next_break(void)
{
	uint64_t moved = flow.bytes - flow.rested;
	flow.rested = flow.bytes;
	if (moved > ENOUGH * 2 && flow.us > 1)
		flow.us /= 2;
	else if (moved < ENOUGH && flow.us < BREAK_LAST)
		flow.us *= 2;
	return flow.us;
}

int flow_break(const struct timespec *limit)
{
	if (likely(flow.bytes < STREAM || flow.bytes == flow.rested))
		return 0; /* no stream, or nothing came of the last break */
	struct timespec t = {.tv_nsec = next_break() * 1000l};
	if (limit && !limit->tv_sec && limit->tv_nsec < t.tv_nsec)
		return 0;
	long r = sys(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &t, NULL);
	return r == 0 ? 1 : r == -EINTR ? FAIL(EINTR) : 0;
}
