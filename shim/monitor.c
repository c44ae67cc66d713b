/* SPDX-License-Identifier: Apache-2.0 */
/*
 * While a thread forks, writers of shared memory are held back, but that thread
 * itself runs other people's code (atfork handlers, malloc's locks) and must not
 * wait for itself. The monitor reads the faults and releases the pages of those
 * that are the forking thread's.
 *
 * It is a bare thread: no libc knows it, it has no thread local storage of its own,
 * and all signals are blocked in it because they are in its creator. So it uses
 * bare system calls only.
 */
#include "monitor.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>

static struct {
	struct guard *guard;
	void (*own_write)(uint64_t page);
	uint32_t owner;  /* the thread whose writes go through */
	_Atomic int tid; /* the kernel clears it when the monitor is gone */
	int stop;        /* eventfd */
	unsigned char stack[8192] __attribute__((aligned(16)));
} monitor = {.stop = -1};

static void run(void)
{
	struct pollfd p[2] = {{.fd = monitor.guard->fd, .events = POLLIN},
			      {.fd = monitor.stop, .events = POLLIN}};
	uint64_t page;
	uint32_t thread;

	for (;;) {
		long r = sys(SYS_ppoll, p, 2, NULL, NULL, 8);
		if (r > 0 && p[1].revents)
			break;
		if (r > 0 && (p[0].revents & POLLIN) && guard_fault(monitor.guard, &page, &thread) &&
		    thread == monitor.owner) {
			monitor.own_write(page);
			guard_release_page(monitor.guard, page);
		}
	}
	for (;;)
		sys(SYS_exit, 0);
}

static long clone_thread(void *stack_top, unsigned long flags, _Atomic int *tid)
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

bool monitor_start(struct guard *g, void (*own_write)(uint64_t page))
{
	const unsigned long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
				    CLONE_SYSVSEM | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
	monitor.guard = g;
	monitor.own_write = own_write;
	monitor.owner = (uint32_t)sys(SYS_gettid);
	monitor.stop = (int)sys(SYS_eventfd2, 0, O_CLOEXEC);
	if (monitor.stop < 0)
		return false;
	if (clone_thread(monitor.stack + sizeof monitor.stack, flags, &monitor.tid) > 0)
		return true;
	sys(SYS_close, monitor.stop);
	return false;
}

void monitor_stop(void)
{
	uint64_t one = 1;
	int tid;
	sys(SYS_write, monitor.stop, &one, sizeof one);
	while ((tid = atomic_load(&monitor.tid)) != 0)
		sys(SYS_futex, &monitor.tid, FUTEX_WAIT, tid, NULL, NULL, 0);
	sys(SYS_close, monitor.stop);
}

void monitor_child(void)
{
	atomic_store(&monitor.tid, 0);
	sys(SYS_close, monitor.stop);
}
