/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs with registered memory do to their process: fork, exec, system(),
 * dup2, closing every descriptor, their own signal handlers.
 */
#include "vt.h"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>

static struct dev d;
static struct buf mem;
static struct couple c;

static void start(void)
{
	d = dev_open();
	mem = buf_new(&d, 65536, ALL_ACCESS);
	c = couple_new(&d, (struct opt){0});
	expect_alive(&c, &mem, "before");
}

static void finish(void)
{
	expect_alive(&c, &mem, "after");
	couple_free(&c);
	buf_free(&mem);
	dev_close(&d);
}

/* The child has a copy of the registered bytes; parent and child write to their own. */
static void fork_keeps_memory_private(void)
{
	start();
	char *heap = malloc(500000);
	struct buf b = {.p = heap, .len = 500000, .mr = MADE(ibv_reg_mr(d.pd, heap, 500000, ALL_ACCESS))};
	for (int round = 0; round < 5; round++) {
		fill(heap, 500000, 1);
		fflush(NULL);
		pid_t pid = fork();
		if (pid == 0) {
			usleep(20000); /* the parent has written by now */
			expect_fill(heap, 500000, 1, "child's copy");
			fill(heap, 500000, 2);
			char *more = malloc(300000); /* the heap works */
			memset(more, 1, 300000);
			free(more);
			expect_fill(heap, 500000, 2, "child's own");
			_exit(0);
		}
		CHECK(pid > 0, "fork: %s", strerror(errno));
		fill(heap, 500000, 3);
		reap(pid, "child");
		expect_fill(heap, 500000, 3, "parent's memory after the child wrote its own");
		post_work(&c.a, rdma(IBV_WR_RDMA_READ, &mem, 0, 1000, 1, (uintptr_t)heap, b.mr->rkey));
		expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "read of the parent's memory after fork");
		expect_fill(mem.p, 1000, 3, "the region after fork");
	}
	ZERO(ibv_dereg_mr(b.mr));
	free(heap);
	finish();
}

static void fork_init_then_fork(void)
{
	ZERO(ibv_fork_init());
	start();
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0)
		_exit(0);
	reap(pid, "child");
	finish();
}

/* The child of a fork opens a device of its own. */
static void fork_child_uses_rdma(void)
{
	start();
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		struct dev dd = dev_open();
		struct buf b = buf_new(&dd, 65536, ALL_ACCESS);
		struct couple cc = couple_new(&dd, (struct opt){0});
		for (int i = 0; i < 50; i++)
			expect_alive(&cc, &b, "in the child");
		couple_free(&cc);
		buf_free(&b);
		dev_close(&dd);
		_exit(0);
	}
	for (int i = 0; i < 50; i++)
		expect_alive(&c, &mem, "parent beside its child");
	reap(pid, "child");
	finish();
}

/* A child that ends without closing anything must not close the parent's device. */
static void fork_child_exits_normally(void)
{
	start();
	for (int i = 0; i < 10; i++) {
		fflush(NULL);
		pid_t pid = fork();
		if (pid == 0)
			exit(0); /* atexit handlers, destructors and all */
		reap(pid, "child");
		expect_alive(&c, &mem, "after a child");
	}
	finish();
}

static volatile int stop;
static uint64_t *hot;

static void *hammer(void *arg)
{
	uint64_t n = 0;

	(void)arg;
	while (!stop) {
		n++;
		for (int i = 0; i < 64; i++)
			((volatile uint64_t *)hot)[i * 512] = n;
	}
	for (int i = 0; i < 64; i++)
		if (hot[i * 512] != n)
			return (void *)1;
	return NULL;
}

