/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may look into this process. Where the Yama security module runs (Debian, Ubuntu,
 * Fedora and most others have it, with ptrace_scope 1), a process may be debugged by its
 * ancestors and by one other that it names. The daemon is no ancestor, and opens our memory
 * when we introduce ourselves; the helper of halt.c is a child. Each is allowed for as
 * long as it takes: afterwards the daemon has its descriptor.
 *
 *   connect ── allow(daemon) ── hello ── the daemon opens our memory ── welcome ── forbid
 *
 * Without Yama these calls fail and nothing is lost. What the program itself had named is
 * forgotten: the kernel does not say what that was.
 */
#ifndef VRDMA_TRACER_H
#define VRDMA_TRACER_H

#include <sys/prctl.h>

#include "sys.h"

/*
 * A process is named by its number in our pid namespace. One that has none there (the daemon
 * of a container's host) cannot be named: then anybody of our user may, for that moment.
 */
static inline void tracer_allow(long pid)
{
	if (pid <= 0 || sys(SYS_prctl, PR_SET_PTRACER, pid, 0, 0, 0) < 0)
		sys(SYS_prctl, PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

static inline void tracer_forbid(void)
{
	sys(SYS_prctl, PR_SET_PTRACER, 0, 0, 0, 0);
}

#endif
