/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What mappings and processes are, apart from bytes: advice, locked and guarded pages, pages
 * shared with a child, limits of the process, debuggers. All of it is as it was after a
 * registration and a deregistration, and the bytes are right meanwhile.
 */
#include "uring.h"

#include <linux/mempolicy.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/resource.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

#define LEN (16ul * PAGE)

/* ---- flags of mappings ---- */

struct flags {
	uintptr_t at;
	bool here;
	char text[256];
};

static void find_flags(const char *line, void *arg)
{
	struct flags *f = arg;
	unsigned long start, end;

	if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
		f->here = f->at >= start && f->at < end;
	else if (f->here && !strncmp(line, "VmFlags:", 8))
		snprintf(f->text, sizeof(f->text), "%s", line);
}

/* Does the mapping of p have a flag, two letters as in smaps? */
static bool has_flag(const void *p, const char *flag)
{
	struct flags f = {.at = (uintptr_t)p};
	char padded[8];

	proc_lines("/proc/self/smaps", find_flags, &f);
	CHECK(f.text[0], "%p has no flags in smaps", p);
	snprintf(padded, sizeof(padded), " %s", flag);
	return strstr(f.text, padded) != NULL;
}

/* Registers, proves and deregisters memory that keeps one of its flags all the time. */
static void keeps(char *p, size_t len, const char *flag, bool while_registered, bool want)
{
	struct loop l = loop_open();

	CHECK(has_flag(p, flag) == want, "flag %s before the registration: got %d, want %d", flag, !want, want);
	for (int i = 0; i < 3; i++) {
		struct buf b = reg(&l, p, len);

		prove(&l, &b, flag);
		CHECK(!while_registered || has_flag(p, flag) == want, "flag %s while registered: got %d, want %d", flag, !want, want);
		unreg(&b);
		CHECK(has_flag(p, flag) == want, "flag %s after the deregistration: got %d, want %d", flag, !want, want);
		CHECK(all_bytes(p, len, 5), "bytes changed");
	}
	loop_close(&l);
}

static char *advised(int advice)
{
	char *p = anonymous(LEN, 5);

	CHECK(!madvise(p, LEN, advice), "madvise %d: %s", advice, strerror(errno));
	return p;
}

static void dontdump(void)
{
	keeps(advised(MADV_DONTDUMP), LEN, "dd", true, true);
}

/* Registered memory is in a core dump: anonymous memory by default, and pages of the device too. */
static void dumped(void)
{
	struct loop l = loop_open();
	char *p = anonymous(LEN, 5);
	struct buf b = reg(&l, p, LEN);
	unsigned filter = 0;
	FILE *f = MADE(fopen("/proc/self/coredump_filter", "r"));

	CHECK(fscanf(f, "%x", &filter) == 1, "coredump_filter");
	fclose(f);
	CHECK(!has_flag(p, "dd"), "registered memory is left out of core dumps");
	/* A memfd without links counts as shared anonymous memory, bit 1 of the filter (core(5)). */
	CHECK(!is_own(p) || (filter & 2), "coredump_filter %#x leaves out shared anonymous memory", filter);
	unreg(&b);
	loop_close(&l);
}

static void mergeable(void)
{
	keeps(advised(MADV_MERGEABLE), LEN, "mg", false, true);
}

static void nohugepage(void)
{
	keeps(advised(MADV_NOHUGEPAGE), LEN, "nh", false, true);
}

static void locked(void)
{
	char *p = anonymous(LEN, 5);

	CHECK(!mlock(p, LEN), "mlock: %s", strerror(errno));
	keeps(p, LEN, "lo", true, true);
}

/* With everything locked, now and in future, a registration neither fails nor unlocks. */
static void locked_all(void)
{
	struct loop l = loop_open();
	char *p = anonymous(LEN, 5);

	if (mlockall(MCL_CURRENT | MCL_FUTURE)) {
		CHECK(errno == ENOMEM || errno == EPERM, "mlockall: %s", strerror(errno));
		printf("not allowed to lock everything: %s\n", strerror(errno));
		return;
	}
	for (int i = 0; i < 3; i++) {
		struct buf b = reg(&l, p, LEN);

		prove_piece(&l, &l.peer, PIECE, 64, "locked");
		CHECK(has_flag(p, "lo"), "registered memory is not locked any more");
		unreg(&b);
		CHECK(has_flag(p, "lo"), "memory is not locked any more");
		CHECK(all_bytes(p, LEN, 5), "bytes changed");
	}
	munlockall();
	loop_close(&l);
}