/* Another thread writes to registered memory meanwhile: no write is lost. */
static void fork_while_threads_write(void)
{
	start();
	hot = aligned_alloc(4096, 64 * 4096);
	memset(hot, 0, 64 * 4096);
	struct ibv_mr *mr = MADE(ibv_reg_mr(d.pd, hot, 64 * 4096, ALL_ACCESS));
	pthread_t th;
	void *lost;
	ZERO(pthread_create(&th, NULL, hammer, NULL));
	for (int i = 0; i < 10; i++) {
		fflush(NULL);
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		reap(pid, "child");
	}
	stop = 1;
	ZERO(pthread_join(th, &lost));
	CHECK(!lost, "writes of another thread were lost by fork");
	ZERO(ibv_dereg_mr(mr));
	free(hot);
	finish();
}

static void system_call(void)
{
	start();
	for (int i = 0; i < 10; i++) {
		int r = system("exit 7");
		CHECK(WIFEXITED(r) && WEXITSTATUS(r) == 7, "system(\"exit 7\"): %#x", r);
		FILE *f = popen("echo hello", "r");
		char line[32] = "";
		CHECK(f && fgets(line, sizeof(line), f) && !strcmp(line, "hello\n"), "popen gave %s", line);
		pclose(f);
		expect_alive(&c, &mem, "after system()");
	}
	finish();
}

extern char **environ;

static void posix_spawn_and_vfork(void)
{
	start();
	for (int i = 0; i < 10; i++) {
		char *argv[] = {"true", NULL};
		pid_t pid;
		ZERO(posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ));
		reap(pid, "posix_spawn");
		expect_alive(&c, &mem, "after posix_spawn");
	}
	finish();
}

/* exec of a program that also uses the device: the old session ends, a new one comes. */
static void exec_again(void)
{
	if (getenv("VT_EXECED")) {
		start();
		finish();
		return;
	}
	start();
	setenv("VT_EXECED", "1", 1);
	execl("/proc/self/exe", "processes", "exec_again", NULL);
	FAIL("exec: %s", strerror(errno));
}

/* Daemons close every descriptor when they start; ours must survive that. */
static void close_all_before_open(void)
{
	struct rlimit rl;

	getrlimit(RLIMIT_NOFILE, &rl);
	for (int i = 3; i < (int)rl.rlim_cur && i < 70000; i++)
		close(i);
	start();
	finish();
	for (int i = 3; i < (int)rl.rlim_cur && i < 70000; i++)
		close(i);
	start();
	finish();
}

static void close_all_in_child(void)
{
	start();
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		for (int i = 3; i < 70000; i++)
			close(i);
		closefrom(3);
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	reap(pid, "child that closes everything");
	finish();
}

/* A program takes the lowest descriptors with dup2 and close; hidden ones must not be in the way. */
static void dup2_over_everything(void)
{
	start();
	int null = open("/dev/null", O_RDWR);
	for (int fd = 3; fd < 200; fd++) {
		if (fd == d.ctx->cmd_fd || fd == d.ctx->async_fd || fd == null)
			continue;
		CHECK(dup2(null, fd) == fd, "dup2 onto %d: %s", fd, strerror(errno));
	}
	expect_alive(&c, &mem, "after dup2 over all low descriptors");
	struct ibv_mr *mr = MADE(ibv_reg_mr(d.pd, mem.p, 4096, ALL_ACCESS));
	ZERO(ibv_dereg_mr(mr));
	for (int fd = 3; fd < 200; fd++)
		if (fd != d.ctx->cmd_fd && fd != d.ctx->async_fd)
			close(fd);
	finish();
}

/* The command descriptor duplicated and the original closed, as fd-moving programs do. */
static void dup_command_fd(void)
{
	start();
	int copy = dup(d.ctx->cmd_fd);
	CHECK(copy >= 0, "dup: %s", strerror(errno));
	close(copy);
	struct ibv_mr *mr = MADE(ibv_reg_mr(d.pd, mem.p, 4096, ALL_ACCESS));
	ZERO(ibv_dereg_mr(mr));
	finish();
}

static sigjmp_buf jump;
static volatile int faults;

static void on_segv(int sig, siginfo_t *si, void *uc)
{
	(void)sig;
	(void)si;
	(void)uc;
	faults++;
	siglongjmp(jump, 1);
}

