/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where userfaultfd is missing or forbidden (Docker's seccomp profile), the other
 * threads are stopped while pages are replaced: by ptrace, from a helper process that
 * shares our memory, because no thread may trace another one of its own process. A
 * thread that is stopped so is between two instructions or two system calls, which
 * are restarted afterwards; no signal handler runs. Should the helper die, the kernel
 * lets everyone go.
 *
 * It fails where ptrace is forbidden too, and under a debugger.
 */
#include "halt.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "bare.h"
#include "tracer.h"

#define THREADS_MAX 4096
#define STOPPED_BY_INTERRUPT 128 /* PTRACE_EVENT_STOP */
/* Some 100 us: what is waited for usually takes less than to sleep and be woken. */
#define YIELDS 256

enum phase { STARTING, ALLOWED, HALTED, FAILED, THAWING };

/* Under memory_lock. */
static struct {
	_Atomic int phase;
	_Atomic int tid; /* the helper; the kernel clears it when it is gone */
	long pid, parent;
	int owner; /* the thread that goes on */
	char tasks[32];
	struct {
		int tid;
		int signal; /* that it was about to receive */
	} stopped[THREADS_MAX];
	unsigned n;
	unsigned char stack[16384] __attribute__((aligned(16)));
} halter;

static void set_phase(enum phase p)
{
	atomic_store(&halter.phase, (int)p);
	sys(SYS_futex, &halter.phase, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Waits for another phase than p, or for the helper's end, which is looked for at least that often. */
static void await(enum phase p, const struct timespec *often)
{
	for (int i = 0; i < YIELDS && atomic_load(&halter.phase) == (int)p && atomic_load(&halter.tid); i++)
		sys(SYS_sched_yield);
	while (atomic_load(&halter.phase) == (int)p && atomic_load(&halter.tid))
		sys(SYS_futex, &halter.phase, FUTEX_WAIT, p, often, NULL, 0);
}

static bool known(int tid)
{
	for (unsigned i = 0; i < halter.n; i++)
		if (halter.stopped[i].tid == tid)
			return true;
	return tid == halter.owner;
}

/* Has it ended, and is only not yet forgotten? "123 (name) Z ..." */
static bool ended(long dir, const char *tid)
{
	char path[32], text[64] = {0};
	size_t n = 0;
	for (; tid[n] && n < sizeof path - sizeof "/stat"; n++)
		path[n] = tid[n];
	memcpy(path + n, "/stat", sizeof "/stat");
	long fd = sys(SYS_openat, dir, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return true;
	long got = sys(SYS_read, fd, text, sizeof text - 1);
	sys(SYS_close, fd);
	for (; got > 2; got--) /* the name may hold anything, the rest are numbers */
		if (text[got - 1] == ')')
			return text[got + 1] == 'Z' || text[got + 1] == 'X';
	return true;
}

/* Tells one thread to stop. False: it cannot be done. */
static bool interrupt(long dir, const char *name, int tid)
{
	if (halter.n == THREADS_MAX)
		return false;
	long r = sys(SYS_ptrace, PTRACE_SEIZE, tid, NULL, NULL);
	if (r < 0) /* the kernel says EPERM also of a thread that is at its end */
		return r == -ESRCH || ended(dir, name);
	sys(SYS_ptrace, PTRACE_INTERRUPT, tid, NULL, NULL);
	halter.stopped[halter.n++].tid = tid;
	return true;
}

/* Waits until those from first on have stopped. All were told before: they stop at the same time. */
static void await_stops(unsigned first)
{
	unsigned n = halter.n;
	halter.n = first;
	for (unsigned i = first; i < n; i++) {
		int status = 0, tid = halter.stopped[i].tid;
		if (sys(SYS_wait4, tid, &status, __WALL, NULL) != tid || !WIFSTOPPED(status))
			continue; /* it ended */
		halter.stopped[halter.n].tid = tid;
		halter.stopped[halter.n++].signal = status >> 16 == STOPPED_BY_INTERRUPT ? 0 : WSTOPSIG(status);
	}
}

/* One reading of the list of threads. How many were new, or -1. */
static int stop_listed(long dir)
{
	struct entry {
		uint64_t ino, off;
		uint16_t length;
		uint8_t type;
		char name[];
	} __attribute__((packed)) *e;
	char list[2048];
	unsigned before = halter.n;
	bool ok = true;
	long n;

	sys(SYS_lseek, dir, 0, 0);
	while (ok && (n = sys(SYS_getdents64, dir, list, sizeof list)) > 0)
		for (long i = 0; ok && i < n; i += e->length) {
			int tid = 0;
			e = (struct entry *)(void *)(list + i);
			for (const char *c = e->name; *c >= '0' && *c <= '9'; c++)
				tid = tid * 10 + (*c - '0');
			if (tid && !known(tid))
				ok = interrupt(dir, e->name, tid);
		}
	int found = (int)(halter.n - before); /* counts those that end now: they may have made others */
	await_stops(before);
	return !ok || n < 0 ? -1 : found;
}

/* The helper. */
static void run(void)
{
	int r = -1;
	/* Should the process be killed, there is nobody left to stop. */
	sys(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	await(STARTING, NULL);
	long dir = sys(SYS_openat, AT_FDCWD, halter.tasks, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir >= 0 && sys(SYS_getppid) == halter.parent) {
		while ((r = stop_listed(dir)) > 0) /* a running thread may have made new ones */
			;
		sys(SYS_close, dir);
	}
	set_phase(r == 0 ? HALTED : FAILED);
	if (r == 0)
		await(HALTED, NULL);
	while (halter.n--)
		sys(SYS_ptrace, PTRACE_DETACH, halter.stopped[halter.n].tid, NULL,
		    (long)halter.stopped[halter.n].signal);
	for (;;)
		sys(SYS_exit, 0);
}

static void reap(void)
{
	for (int i = 0; i < YIELDS && atomic_load(&halter.tid); i++)
		sys(SYS_sched_yield);
	join_bare(&halter.tid);
	sys(SYS_wait4, halter.pid, NULL, __WALL, NULL);
	tracer_forbid();
}

bool halt_begin(void)
{
	const unsigned long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_PARENT_SETTID |
				    CLONE_CHILD_CLEARTID;
	halter.owner = (int)sys(SYS_gettid);
	halter.n = 0;
	halter.parent = sys(SYS_getpid);
	snprintf(halter.tasks, sizeof halter.tasks, "/proc/%ld/task", halter.parent);
	atomic_store(&halter.phase, STARTING);
	halter.pid = clone_bare(run, halter.stack + sizeof halter.stack, flags, &halter.tid);
	if (halter.pid < 0)
		return false;
	tracer_allow(halter.pid); /* Yama lets parents trace their children, not the reverse */
	set_phase(ALLOWED);
	const struct timespec often = {.tv_nsec = 50000000};
	await(ALLOWED, &often);
	if (atomic_load(&halter.phase) == HALTED)
		return true;
	reap();
	return false;
}

void halt_end(void)
{
	set_phase(THAWING);
	reap();
}