/* ---- children ---- */

static void expect_child(char *p, int want, const char *what)
{
	pid_t pid = fork();

	CHECK(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0) {
		unsigned char seen[1];
		int fd = open("/proc/self/mem", O_RDONLY);
		ssize_t n = pread(fd, seen, 1, (off_t)(uintptr_t)p);

		_exit(want < 0 ? n > 0 : n != 1 || seen[0] != want);
	}
	reap(pid, what);
}

static void wipeonfork(void)
{
	struct loop l = loop_open();
	char *p = advised(MADV_WIPEONFORK);
	struct buf b = reg(&l, p, LEN);

	prove(&l, &b, "wiped in a child");
	expect_child(p, 0, "a child of a registered, wiped page");
	CHECK(all_bytes(p, LEN, 5), "the parent's bytes changed");
	prove(&l, &b, "after the fork");
	unreg(&b);
	expect_child(p, 0, "a child of a wiped page that was registered");
	loop_close(&l);
}

static void dontfork(void)
{
	struct loop l = loop_open();
	char *p = advised(MADV_DONTFORK);
	struct buf b = reg(&l, p, LEN);

	expect_child(p, -1, "a child without the registered page");
	prove(&l, &b, "after the fork");
	unreg(&b);
	expect_child(p, -1, "a child without a page that was registered");
	loop_close(&l);
}

/* A child that lives, and sees its own copy, while the parent registers. */
static void child_alive(void)
{
	struct loop l = loop_open();
	char *p = anonymous(LEN, 5), byte;
	int go[2];

	ZERO(pipe(go));
	pid_t pid = fork();
	CHECK(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0) {
		close(go[1]);
		while (read(go[0], &byte, 1) > 0)
			;
		_exit(!all_bytes(p, LEN, 5));
	}
	close(go[0]);
	for (int i = 0; i < 3; i++) {
		struct buf b = reg(&l, p, LEN);

		prove(&l, &b, "with a child alive");
		memset(p, 5 + i, LEN);
		unreg(&b);
		CHECK(all_bytes(p, LEN, 5 + i), "bytes changed");
	}
	close(go[1]);
	reap(pid, "a child sees the parent's later bytes");
	loop_close(&l);
}

static void child_gone(void)
{
	struct loop l = loop_open();
	char *p = anonymous(LEN, 5);

	expect_child(p, 5, "child");
	struct buf b = reg(&l, p, LEN);
	prove(&l, &b, "after a child's end");
	CHECK(is_own(p + PAGE) || getenv("MEM_FOREIGN"), "pages that a child had once are foreign");
	unreg(&b);
	CHECK(all_bytes(p, LEN, 5), "bytes changed");
	loop_close(&l);
}

/* A vfork child uses the address space of its parent, and no halt can stop the parent's thread. */
static void *spawns(void *arg)
{
	for (int i = 0; i < 3; i++) {
		pid_t pid = vfork();

		if (pid == 0) {
			execl("/bin/sleep", "sleep", "0.1", NULL);
			_exit(1);
		}
		waitpid(pid, NULL, 0);
	}
	atomic_store((_Atomic int *)arg, 1);
	return NULL;
}

static void vfork_child(void)
{
	struct loop l = loop_open();
	_Atomic int done = 0;
	pthread_t t = thread_new(spawns, (void *)&done);

	while (!done) {
		char *p = anonymous(LEN, 5);
		struct buf b = reg(&l, p, LEN);

		prove(&l, &b, "beside vfork");
		unreg(&b);
		CHECK(all_bytes(p, LEN, 5), "bytes changed");
		munmap(p, LEN);
	}
	pthread_join(t, NULL);
	loop_close(&l);
}

/* ---- pages that differ ---- */

