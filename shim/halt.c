/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Halting all other threads while pages are replaced: by ptrace, from a helper process that
 * shares our memory, because no thread may trace another thread of its own process.
 *
 *   halt_begin                    the helper
 *   clone ──────────────────────▶ for each thread in /proc/self/task: SEIZE, INTERRUPT
 *                                 wait until each has stopped; repeat until no thread is new
 *   ◀────────────────── HALTED ── (or FAILED: some thread did not stop in time)
 *   the caller replaces pages
 *   halt_end ─────────── THAW ──▶ DETACH each thread, exit
 *
 * A stopped thread is between two instructions or at the end of a system call. No signal
 * handler runs and no signal is sent, so the program sees nothing of it but the time:
 *
 * - System calls. INTERRUPT ends a sleep as a signal does. The kernel repeats most calls by
 *   itself; repeat.c makes it repeat the others. A signal that arrives at the same time is
 *   delivered once, by the kernel. A thread that was about to receive one stops with the signal
 *   in its hand (signal-delivery-stop), and DETACH passes it on, siginfo included.
 * - Job control. A thread in group-stop stays there: the kernel restores the group-stop at DETACH,
 *   also one that came while the thread was halted. If the owner is stopped in the middle of a halt,
 *   the helper lets the halted threads take part (take_part_in_stop).
 * - New threads. Only a running thread makes a thread. The list is read again until it names no
 *   thread that is not halted, or the number of threads equals the number of halted ones.
 * - Ending threads. wait4 reports their end. A first thread that has ended while others live is
 *   never reported; /proc says so. An exec ends all threads, the owner of the halt included, and
 *   with it the helper (PR_SET_PDEATHSIG); no thread of the new program is touched.
 * - wait() and SIGCHLD of the program. The helper's exit signal is 0, so wait4 without __WALL or
 *   __WCLONE does not see it (nor is ECHILD withheld), and its end sends no signal.
 * - Debuggers. CLONE_UNTRACED keeps the helper from a debugger that follows forks.
 *
 * The stop is bounded. A thread in an uninterruptible sleep, a vfork parent, or a thread that waits
 * for a halted thread (a FUSE or userfaultfd server) does not stop. After LIMIT the helper detaches
 * the stopped threads and answers FAILED; halt_begin tries TRIES times. A thread that was
 * told to stop and has not cannot be detached: were the helper to exit, the thread's system call
 * would return EINTR. So the helper stays, in the background, until that thread stops, and
 * detaches it then. Meanwhile halt_begin returns false at once.
 *
 * If the process is killed, PR_SET_PDEATHSIG kills the helper; if the process ends before the helper has set that, the helper
 * notices it while it waits for ALLOWED (await_allowed). If the helper is killed, the kernel
 * detaches all threads: before HALTED the owner sees that the helper is gone and returns false.
 * After HALTED it could not know in time, and writes would be lost silently. So from HALTED to
 * THAW the helper holds a thread with PTRACE_O_EXITKILL: if the helper alone is killed, the program
 * is killed, too.
 *
 * ptrace is refused under a debugger (gdb, strace, rr), to a process that is not dumpable
 * (PR_SET_DUMPABLE, setuid without exec), by Yama 2 and 3, and by seccomp filters (filters.c).
 * Then the first SEIZE fails, and halt_begin returns false without trying again for REFUSED_FOR.
 * So it is where clone fails (RLIMIT_NPROC), where /proc is missing or another pid namespace's, beyond
 * THREADS_MAX threads, and under valgrind.
 *
 * What remains visible: getrusage(RUSAGE_CHILDREN) contains the helper's time; wait4 with __WALL or
 * __WCLONE may return the helper; a setuid program that a thread executes within the
 * microseconds before it stops gets no privileges, as under every tracer.
 *
 * The helper runs on a static stack, uses bare system calls and static data, and touches no
 * memory of the program, so it does not matter which pages are replaced.
 */
