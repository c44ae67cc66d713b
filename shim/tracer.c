/* SPDX-License-Identifier: Apache-2.0 */
#include "tracer.h"

#include <stdatomic.h>
#include <sys/prctl.h>

#include "sys.h"

/* What the program named, and which process did: a fork child begins without. */
static _Atomic unsigned long named;
static _Atomic long by;

void tracer_named(unsigned long pid)
{
	atomic_store(&named, pid);
	atomic_store(&by, sys(SYS_getpid));
}

void tracer_allow(long pid)
{
	if (pid <= 0 || sys(SYS_prctl, PR_SET_PTRACER, pid, 0, 0, 0) < 0)
		sys(SYS_prctl, PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

void tracer_forbid(void)
{
	unsigned long who = atomic_load(&by) == sys(SYS_getpid) ? atomic_load(&named) : 0;
	/* A process that has ended cannot be named any more. */
	if (sys(SYS_prctl, PR_SET_PTRACER, who, 0, 0, 0) < 0 && who)
		sys(SYS_prctl, PR_SET_PTRACER, 0, 0, 0, 0);
}