static void guard_pages(void)
{
	struct loop l = loop_open();
	char *p = anonymous(LEN, 5);
	int e = madvise(p + 8 * PAGE, PAGE, MADV_GUARD_INSTALL) ? errno : 0;

	CHECK(!e || e == EINVAL, "MADV_GUARD_INSTALL: %s", strerror(e));
	for (int i = 0; i < 2; i++) { /* a page that faults: refused or reached around it, and it faults still */
		struct ibv_mr *mr = ibv_reg_mr(l.d.pd, p, LEN, ALL_ACCESS);
		int fd = open("/proc/self/mem", O_RDONLY);
		char byte;

		if (mr) {
			struct buf b = {.p = p, .len = LEN, .mr = mr};

			prove_piece(&l, &b, 0, PAGE, "before a guard page");
			prove_piece(&l, &b, 12 * PAGE, PAGE, "behind a guard page");
			unreg(&b);
		}
		CHECK(e || pread(fd, &byte, 1, (off_t)(uintptr_t)(p + 8 * PAGE)) != 1, "the guard page is gone");
		CHECK(all_bytes(p, 8 * PAGE, 5) && all_bytes(p + 9 * PAGE, 7 * PAGE, 5), "bytes changed");
		close(fd);
	}
	loop_close(&l);
}

/* Pages that were never touched, discarded, and read only, beside others. */
static void mixed_pages(void)
{
	struct loop l = loop_open();

	for (int threads = 0; threads < 3; threads += 2) {
		char *p = anonymous(LEN, 5);

		idle_threads(threads);
		ZERO(madvise(p + 2 * PAGE, 2 * PAGE, MADV_DONTNEED));
		ZERO(mprotect(p + 6 * PAGE, PAGE, PROT_READ));
		struct buf b = {.p = p, .len = LEN, .mr = ibv_reg_mr(l.d.pd, p, LEN, IBV_ACCESS_REMOTE_READ)};
		CHECK(b.mr, "ibv_reg_mr to be read: %s", strerror(errno));
		move_rdma(&l, IBV_WR_RDMA_READ, &l.peer, 0, PIECE, &b, PAGE, "mixed pages");
		CHECK(all_bytes(l.peer.p, PAGE, 5) && all_bytes(l.peer.p + PAGE, PAGE, 0), "mixed pages read otherwise");
		move_rdma(&l, IBV_WR_RDMA_READ, &l.peer, 0, PIECE, &b, 6 * PAGE, "mixed pages");
		CHECK(all_bytes(l.peer.p, PIECE, 5), "a read-only page reads otherwise");
		unreg(&b);
		CHECK(all_bytes(p, 2 * PAGE, 5) && all_bytes(p + 2 * PAGE, 2 * PAGE, 0) && all_bytes(p + 4 * PAGE, 12 * PAGE, 5), "bytes changed");
		ZERO(mprotect(p + 6 * PAGE, PAGE, PROT_READ | PROT_WRITE));
		b = reg(&l, p, LEN);
		prove(&l, &b, "mixed pages");
		ZERO(madvise(p + 10 * PAGE, PAGE, MADV_DONTNEED));
		CHECK(all_bytes(p + 10 * PAGE, PAGE, 0), "a discarded page keeps its bytes");
		unreg(&b);
		munmap(p, LEN);
	}
	loop_close(&l);
}

static void protection_keys(void)
{
	struct loop l = loop_open();
	char *p = anonymous(LEN, 5);
	int key = pkey_alloc(0, 0);

	if (key < 0) {
		CHECK(errno == ENOSPC || errno == ENOSYS || errno == EINVAL, "pkey_alloc: %s", strerror(errno));
		printf("this processor has no protection keys\n");
		return;
	}
	ZERO(pkey_mprotect(p, LEN, PROT_READ | PROT_WRITE, key));
	struct buf b = reg(&l, p, LEN);
	prove(&l, &b, "a protection key");
	unreg(&b);
	CHECK(!pkey_set(key, PKEY_DISABLE_WRITE), "pkey_set");
	int fds[2];
	ZERO(pipe(fds));
	send_all(fds[1], "x", 1);
	CHECK(read(fds[0], p, 1) < 0 && errno == EFAULT, "the protection key is gone");
	loop_close(&l);
}

