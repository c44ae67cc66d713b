/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process that may trace this one. With the Yama security module (Debian, Ubuntu, Fedora
 * and most others have it, with ptrace_scope 1), the tracer of a process must be an ancestor,
 * or the one process that it names with PR_SET_PTRACER. The daemon, which opens our memory
 * after our hello, is no ancestor, nor is the helper of halt.c, a child. Each is named only
 * while it needs access: afterwards the daemon has its descriptor.
 *
 *   connect ── allow(daemon) ── hello ── the daemon opens our memory ── welcome ── forbid
 *
 * Without Yama these calls fail, without harm. A process can name only one tracer. So forbid
 * names the program's own choice again, which calls.c sees in prctl. (A choice made by a direct
 * system call is lost: the kernel does not report it.)
 */
#ifndef VRDMA_TRACER_H
#define VRDMA_TRACER_H

void tracer_named(unsigned long pid); /* the program has allowed it */

/*
 * A process is named by its number in our PID namespace. A daemon outside of a container has no
 * number in the container's. Then every process of our user may trace us for that time.
 */
void tracer_allow(long pid);
void tracer_forbid(void);

#endif
