/* SPDX-License-Identifier: Apache-2.0 */
/*
 * While a thread forks, writers of shared memory are held back, but that thread
 * itself runs other people's code (atfork handlers, malloc's locks). It must not wait
 * for itself, nor for a lock whose owner is held back. The monitor reads the faults
 * and releases
 *
 *   the pages that the forking thread writes to, at once;
 *   pages of the heap that others write to, when the forking thread sleeps on a lock
 *   of that heap (libc takes malloc's locks before it forks);
 *   any page, one by one, when it has slept or otherwise taken long.
 *
 * What is then written goes to a private copy of the page, and from there to the
 * shared page when the fork is over (fork.c merges it). Until then the daemon and this
 * process see different bytes there, so as few pages as possible are released.
 *
 * It is a bare thread: no libc knows it, it has no thread local storage of its own,
 * and all signals are blocked in it because they are in its creator. So it uses
 * bare system calls only.
 */
#include "monitor.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>

#include "bare.h"

#if defined(__x86_64__)
#define FUTEX_TEXT "202 0x"
#else
#define FUTEX_TEXT "98 0x"
#endif
#define PENDING_MAX 1024       /* as many threads can be held at once */
#define LOOK_EVERY 1000000l    /* ns between looks at the forking thread, while others wait */
#define LOOKS_ASLEEP 1000      /* then others go on although they seem unconcerned, */
#define LOOKS_AWAKE 5000       /* or although the forking thread seems busy */
#define ARENA (64ul << 20)     /* malloc's other heaps: their size and alignment */

static struct {
	struct guard *guard;
	void (*before_write)(uint64_t page);
	uint32_t owner;     /* the thread that forks */
	char syscall[64];   /* /proc file: the system call that it sleeps in */
	uint64_t pending[PENDING_MAX]; /* pages whose writers wait */
	unsigned npending, looks;
	_Atomic bool lenient, busy;
	_Atomic int tid; /* the kernel clears it when the monitor is gone */
	int stop;        /* eventfd */
	unsigned char stack[8192] __attribute__((aligned(16)));
} monitor = {.stop = -1};

static void let(uint64_t page)
{
	monitor.before_write(page);
	guard_release_page(monitor.guard, page);
}

static void take_faults(void)
{
	uint64_t page;
	uint32_t thread;
	while (guard_fault(monitor.guard, &page, &thread)) {
		if (thread == monitor.owner)
			let(page);
		else if (monitor.npending < PENDING_MAX)
			monitor.pending[monitor.npending++] = page;
	}
}

/* The futex that the forking thread sleeps on; 0: it does not. "202 0x7f0012345678 ..." */
static uint64_t futex_of_owner(void)
{
	char text[64] = {0};
	const char *want = FUTEX_TEXT, *c = text;
	uint64_t v = 0;
	long fd = sys(SYS_openat, AT_FDCWD, monitor.syscall, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	sys(SYS_read, fd, text, sizeof text - 1);
	sys(SYS_close, fd);
	for (; *want; want++, c++)
		if (*c != *want)
			return 0;
	for (;; c++)
		if (*c >= '0' && *c <= '9')
			v = v * 16 + (uint64_t)(*c - '0');
		else if (*c >= 'a' && *c <= 'f')
			v = v * 16 + (uint64_t)(*c - 'a') + 10;
		else
			return v;
}

/* May the owner of this lock be the writer of this page? True for malloc's. */
static bool same_heap(uint64_t futex, uint64_t page)
{
	return page < (uint64_t)sys(SYS_brk, 0) || page / ARENA == futex / ARENA;
}

static void let_nth(unsigned i)
{
	uint64_t page = monitor.pending[i];
	monitor.pending[i] = monitor.pending[--monitor.npending];
	let(page);
}

static void let_others(void)
{
	atomic_store(&monitor.busy, true);
	if (atomic_load(&monitor.lenient)) {
		uint64_t futex = futex_of_owner();
		for (unsigned i = monitor.npending; futex && i--;)
			if (same_heap(futex, monitor.pending[i]))
				let_nth(i);
		monitor.looks++;
		if (monitor.npending && monitor.looks > (futex ? LOOKS_ASLEEP : LOOKS_AWAKE))
			let_nth(0);
	}
	atomic_store(&monitor.busy, false);
}

static void run(void)
{
	struct pollfd p[2] = {{.fd = monitor.guard->fd, .events = POLLIN},
			      {.fd = monitor.stop, .events = POLLIN}};
	struct timespec soon = {.tv_nsec = LOOK_EVERY};

	for (;;) {
		long r = sys(SYS_ppoll, p, 2, monitor.npending ? &soon : NULL, NULL, 8);
		if (r > 0 && p[1].revents)
			break;
		soon.tv_nsec = LOOK_EVERY; /* ppoll wrote the rest of the time there */
		if (r > 0)
			take_faults();
		else if (r == 0)
			let_others();
	}
	for (;;)
		sys(SYS_exit, 0);
}

bool monitor_start(struct guard *g, void (*before_write)(uint64_t page))
{
	const unsigned long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
				    CLONE_SYSVSEM | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
	monitor.guard = g;
	monitor.before_write = before_write;
	monitor.owner = (uint32_t)sys(SYS_gettid);
	monitor.npending = monitor.looks = 0;
	atomic_store(&monitor.lenient, false);
	snprintf(monitor.syscall, sizeof monitor.syscall, "/proc/self/task/%u/syscall", monitor.owner);
	monitor.stop = (int)sys(SYS_eventfd2, 0, O_CLOEXEC);
	if (monitor.stop < 0)
		return false;
	if (clone_bare(run, monitor.stack + sizeof monitor.stack, flags, &monitor.tid) > 0)
		return true;
	sys(SYS_close, monitor.stop);
	return false;
}

void monitor_stop(void)
{
	uint64_t one = 1;
	sys(SYS_write, monitor.stop, &one, sizeof one);
	join_bare(&monitor.tid);
	sys(SYS_close, monitor.stop);
}

void monitor_lenient(bool on)
{
	atomic_store(&monitor.lenient, on);
	while (!on && atomic_load(&monitor.busy))
		sys(SYS_sched_yield);
}

void monitor_child(void)
{
	atomic_store(&monitor.tid, 0);
	sys(SYS_close, monitor.stop);
}