static void huge_pages(void)
{
	const size_t huge = 2 << 20;
	struct loop l = loop_open();
	char *area = mapped(4 * huge, MAP_PRIVATE | MAP_ANONYMOUS, -1), *p = (char *)(((uintptr_t)area + huge - 1) & ~(huge - 1));

	idle_threads(1);
	madvise(p, 3 * huge, MADV_HUGEPAGE);
	memset(p, 5, 3 * huge);
	for (int i = 0; i < 3; i++) {
		struct buf b = reg(&l, p + 3 * PAGE, huge); /* begins and ends inside of one */

		prove(&l, &b, "huge pages");
		unreg(&b);
		CHECK(all_bytes(p, 3 * huge, 5), "bytes changed");
	}
	CHECK(has_flag(p + huge, "hg"), "MADV_HUGEPAGE is gone");
	loop_close(&l);
}

static void memory_policy(void)
{
	struct loop l = loop_open();
	char *p = anonymous(LEN, 5);
	unsigned long nodes = 1;
	int mode = -1;

	if (syscall(SYS_mbind, p, LEN, MPOL_BIND, &nodes, 64, 0)) {
		CHECK(errno == ENOSYS, "mbind: %s", strerror(errno));
		printf("this kernel has no NUMA\n");
		return;
	}
	struct buf b = reg(&l, p, LEN);
	prove(&l, &b, "mbind");
	unreg(&b);
	ZERO((int)syscall(SYS_get_mempolicy, &mode, NULL, 0, p, MPOL_F_ADDR));
	CHECK(mode == MPOL_BIND, "the memory policy is %d, want MPOL_BIND", mode);
	loop_close(&l);
}

/* ---- limits of the process ---- */

static void limit(int what, rlim_t value)
{
	struct rlimit r;

	ZERO(getrlimit(what, &r));
	r.rlim_cur = value;
	ZERO(setrlimit(what, &r));
}

static void turns(int threads)
{
	struct loop l = loop_open();

	idle_threads(threads);
	for (int i = 0; i < 10; i++) {
		char *p = anonymous(1 << 20, 5);
		struct buf b = reg(&l, p, 1 << 20);

		prove(&l, &b, "under a limit");
		unreg(&b);
		CHECK(all_bytes(p, 1 << 20, 5), "bytes changed");
		munmap(p, 1 << 20);
	}
	loop_close(&l);
}

static void limited_file_size(void)
{
	limit(RLIMIT_FSIZE, 4096);
	turns(0);
	turns(2);
}

static void limited_address_space(void)
{
	struct loop l = loop_open(); /* the device's queues are there already */
	long pages = 0;
	FILE *f = MADE(fopen("/proc/self/statm", "r"));

	idle_threads(1);
	CHECK(fscanf(f, "%ld", &pages) == 1, "statm");
	fclose(f);
	char *p = anonymous(4 << 20, 5);
	prove_piece(&l, &l.peer, PIECE, 64, "warm");
	limit(RLIMIT_AS, (rlim_t)pages * PAGE + (4 << 20) + (512 << 10));
	for (int i = 0; i < 5; i++) {
		struct buf b = reg(&l, p, 4 << 20);

		prove(&l, &b, "with a small address space");
		unreg(&b);
		CHECK(all_bytes(p, 4 << 20, 5), "bytes changed");
	}
	limit(RLIMIT_AS, RLIM_INFINITY);
	loop_close(&l);
}

static void limited_files(void)
{
	struct loop l = loop_open();
	char *p = anonymous(LEN, 5);
	int fd, last = 0;

	idle_threads(1);
	prove_piece(&l, &l.peer, PIECE, 64, "warm");
	limit(RLIMIT_NOFILE, 64);
	while ((fd = open("/dev/null", O_RDONLY)) >= 0)
		last = fd;
	CHECK(errno == EMFILE && last, "open: %s", strerror(errno));
	for (int i = 0; i < 3; i++) { /* none is free */
		struct buf b = reg(&l, p, LEN);

		prove(&l, &b, "without a free descriptor");
		unreg(&b);
		CHECK(all_bytes(p, LEN, 5), "bytes changed");
	}
	loop_close(&l);
}

static void limited_locked(void)
{
	limit(RLIMIT_MEMLOCK, 0);
	turns(1);
}

/* ---- small regions ---- */

static double regions(struct loop *l, char *p, struct ibv_mr **mr, long n, long *most)
{
	double begin = vt_now();

	for (long i = 0; i < n; i++)
		mr[i] = MADE(ibv_reg_mr(l->d.pd, p + (size_t)i * 2 * PAGE, PAGE, ALL_ACCESS));
	double end = vt_now();
	*most = mappings();
	for (long i = 0; i < n; i += n / 50) {
		struct buf b = {.p = p + (size_t)i * 2 * PAGE, .len = PAGE, .mr = mr[i]};

		prove(l, &b, "one of many");
	}
	double again = vt_now();
	for (long i = 0; i < n; i++)
		ZERO(ibv_dereg_mr(mr[i]));
	return end - begin + (vt_now() - again);
}