#include "halt.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "bare.h"
#include "clock.h"
#include "filters.h"
#include "memory.h"
#include "repeat.h"
#include "tracer.h"

#define THREADS_MAX 16384
#define SEATS (4 * THREADS_MAX) /* of the hash table */
#define STOPPED_BY_INTERRUPT 128 /* PTRACE_EVENT_STOP */
#ifndef PTRACE_O_EXITKILL
#define PTRACE_O_EXITKILL (1 << 20)
#endif
#define YIELDS 256             /* some 100 us: the awaited event usually takes less than a sleep */
#define YIELD_MAX (30 * US)    /* a yield that takes longer found a busy machine: sleep instead */
#define LIMIT (15 * MS)        /* for all threads to stop, on a processor that is not overloaded */
#define LIMIT_LOADED (1000 * MS) /* the same on one that is: time without a processor counts to here only */
#define LOOK_EVERY (100 * US)
#define TRIES 3
#define REFUSED_FOR (100 * MS)

enum phase { STARTING, ALLOWED, ABANDONED, ARMING, HALTED, FAILED, REFUSED, THAW };

enum state { TOLD, STOPPED, GONE };

struct thread {
	int tid;
	uint8_t state;  /* enum state */
	uint8_t signal; /* that it was about to receive */
};

/* Under memory_lock. */
static struct {
	_Atomic int phase;
	_Atomic int tid; /* the helper; the kernel clears it when it is gone */
	long pid;        /* the helper, until it is reaped; 0: none */
	long parent;
	int owner;       /* the thread that goes on */
	char tasks[32];  /* the directory of the threads, and the helper's descriptor of it */
	long dir;
	uint64_t refused_until;
	struct thread threads[THREADS_MAX];
	unsigned n;
	bool stays; /* the helper, for threads that were told to stop and have not */
	struct {
		int tid;
		uint32_t round;
	} seats[SEATS];
	uint32_t round;
	unsigned taken; /* seats */
	uint64_t deadline, last, latest;
	uint64_t nonce; /* differs from halt to halt, and from process to process */
	unsigned yields;
	unsigned char stack[16384] __attribute__((aligned(16)));
} halter;

