/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that polls and the daemon, together on one processor, take turns:
 *
 *   ┌── CPU 0 ──┐ ┌───────── CPU 1 ─────────┐    each message waits for a turn, and between
 *   │ server    │ │ daemon  client  daemon …│    scheduler groups turns are equally long
 *   └───────────┘ └─────────────────────────┘
 *
 * The daemon has something to do for both; a client and a server that wait can well take turns.
 * The kernel cannot know that, three that are always ready are three to it. So a thread that has
 * waited in the daemon's company for a while goes to another processor, if it may use one: for a
 * moment it may not use this one. If that does not help it waits twice as long each time.
 */
#include <sched.h>
#include <string.h>

#include "vrdma.h"

#define COMPANY_FIRST 250000ull    /* nanoseconds of waiting in the daemon's company, until the first move */
#define COMPANY_LAST 1000000000ull /* and at most between two moves */
#define APART 200000ull            /* so long without it, and it begins anew */

static __thread struct {
	uint64_t since, seen; /* the daemon was here from then until then */
	uint64_t enough;
} company __attribute__((tls_model("initial-exec")));

static bool affinity(cpu_set_t *set)
{
	CPU_ZERO(set);
	return sys(SYS_sched_getaffinity, 0, sizeof *set, set) > 0;
}

static void leave(void)
{
	cpu_set_t may, others, now;
	sigmask old = signals_block(); /* a handler need not return */
	int here = sched_getcpu();
	if (here >= 0 && here < CPU_SETSIZE && affinity(&may)) {
		others = may;
		CPU_CLR((unsigned)here, &others);
		/* The program must not see this change, so it is undone, unless another change came since. */
		if (CPU_COUNT(&others) && sys(SYS_sched_setaffinity, 0, sizeof others, &others) == 0 &&
		    affinity(&now) && CPU_EQUAL(&now, &others))
			sys(SYS_sched_setaffinity, 0, sizeof may, &may);
	}
	signals_restore(old);
}

void place_shared(uint64_t now)
{
	if (now - company.seen > COMPANY_LAST)
		company.enough = COMPANY_FIRST;
	if (now - company.seen > APART)
		company.since = now;
	company.seen = now;
	if (now - company.since < company.enough)
		return;
	company.since = now;
	if (company.enough < COMPANY_LAST)
		company.enough *= 2;
	leave();
}
