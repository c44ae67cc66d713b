/*
 * Where threads cannot be halted, halting says so soon and nobody is left stopped; and what
 * happens to a process that is stopped, killed or replaced while it is halted.
 *
 *   unhalted CASE
 */
#include "t.h"

#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static bool (*vrdma_halt)(void (*halted)(void *), void *arg); /* in the library */

/* Shared between the processes of a case. */
static struct {
	_Atomic uint64_t counter[3];
	_Atomic unsigned halted;
	_Atomic int helper;
	_Atomic int tid; /* of a thread that counts */
} *common;

static void nap(long us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000};
	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static void *increments(void *arg)
{
	common->tid = (int)syscall(SYS_gettid);
	for (;;) {
		++*(_Atomic uint64_t *)arg;
		nap(200);
	}
	return NULL;
}

static void *halts(void *arg)
{
	for (;;) {
		common->halted += vrdma_halt(NULL, NULL);
		nap(300);
	}
	return arg;
}

static void start(void *(*run)(void *), void *arg)
{
	pthread_t t;
	CHECK(pthread_create(&t, NULL, run, arg) == 0);
	pthread_detach(t);
}

/* Two threads that count. */
static void crowd(void)
{
	start(increments, &common->counter[0]);
	start(increments, &common->counter[1]);
}

/* All threads run. */
static void goes_on(void)
{
	for (int i = 0; i < 2; i++) {
		uint64_t before = common->counter[i];
		while (common->counter[i] == before)
			sched_yield();
	}
}

/*
 * Halting works, though not at once: a refusal is remembered for a moment, and the machine may be
 * busy.
 */
static void works(void)
{
	for (int i = 0; !vrdma_halt(NULL, NULL); i++) {
		CHECK(i < 1000);
		nap(20000);
	}
	goes_on();
}

static void fails(void)
{
	for (int i = 0; i < 20; i++) {
		CHECK(!vrdma_halt(NULL, NULL));
		goes_on();
	}
	/* A helper may have stayed for a thread that was slow to stop; the next halt reaps it. */
	siginfo_t info;
	for (int i = 0; waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0; i++) {
		CHECK(i < 1000);
		nap(10000);
		CHECK(!vrdma_halt(NULL, NULL));
	}
	CHECK(errno == ECHILD);
}

/* ---- ptrace is forbidden ---- */

static void case_tracer(void)
{
	int to[2], from[2], status;
	char c;
	CHECK(pipe(to) == 0 && pipe(from) == 0);
	pid_t pid = fork();
	if (pid == 0) { /* the program */
		crowd();
		works();
		CHECK(write(from[1], "1", 1) == 1 && read(to[0], &c, 1) == 1);
		fails(); /* the other side traces a thread */
		CHECK(write(from[1], "2", 1) == 1 && read(to[0], &c, 1) == 1);
		works();
		_exit(0);
	}
	CHECK(read(from[0], &c, 1) == 1);
	int tid = common->tid;
	CHECK(ptrace(PTRACE_SEIZE, tid, NULL, NULL) == 0);
	CHECK(write(to[1], "x", 1) == 1 && read(from[0], &c, 1) == 1);
	CHECK(ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) == 0);
	CHECK(waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status));
	CHECK(ptrace(PTRACE_DETACH, tid, NULL, NULL) == 0);
	CHECK(write(to[1], "x", 1) == 1);
	wait_ok(pid);
}

static void filter(unsigned call, unsigned answer)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, answer),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof code / sizeof *code, code};
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &prog) == 0);
}

static void case_filters(void)
{
	static const struct {
		unsigned call, answer;
		bool works;
	} tries[] = {
		{SYS_swapon, SECCOMP_RET_KILL_PROCESS, true},
		{SYS_ptrace, SECCOMP_RET_ERRNO | EPERM, false},
		{SYS_ptrace, SECCOMP_RET_KILL_PROCESS, false},
		{SYS_ptrace, SECCOMP_RET_KILL_THREAD, false},
		{SYS_restart_syscall, SECCOMP_RET_KILL_PROCESS, false},
		{SYS_restart_syscall, SECCOMP_RET_ERRNO | ENOSYS, false},
		{SYS_rt_sigtimedwait, SECCOMP_RET_KILL_PROCESS, false},
		{SYS_getdents64, SECCOMP_RET_ERRNO | EPERM, false},
		{SYS_clone, SECCOMP_RET_ERRNO | EPERM, false},
	};
	for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			crowd();
			works();
			filter(tries[i].call, tries[i].answer);
			if (tries[i].works)
				works();
			else
				fails();
			_exit(0);
		}
		wait_ok(pid);
	}
}

