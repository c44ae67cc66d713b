/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A seccomp filter may answer a system call of ours with an error, or with death. The helper of
 * halt.c inherits the filters of its creator, and a halted thread that sleeps for a time is
 * continued by restart_syscall, which few lists of allowed calls name. So where there are filters,
 * a child makes each of these calls once. The child has memory of its own: on kernels before
 * 5.16, a process that a filter kills takes along all that share its memory. If it does not live to
 * the end, or is refused a call, the program is not halted.
 *
 * The answer holds until the thread has more filters. (Kernels before 5.9 do not say how many
 * there are; there it holds for good.) What remains: a filter of another thread alone, and a
 * filter that kills for clone. No child can try the latter. Programs with threads are allowed
 * clone, and filters look at its flags for namespaces only, of which we use none.
 *
 * What filters there are is read from /proc, because a filter may also kill for prctl.
 */
#include "filters.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "clock.h"

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif

/* Under memory_lock. */
static struct {
	long pid;    /* the process that tried */
	long number; /* of filters then */
	bool allow;
	char text[16384];
} filters;

/* The number behind name in /proc/thread-self/status; -1: it has no such line. */
static long field(const char *name)
{
	const char *at = strstr(filters.text, name);
	long v = 0;
	if (!at)
		return -1;
	for (at += strlen(name); *at >= '0' && *at <= '9'; at++)
		v = v * 10 + (*at - '0');
	return v;
}

/* How many filters this thread has; 1 if it has some, but the kernel does not say how many; -1: unknown. */
static long count(void)
{
	size_t n = 0;
	long got = 0;
	long fd = sys(SYS_openat, AT_FDCWD, "/proc/thread-self/status", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	while (n < sizeof filters.text - 1 &&
	       (got = sys(SYS_read, fd, filters.text + n, sizeof filters.text - 1 - n)) > 0)
		n += (size_t)got;
	sys(SYS_close, fd);
	filters.text[n] = 0;
	if (got != 0)
		return -1;
	if (field("\nSeccomp:\t") <= 0) /* a kernel without seccomp has no such line */
		return 0;
	long number = field("\nSeccomp_filters:\t");
	return number > 0 ? number : 1;
}

/* In the child: all calls that the helper makes, and the one that a halted thread makes. */
static int try_all(void)
{
	const struct rlimit none = {0};
	const struct timespec zero = {0};
	const uint64_t child = 1ull << (SIGCHLD - 1);
	uint32_t word = 0;
	char c;
	long r;

	sys(SYS_prlimit64, 0, RLIMIT_CORE, &none, NULL);
	if (sys(SYS_prctl, PR_SET_PDEATHSIG, 0, 0, 0, 0) != 0)
		return 1;
	sys(SYS_prctl, PR_SET_PTRACER, 0, 0, 0, 0); /* an error without Yama */
	if (sys(SYS_ptrace, PTRACE_SEIZE, 0, NULL, NULL) != -ESRCH)
		return 2;
	if (sys(SYS_restart_syscall) != -EINTR) /* nothing is to be restarted */
		return 3;
	if (sys(SYS_wait4, -1, NULL, WNOHANG | __WALL, NULL) != -ECHILD)
		return 4;
	if (sys(SYS_rt_sigtimedwait, &child, NULL, &zero, 8) != -EAGAIN)
		return 5;
	r = sys(SYS_openat, AT_FDCWD, "/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (r < 0)
		return 6;
	if (sys(SYS_lseek, r, 0, 0) != 0 || sys(SYS_getdents64, r, filters.text, 1024) <= 0)
		return 7;
	if (sys(SYS_newfstatat, r, "", filters.text, AT_EMPTY_PATH) != 0 || sys(SYS_close, r) != 0)
		return 8;
	if (sys(SYS_sched_yield) != 0 || sys(SYS_getppid) < 0 || sys(SYS_nanosleep, &zero, NULL) != 0)
		return 9;
	if (sys(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0) != 0)
		return 10;
	if (sys(SYS_readlinkat, AT_FDCWD, "/proc/self", &c, 1) != 1 || !clock_now())
		return 11;
#if defined(__x86_64__)
	/* repeat.c asks descriptors of the program. */
	if (sys(SYS_getsockopt, -1, 1, 3, filters.text, &word) != -EBADF || sys(SYS_fstat, -1, filters.text) != -EBADF)
		return 12;
#endif
	return 0;
}

bool filters_survive(int (*try)(void))
{
	int status = -1;
	long pid = sys(SYS_clone, 0, 0, 0, 0, 0); /* as fork, and no exit signal */
	if (pid == 0)
		for (int r = try();;)
			sys(SYS_exit_group, r);
	return pid > 0 && sys(SYS_wait4, pid, &status, __WALL, NULL) == pid && status == 0;
}

bool filters_allow(void)
{
	long pid = sys(SYS_getpid), number = count();
	if (number <= 0)
		return number == 0;
	if (filters.pid != pid || filters.number != number) {
		filters.pid = pid;
		filters.number = number;
		filters.allow = filters_survive(try_all);
	}
	return filters.allow;
}