/* A program with its own SIGSEGV handler keeps it, registered memory or not. */
static void own_segv_handler(void)
{
	struct sigaction sa = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO | SA_NODEFER}, now;

	sigaction(SIGSEGV, &sa, NULL);
	start();
	for (int i = 0; i < 20; i++) {
		char *p = malloc(100000);
		struct ibv_mr *mr = MADE(ibv_reg_mr(d.pd, p, 100000, ALL_ACCESS));
		if (!sigsetjmp(jump, 1))
			*(volatile char *)8 = 1;
		ZERO(ibv_dereg_mr(mr));
		free(p);
	}
	CHECK(faults == 20, "%d faults reached the program's handler, want 20", faults);
	sigaction(SIGSEGV, NULL, &now);
	CHECK(now.sa_sigaction == on_segv, "the program's handler is gone");
	finish();
}

/* A program that write-protects its memory to see writes (garbage collectors do). */
static char *watched;
static volatile int watched_faults;

static void on_watch(int sig, siginfo_t *si, void *uc)
{
	(void)sig;
	(void)uc;
	CHECK((char *)si->si_addr >= watched && (char *)si->si_addr < watched + 16 * 4096, "fault at %p", si->si_addr);
	watched_faults++;
	mprotect((char *)((uintptr_t)si->si_addr & ~4095ul), 4096, PROT_READ | PROT_WRITE);
}

static void write_barrier_by_mprotect(void)
{
	struct sigaction sa = {.sa_sigaction = on_watch, .sa_flags = SA_SIGINFO};

	sigaction(SIGSEGV, &sa, NULL);
	start();
	watched = mmap(NULL, 16 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct buf b = {.p = watched, .len = 16 * 4096, .mr = MADE(ibv_reg_mr(d.pd, watched, 16 * 4096, ALL_ACCESS))};
	mprotect(watched, 16 * 4096, PROT_READ);
	for (int i = 0; i < 16; i++)
		watched[i * 4096] = 1;
	CHECK(watched_faults == 16, "%d faults, want 16", watched_faults);
	ZERO(ibv_dereg_mr(b.mr));
	finish();
}

static void open_close_many_times(void)
{
	for (int i = 0; i < 50; i++) {
		start();
		finish();
	}
}

static void several_opens(void)
{
	struct dev many[8];

	start();
	for (int i = 0; i < 8; i++)
		many[i] = dev_open();
	for (int i = 0; i < 8; i++) {
		struct buf b = buf_new(&many[i], 4096, ALL_ACCESS);
		struct couple cc = couple_new(&many[i], (struct opt){0});
		expect_alive(&cc, &b, "one of several opens");
		couple_free(&cc);
		buf_free(&b);
		dev_close(&many[i]);
	}
	finish();
}

/* Ends in the middle, everything allocated. */
static void exit_without_cleanup(void)
{
	start();
	for (int i = 0; i < 20; i++)
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 32768, 1, (uintptr_t)mem.p + 32768, mem.mr->rkey));
}

static const struct vt_case cases[] = {
	{"fork_keeps_memory_private", fork_keeps_memory_private},
	{"fork_init_then_fork", fork_init_then_fork},
	{"fork_child_uses_rdma", fork_child_uses_rdma},
	{"fork_child_exits_normally", fork_child_exits_normally},
	{"fork_while_threads_write", fork_while_threads_write},
	{"system", system_call},
	{"posix_spawn_and_vfork", posix_spawn_and_vfork},
	{"exec_again", exec_again},
	{"close_all_before_open", close_all_before_open},
	{"close_all_in_child", close_all_in_child},
	{"dup2_over_everything", dup2_over_everything},
	{"dup_command_fd", dup_command_fd},
	{"own_segv_handler", own_segv_handler},
	{"write_barrier_by_mprotect", write_barrier_by_mprotect},
	{"open_close_many_times", open_close_many_times},
	{"several_opens", several_opens},
	{"exit_without_cleanup", exit_without_cleanup},
};

MAIN(cases)
