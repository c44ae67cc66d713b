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
 * Without Yama these calls fail and nothing is lost. There can be one such process only, so
 * forbid names the program's own choice again, which calls.c sees in prctl. (A choice made by a bare
 * system call is lost: the kernel does not tell it.)
 */
#ifndef VRDMA_TRACER_H
#define VRDMA_TRACER_H

void tracer_named(unsigned long pid); /* the program has allowed it */

/*
 * A process is named by its number in our pid namespace. One that has none there (the daemon
 * of a container's host) cannot be named: then anybody of our user may, for that moment.
 */
void tracer_allow(long pid);
void tracer_forbid(void);

#endif