static void many_regions(void)
{
	const long few = rounds(1) > 1 ? 5000 : 250, many = 20 * few;
	struct loop l = loop_open();
	char *p = mapped((size_t)many * 2 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	struct ibv_mr **mr = MADE(calloc((size_t)many, sizeof(*mr)));
	long before = mappings(), most_few, most_many;

	for (long i = 0; i < many; i++)
		p[(size_t)i * 2 * PAGE] = 1;
	double short_time = regions(&l, p, mr, few, &most_few), long_time = regions(&l, p, mr, many, &most_many);
	printf("%ld regions of a page %.2f s, %ld %.2f s; %ld mappings before, %ld and %ld meanwhile, %ld after\n", few, short_time, many, long_time, before, most_few, most_many, mappings());
	CHECK(most_many < 60000, "%ld mappings: the program has few left", most_many);
	/*
	 * Linear is 20. Beyond 8192 stretches memory is foreign, which registers faster, so 100 000 take far
	 * less than that. All of 5000 are own: there the bound is wide, since it is a time.
	 */
	CHECK(long_time < (many > 10000 ? 20 : 80) * short_time, "%ld regions take %.0f times as long as %ld", many, long_time / short_time, few);
	for (long i = 0; i < many; i++)
		CHECK(p[(size_t)i * 2 * PAGE] == 1, "bytes changed");
	CHECK(malloc(64 << 20), "malloc: %s", strerror(errno));
	loop_close(&l);
}

/* ---- whether pages are replaced at all: MEM_ALONE and MEM_THREADS say what to expect ---- */

static bool stays; /* pages stay shared after the deregistration: the process has an io_uring */

static void replaced(int threads, const char *expected)
{
	struct loop l = loop_open();
	const size_t len = 3 << 20;
	long own = 0, n = 0;

	CHECK(expected, "no expectation");
	idle_threads(threads);
	for (int i = 0; i < 5; i++) {
		char *p = anonymous(len, 5);
		struct buf b = reg(&l, p, len);

		prove(&l, &b, "replaced");
		for (size_t at = 0; at < len; at += 256 * PAGE, n++)
			own += is_own(p + at);
		unreg(&b);
		CHECK(all_bytes(p, len, 5), "bytes changed");
		CHECK(stays || !is_own(p), "the page is still shared after the deregistration");
		munmap(p, len);
	}
	printf("%ld of %ld pages shared\n", own, n);
	CHECK(strcmp(expected, "own") || own == n, "%ld of %ld pages are shared with the device, want all", own, n);
	CHECK(strcmp(expected, "foreign") || !own, "%ld of %ld pages were replaced under running threads", own, n);
	loop_close(&l);
}

static void replaced_alone(void)
{
	replaced(0, getenv("MEM_ALONE"));
}

static void replaced_threads(void)
{
	replaced(4, getenv("MEM_THREADS"));
}

/* An io_uring without operations on buffers, as libuv's, changes nothing; one with such operations does. */
static void replaced_beside_ring(void)
{
	struct io_uring_params params = {0};
	int fd = (int)syscall(SYS_io_uring_setup, 1, &params), poll = epoll_create1(0), queue[2], got;
	struct epoll_event event = {.events = EPOLLIN};

	if (fd < 0) {
		printf("io_uring_setup: %s\n", strerror(errno));
		return;
	}
	close(fd);
	struct ring r = ring_open();
	ZERO(pipe(queue));
	for (int i = 0; i < 10; i++) {
		ring_submit(&r, IORING_OP_EPOLL_CTL, 0, poll, &event, i % 2 ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, (uint64_t)queue[0]);
		CHECK((got = ring_wait(&r)) == 0, "EPOLL_CTL returns %d (%s)", got, strerror(-got));
	}
	stays = true;
	replaced(0, getenv("MEM_ALONE"));

	struct loop l = loop_open();
	char *p = anonymous(LEN, 5), *into = anonymous(PAGE, 0);
	ring_submit(&r, IORING_OP_READ, 0, queue[0], into, 1, 0);
	struct buf b = reg(&l, p, LEN);
	CHECK(!is_own(p), "pages were replaced beside a read that is in flight");
	CHECK(write(queue[1], "", 1) == 1 && ring_wait(&r) == 1, "the read returns nothing");
	prove(&l, &b, "beside a ring");
	unreg(&b);
	ring_close(&r);
	loop_close(&l);
}

/* ---- programs that nothing may stop ---- */

static void running(const char *what)
{
	struct loop l = loop_open();

	idle_threads(2);
	for (int i = 0; i < 5; i++) {
		char *p = anonymous(LEN, 5);
		struct buf b = reg(&l, p, LEN);

		prove(&l, &b, what);
		CHECK(!is_own(p), "%s: pages were replaced under running threads", what);
		unreg(&b);
		CHECK(all_bytes(p, LEN, 5), "bytes changed");
		munmap(p, LEN);
	}
	loop_close(&l);
}

/* A debugger has this program: nobody else can stop its threads. */
static void debugged(void)
{
	pid_t me = getpid();
	int ready[2], end[2];
	char byte;

	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	ZERO(pipe(ready));
	ZERO(pipe(end));
	pid_t pid = fork();
	CHECK(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0) {
		close(end[1]);
		if (ptrace(PTRACE_SEIZE, me, 0, PTRACE_O_TRACECLONE))
			_exit(errno == EPERM ? 7 : 8);
		send_all(ready[1], "r", 1);
		struct pollfd p = {.fd = end[0], .events = POLLIN};
		while (poll(&p, 1, 1) == 0) { /* resumes whatever stops */
			int status;
			pid_t stopped = waitpid(-1, &status, __WALL | WNOHANG);

			if (stopped > 0 && WIFSTOPPED(status))
				ptrace(PTRACE_CONT, stopped, 0, status >> 16 || WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status));
		}
		_exit(0);
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1) {
		printf("this program may not be traced by its child\n");
		return;
	}
	running("a debugger is attached");
	close(end[1]);
	reap(pid, "debugger");
}