static void set_phase(enum phase p)
{
	atomic_store(&halter.phase, (int)p);
	sys(SYS_futex, &halter.phase, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static bool in_phase(enum phase p)
{
	return atomic_load(&halter.phase) == (int)p && atomic_load(&halter.tid);
}

/* Lets others run for a moment; false: it is better to sleep. */
static bool yield(unsigned *yields)
{
	uint64_t before = clock_now();
	if (*yields >= YIELDS)
		return false;
	sys(SYS_sched_yield);
	*yields = clock_now() - before > YIELD_MAX ? YIELDS : *yields + 1;
	return true;
}

/* Waits for another phase than p, for the helper's end, or until times_out, if it is not 0. */
static void await(enum phase p, uint64_t times_out)
{
	const struct timespec often = {.tv_nsec = 10 * MS};
	unsigned yields = 0;
	while (in_phase(p) && yield(&yields))
		;
	while (in_phase(p) && (!times_out || clock_now() < times_out))
		sys(SYS_futex, &halter.phase, FUTEX_WAIT, p, &often, NULL, 0);
}

/* ---- the helper: which threads there are ---- */

/* Enters a thread into the hash table; false: it was there already. The table is never full. */
static bool enter(int tid)
{
	for (unsigned i = (unsigned)tid * 2654435761u % SEATS;; i = (i + 1) % SEATS) {
		if (halter.seats[i].round == halter.round && halter.seats[i].tid == tid)
			return false;
		if (halter.seats[i].round != halter.round) {
			halter.seats[i].tid = tid;
			halter.seats[i].round = halter.round;
			halter.taken++;
			return true;
		}
	}
}

/* The state of a thread as /proc has it, 'X' if there is none: "123 (name) Z ..." */
static char state(int tid)
{
	char path[32], text[64] = {0};
	size_t n = sizeof path - sizeof "/stat";
	memcpy(path + n, "/stat", sizeof "/stat");
	for (int t = tid; t && n; t /= 10)
		path[--n] = (char)('0' + t % 10);
	long fd = sys(SYS_openat, halter.dir, path + n, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 'X';
	long got = sys(SYS_read, fd, text, sizeof text - 1);
	sys(SYS_close, fd);
	for (; got > 2; got--) /* the name may hold anything, the rest are numbers */
		if (text[got - 1] == ')')
			return text[got + 1];
	return 'X';
}

/* Has it ended, and is only not yet released? */
static bool ended(int tid)
{
	char s = state(tid);
	return s == 'Z' || s == 'X';
}

/* Tells one thread to stop. False: it cannot be done. */
static bool interrupt(int tid)
{
	if (halter.n == THREADS_MAX || halter.taken == SEATS / 2)
		return false;
	long r = sys(SYS_ptrace, PTRACE_SEIZE, tid, NULL, NULL);
	if (r < 0) /* the kernel says EPERM also of a thread that is at its end */
		return r == -ESRCH || ended(tid);
	sys(SYS_ptrace, PTRACE_INTERRUPT, tid, NULL, NULL);
	halter.threads[halter.n++] = (struct thread){.tid = tid, .state = TOLD};
	return true;
}

/* Reads the list of threads once, and interrupts the new ones. False: that failed. */
static bool interrupt_listed(void)
{
	struct entry {
		uint64_t ino, off;
		uint16_t length;
		uint8_t type;
		char name[];
	} __attribute__((packed)) *e;
	char list[4096];
	long n;

	sys(SYS_lseek, halter.dir, 0, 0);
	while ((n = sys(SYS_getdents64, halter.dir, list, sizeof list)) > 0)
		for (long i = 0; i < n; i += e->length) {
			int tid = 0;
			e = (struct entry *)(void *)(list + i);
			for (const char *c = e->name; *c >= '0' && *c <= '9'; c++)
				tid = tid * 10 + (*c - '0');
			if (tid && tid != halter.owner && enter(tid) && !interrupt(tid))
				return false;
		}
	return n == 0;
}

/* ---- the helper: waiting until they have stopped ---- */

/* Checks whether a thread that was interrupted has stopped or ended. */
static void look(struct thread *t)
{
	int status = 0;
	long r = sys(SYS_wait4, t->tid, &status, WNOHANG | __WALL, NULL);
	if (r == 0)
		return;
	if (r != t->tid || !WIFSTOPPED(status)) {
		t->state = GONE;
		return;
	}
	t->state = STOPPED;
	t->signal = status >> 16 == STOPPED_BY_INTERRUPT ? 0 : (uint8_t)WSTOPSIG(status);
	if (t->signal || WSTOPSIG(status) == SIGTRAP) /* else group-stop, which interrupts calls as always */
		repeat_interrupted(t->tid, halter.last, &halter.nonce);
}

/* Sleeps until some thread's state changes, or so long. */
static void sleep_at_most(uint64_t ns)
{
	const uint64_t child = 1ull << (SIGCHLD - 1);
	struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
	sys(SYS_rt_sigtimedwait, &child, NULL, &t, 8);
}

/*
 * Passes some time; false: t had enough. On an overloaded machine, or in a control group that has
 * used up its share, neither the helper nor t runs: such time does not count.
 */
static bool pass_time(const struct thread *t)
{
	if (!yield(&halter.yields))
		sleep_at_most(LOOK_EVERY);
	uint64_t now = clock_now();
	if (now - halter.last > 5 * LOOK_EVERY)
		halter.deadline += now - halter.last;
	halter.last = now;
	if (now >= halter.deadline && state(t->tid) == 'R')
		halter.deadline = now + MS;
	return now < halter.deadline && now < halter.latest;
}

/* Waits until the threads from first on have stopped. All were interrupted before, so they stop together. */
static bool await_stops(unsigned first)
{
	bool in_time = true;
	for (unsigned i = first; i < halter.n; i++) {
		struct thread *t = &halter.threads[i];
		for (look(t); t->state == TOLD && in_time; look(t)) {
			in_time = pass_time(t);
			if (halter.yields == YIELDS && t->tid == halter.parent && ended(t->tid))
				t->state = GONE;
		}
	}
	return in_time;
}

/* Is every thread but the owner halted, as their number says? */
static bool all_counted(void)
{
	struct stat st;
	unsigned stopped = 0;
	for (unsigned i = 0; i < halter.n; i++)
		stopped += halter.threads[i].state == STOPPED;
	return sys(SYS_newfstatat, halter.dir, "", &st, AT_EMPTY_PATH) == 0 && st.st_nlink == stopped + 3;
}

static enum phase halt_all(void)
{
	unsigned before = 0;
	do {
		before = halter.n;
		if (!interrupt_listed())
			return REFUSED;
		if (!await_stops(before) || clock_now() > halter.latest)
			return FAILED;
	} while (halter.n != before && !all_counted()); /* those that end now may have made others */
	return HALTED;
}

/* ---- the helper: letting go ---- */

static unsigned release(void)
{
	unsigned told = 0;
	for (unsigned i = 0; i < halter.n; i++) {
		struct thread *t = &halter.threads[i];
		if (t->state == TOLD)
			look(t);
		if (t->state == STOPPED) {
			sys(SYS_ptrace, PTRACE_DETACH, t->tid, NULL, (long)t->signal);
			t->state = GONE;
		}
		told += t->state == TOLD;
	}
	return told;
}

/* Stays for the threads that have not stopped yet. */
static void linger(void)
{
	uint64_t nap = LOOK_EVERY;
	if (!release())
		return;
	sys(SYS_prctl, PR_SET_PDEATHSIG, 0, 0, 0, 0); /* the owner may end before the process does */
	while (release() && sys(SYS_getppid) == halter.parent) {
		sleep_at_most(nap);
		nap = nap < 20 * MS ? nap * 2 : nap;
		halter.last = clock_now();
	}
}

/*
 * The process is being stopped (SIGSTOP, Ctrl-Z), the owner of the halt already is. The stop is
 * complete, and reported to the shell, when every thread has taken part. So each halted thread is sent
 * into a second halt, on the way to which it does; it executes no instruction in between.
 */
static void take_part_in_stop(void)
{
	for (unsigned i = 0; i < halter.n; i++) {
		struct thread *t = &halter.threads[i];
		if (t->state != STOPPED)
			continue;
		sys(SYS_ptrace, PTRACE_INTERRUPT, t->tid, NULL, NULL);
		sys(SYS_ptrace, PTRACE_CONT, t->tid, NULL, (long)t->signal);
		t->state = TOLD;
	}
	for (unsigned i = 0; i < halter.n; i++)
		for (look(&halter.threads[i]); halter.threads[i].state == TOLD; look(&halter.threads[i]))
			sleep_at_most(LOOK_EVERY);
}

/* Keeps the threads halted until the owner is done. */
static void keep_halted(void)
{
	bool stopped = false;
	while (in_phase(HALTED) && sys(SYS_getppid) == halter.parent) {
		await(HALTED, clock_now() + 20 * MS);
		bool now = in_phase(HALTED) && state(halter.owner) == 'T';
		if (now && !stopped)
			take_part_in_stop();
		stopped = now;
	}
}

/*
 * All threads are halted. From now on the program dies if the helper alone is killed. False: the owner
 * does not wait any more. An exec may have ended the owner before the helper set PDEATHSIG; then these
 * are threads of another program.
 */
static bool arm(void)
{
	int allowed = ALLOWED;
	if (!atomic_compare_exchange_strong(&halter.phase, &allowed, ARMING))
		return false;
	for (unsigned i = 0; i < halter.n; i++)
		if (halter.threads[i].state == STOPPED)
			return repeat_shares(halter.threads[i].tid, &halter.nonce) &&
			       sys(SYS_ptrace, PTRACE_SETOPTIONS, halter.threads[i].tid, NULL,
				   PTRACE_O_EXITKILL) == 0;
	return true; /* there was nobody to halt */
}

/*
 * Waits until the owner lets the helper trace its process. False: the owner has ended before the helper set PDEATHSIG.
 * An exit changes the parent; an exec does not, and shows by the time. In a pid namespace of its own the helper
 * sees no parent.
 */
static bool await_allowed(void)
{
	uint64_t latest = clock_now() + 4 * LIMIT_LOADED;
	while (in_phase(STARTING)) {
		uint64_t now = clock_now();
		long parent = sys(SYS_getppid);
		if (now >= latest || (parent && parent != halter.parent))
			return false;
		await(STARTING, now + 10 * MS);
	}
	return true;
}

static _Noreturn void leave(void)
{
	for (;;)
		sys(SYS_exit, 0);
}

static void run(void)
{
	struct {
		void (*handler)(int);
		unsigned long flags;
		void (*restorer)(void);
		uint64_t mask;
	} action = {.handler = SIG_DFL};
	/* If the process is killed, there are no threads to halt. */
	sys(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	sys(SYS_rt_sigaction, SIGCHLD, &action, NULL, 8); /* ignored, it would not end our sleep */
	if (!await_allowed())
		leave();
	halter.last = clock_now();
	halter.deadline = halter.last + LIMIT;
	halter.latest = halter.last + LIMIT_LOADED;
	halter.dir = sys(SYS_openat, AT_FDCWD, halter.tasks, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	enum phase p = halter.dir >= 0 && sys(SYS_getppid) == halter.parent ? halt_all() : REFUSED;
	if (p == HALTED && arm()) {
		set_phase(HALTED);
		keep_halted();
	} else {
		halter.stays = release();
		set_phase(p == REFUSED ? REFUSED : FAILED);
	}
	if (halter.dir >= 0)
		sys(SYS_close, halter.dir);
	linger();
	leave();
}

/* ---- the owner ---- */

/* Forgets a helper that has ended; false: it stays for a thread that has not stopped yet. */
static bool reap(bool wait)
{
	unsigned yields = 0;
	while (wait && atomic_load(&halter.tid) && yield(&yields))
		;
	if (wait)
		join_bare(&halter.tid);
	if (atomic_load(&halter.tid))
		return false;
	if (halter.pid)
		sys(SYS_wait4, halter.pid, NULL, __WALL, NULL);
	halter.pid = 0;
	return true;
}

/* Whether /proc is there, and numbers processes as our pid namespace does. */
static bool find_tasks(void)
{
	char text[16] = {0};
	long pid = 0;
	if (sys(SYS_readlinkat, AT_FDCWD, "/proc/self", text, sizeof text - 1) <= 0)
		return false;
	for (const char *c = text; *c >= '0' && *c <= '9'; c++)
		pid = pid * 10 + (*c - '0');
	snprintf(halter.tasks, sizeof halter.tasks, "/proc/%ld/task", pid);
	return pid == halter.parent;
}

/* One attempt: HALTED, FAILED or REFUSED. */
static enum phase attempt(void)
{
	const unsigned long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_UNTRACED |
				    CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
	int allowed = ALLOWED;
	if (!reap(false))
		return FAILED;
	halter.n = halter.taken = halter.yields = 0;
	halter.stays = false;
	halter.nonce = clock_now() ^ (uint64_t)halter.parent << 48;
	halter.round++;
	if (!find_tasks())
		return REFUSED;
	atomic_store(&halter.phase, STARTING);
	halter.pid = clone_bare(run, halter.stack + sizeof halter.stack, flags, &halter.tid);
	if (halter.pid < 0) {
		halter.pid = 0;
		return REFUSED;
	}
	tracer_allow(halter.pid); /* Yama lets parents trace their children, not the reverse */
	set_phase(ALLOWED);
	await(ALLOWED, clock_now() + 4 * LIMIT_LOADED);
	if (!atomic_compare_exchange_strong(&halter.phase, &allowed, ABANDONED))
		await(ARMING, 0);
	tracer_forbid();
	enum phase p = (enum phase)atomic_load(&halter.phase);
	if (p == HALTED && atomic_load(&halter.tid))
		return HALTED;
	reap((p == REFUSED || p == FAILED) && !halter.stays);
	return p == REFUSED ? REFUSED : FAILED;
}

/* Valgrind knows this sequence of instructions, which does nothing elsewhere. */
bool under_valgrind(void)
{
	volatile uint64_t request[6] = {0x1001}; /* RUNNING_ON_VALGRIND */
#if defined(__x86_64__)
	uint64_t answer = 0;
	__asm__ volatile("rolq $3, %%rdi\n\trolq $13, %%rdi\n\trolq $61, %%rdi\n\trolq $51, %%rdi\n\t"
			 "xchgq %%rbx, %%rbx"
			 : "+d"(answer)
			 : "a"(request)
			 : "cc", "memory");
	return answer;
#elif defined(__aarch64__)
	register uint64_t answer __asm__("x3") = 0;
	register volatile uint64_t *at __asm__("x4") = request;
	__asm__ volatile("ror x12, x12, #3\n\tror x12, x12, #13\n\tror x12, x12, #51\n\tror x12, x12, #61\n\t"
			 "orr x10, x10, x10"
			 : "+r"(answer)
			 : "r"(at)
			 : "cc", "memory");
	return answer;
#endif
}

bool halt_begin(void)
{
	enum phase p = FAILED;
	long pid = sys(SYS_getpid);
	if (halter.parent != pid) { /* in a fork child there is no helper, whatever the parent had */
		halter.parent = pid;
		halter.pid = 0;
		atomic_store(&halter.tid, 0);
	}
	halter.owner = (int)sys(SYS_gettid);
	reap(false); /* one that has stayed, and is done */
	if (under_valgrind() || halt_shared() || !filters_allow() || clock_now() < halter.refused_until)
		return false;
	for (int i = 0; i < TRIES && p == FAILED; i++) {
		if (i)
			clock_sleep((uint64_t)i * 2 * MS);
		p = attempt();
		if (p != HALTED && p != FAILED)
			halter.refused_until = clock_now() + REFUSED_FOR;
	}
	return p == HALTED;
}

void halt_end(void)
{
	set_phase(THAW);
	reap(true);
}

/* ---- processes that share our memory ---- */

static _Atomic long sharer; /* the process that made one */

bool halt_shared(void)
{
	long pid = atomic_load(&sharer);
	return pid && pid == sys(SYS_getpid);
}

void halt_cloned(unsigned long flags)
{
	if ((flags & (CLONE_VM | CLONE_THREAD | CLONE_VFORK)) == CLONE_VM)
		atomic_store(&sharer, sys(SYS_getpid));
}

#ifdef HALT_TEST
/* For tests: halts once, and returns whether that succeeded. */
EXPORT bool vrdma_halt(void (*halted)(void *), void *arg);
EXPORT bool vrdma_halt(void (*halted)(void *), void *arg)
{
	sigmask mask = signals_block();
	pthread_mutex_lock(&memory_lock);
	bool ok = halt_begin();
	if (ok) {
		if (halted)
			halted(arg);
		halt_end();
	}
	pthread_mutex_unlock(&memory_lock);
	signals_restore(mask);
	return ok;
}
#endif