/* As an ordinary user. */
static void case_user(void)
{
	struct rlimit none = {0, 0};
	pid_t pid = fork();
	if (pid == 0) { /* no process more */
		CHECK(setresuid(65531, 65531, 65531) == 0 && prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
		crowd();
		works();
		CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
		fails();
		_exit(0);
	}
	wait_ok(pid);
	CHECK(setresuid(65532, 65532, 65532) == 0); /* without exec: not dumpable */
	crowd();
	fails();
	CHECK(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
	works();
	CHECK(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0);
	fails();
}

/* /proc of another pid namespace has other numbers. */
static void case_proc(void)
{
	int status;
	CHECK(unshare(CLONE_NEWPID) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		crowd();
		fails();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* Under valgrind, which aborts at unknown system calls. */
static void case_valgrind(void)
{
	crowd();
	fails();
}

/* ---- a process that shares the memory and is no thread ---- */

static int sleeps(void *arg)
{
	syscall(SYS_nanosleep, arg, NULL);
	return 0;
}

static void case_shared(void)
{
	static char stack[16384] __attribute__((aligned(16)));
	static struct timespec t = {0, 100000000};
	crowd();
	works();
	int pid = clone(sleeps, stack + sizeof stack, CLONE_VM | SIGCHLD, &t);
	CHECK(pid > 0);
	CHECK(!vrdma_halt(NULL, NULL));
	wait_ok(pid);
	pid = fork(); /* this child has its memory for itself */
	if (pid == 0) {
		crowd();
		works();
		_exit(0);
	}
	wait_ok(pid);
}

/* ---- job control ---- */

static void case_stop(void)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		crowd();
		halts(NULL);
	}
	while (common->halted < 5)
		nap(1000);
	for (int i = 0; i < 30; i++) {
		unsigned n = common->halted;
		CHECK(kill(pid, SIGSTOP) == 0);
		CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
		CHECK(WSTOPSIG(status) == SIGSTOP);
		nap(3000); /* a helper may still be at work */
		uint64_t a = common->counter[0], b = common->counter[1];
		nap(5000);
		CHECK(common->counter[0] == a && common->counter[1] == b);
		CHECK(kill(pid, SIGCONT) == 0);
		CHECK(waitpid(pid, &status, WCONTINUED) == pid && WIFCONTINUED(status));
		goes_on();
		while (common->halted == n)
			nap(500);
	}
	CHECK(kill(pid, SIGKILL) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && WTERMSIG(status) == SIGKILL);
}

/* ---- exec and exit at any moment ---- */

static void case_exec(void)
{
	char *args[] = {"/bin/true", NULL};
	for (int i = 0; i < 40; i++) {
		common->halted = 0;
		pid_t pid = fork();
		if (pid == 0) {
			crowd();
			start(halts, NULL);
			while (!common->halted)
				nap(100);
			nap(i * 37 % 900);
			if (i % 2)
				exit(0);
			unsetenv("LD_PRELOAD");
			execv(args[0], args);
			_exit(1);
		}
		wait_ok(pid);
	}
}

/* ---- death in the middle of a halt ---- */

static void note_helper(void *kill_it)
{
	char text[32] = {0};
	int fd = open("/proc/thread-self/children", O_RDONLY);
	CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
	int pid = atoi(text);
	CHECK(pid > 0);
	common->helper = pid;
	if (kill_it)
		CHECK(kill(pid, SIGKILL) == 0);
	for (;;)
		sched_yield();
}

/*
 * If the process is killed, the helper ends too. If the helper is killed, the process that relied
 * on it ends too.
 */
static void case_death(void)
{
	int status;
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
	for (int i = 0; i < 10; i++) {
		common->helper = 0;
		pid_t pid = fork();
		if (pid == 0) {
			crowd();
			for (;;)
				vrdma_halt(note_helper, i % 2 ? "x" : NULL);
		}
		while (!common->helper)
			nap(500);
		if (i % 2 == 0)
			CHECK(kill(pid, SIGKILL) == 0);
		CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		/* We are its parent now. */
		CHECK(waitpid(common->helper, &status, __WALL) == common->helper);
	}
	CHECK(waitpid(-1, NULL, __WALL) < 0 && errno == ECHILD);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
		{"tracer", case_tracer}, {"filters", case_filters}, {"user", case_user}, {"proc", case_proc},
		{"shared", case_shared}, {"stop", case_stop},	    {"exec", case_exec}, {"death", case_death},
		{"valgrind", case_valgrind},
	};
	CHECK(argc == 2);
	*(void **)&vrdma_halt = dlsym(RTLD_DEFAULT, "vrdma_halt");
	CHECK(vrdma_halt);
	common = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(common != MAP_FAILED);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return 0;
		}
	fprintf(stderr, "no case %s\n", argv[1]);
	return 2;
}
