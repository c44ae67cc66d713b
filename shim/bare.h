/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads and processes that share our memory and that no libc knows. Such a thread
 * has no thread local storage of its own: it may use bare system calls and its stack,
 * nothing else, and it ends with SYS_exit. All signals must be blocked when it starts.
 */
#ifndef VRDMA_BARE_H
#define VRDMA_BARE_H

#include <linux/futex.h>

#include "vrdma.h"

/* flags as for clone(2), with CLONE_PARENT_SETTID and CLONE_CHILD_CLEARTID. Its id, or -errno. */
static inline long clone_bare(void (*run)(void), void *stack_top, unsigned long flags, _Atomic int *tid)
{
#if defined(__x86_64__)
	long r;
	register long r10 __asm__("r10") = (long)tid;
	register long r8 __asm__("r8") = 0;
	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "call *%[run]\n\t"
			 "1:"
			 : "=a"(r)
			 : "a"((long)SYS_clone), "D"(flags), "S"(stack_top), "d"(tid), "r"(r10), "r"(r8),
			   [run] "b"(run)
			 : "rcx", "r11", "memory");
	return r;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = SYS_clone;
	register long x0 __asm__("x0") = (long)flags;
	register void *x1 __asm__("x1") = stack_top;
	register void *x2 __asm__("x2") = tid;
	register long x3 __asm__("x3") = 0;
	register void *x4 __asm__("x4") = tid;
	register void *x9 __asm__("x9") = (void *)run;
	__asm__ volatile("svc 0\n\t"
			 "cbnz x0, 1f\n\t"
			 "blr x9\n\t"
			 "1:"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x9)
			 : "memory", "cc");
	return x0;
#endif
}

/* Waits until it has ended. */
static inline void join_bare(_Atomic int *tid)
{
	int t;
	while ((t = atomic_load(tid)) != 0)
		sys(SYS_futex, tid, FUTEX_WAIT, t, NULL, NULL, 0);
}

#endif