static void undumpable(void)
{
	ZERO(prctl(PR_SET_DUMPABLE, 0));
	if (geteuid() == 0) { /* root may look at everything */
		turns(2);
		return;
	}
	struct loop l = loop_open(); /* its memory is registered while there is one thread */
	char *p = anonymous(LEN, 5);

	idle_threads(2);
	struct ibv_mr *mr = ibv_reg_mr(l.d.pd, p, LEN, ALL_ACCESS);

	/* A daemon that may not reach the memory refuses it. It is never replaced under running threads. */
	if (!mr) {
		CHECK(errno == EPERM, "ibv_reg_mr: %s, want EPERM", strerror(errno));
		printf("refused: %s\n", strerror(EPERM));
		CHECK(all_bytes(p, LEN, 5) && !is_own(p), "bytes changed");
		return;
	}
	struct buf b = {.p = p, .len = LEN, .mr = mr};
	prove(&l, &b, "not dumpable");
	CHECK(!is_own(p), "pages were replaced under running threads");
	unreg(&b);
	CHECK(all_bytes(p, LEN, 5), "bytes changed");
	loop_close(&l);
}

static const struct vt_case cases[] = {
	{"dontdump", dontdump},
	{"dumped", dumped},
	{"mergeable", mergeable},
	{"nohugepage", nohugepage},
	{"locked", locked},
	{"locked_all", locked_all},
	{"wipeonfork", wipeonfork},
	{"dontfork", dontfork},
	{"child_alive", child_alive},
	{"child_gone", child_gone},
	{"vfork_child", vfork_child},
	{"guard_pages", guard_pages},
	{"mixed_pages", mixed_pages},
	{"protection_keys", protection_keys},
	{"huge_pages", huge_pages},
	{"memory_policy", memory_policy},
	{"limited_file_size", limited_file_size},
	{"limited_address_space", limited_address_space},
	{"limited_files", limited_files},
	{"limited_locked", limited_locked},
	{"many_regions", many_regions},
	{"replaced_alone", replaced_alone},
	{"replaced_threads", replaced_threads},
	{"replaced_beside_ring", replaced_beside_ring},
	{"debugged", debugged},
	{"undumpable", undumpable},
};

MAIN(cases)
