/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a program shares with others: nothing is replaced, every process sees what RDMA
 * writes, and RDMA sees what they write.
 */
#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>

#include "vt.h"

#define SIZE (1u << 20)

static void expect_ok(struct ibv_cq *cq, uint64_t id)
{
	expect_wc(cq, id, IBV_WC_SUCCESS, "an operation on shared memory");
}

/* ---- the kinds ---- */

static void *mapped(int fd, int prot)
{
	void *p = mmap(NULL, SIZE, prot, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED, "mmap: %s", strerror(errno));
	return p;
}

static void *posix_shm(void)
{
	char name[64];
	snprintf(name, sizeof name, "/vrdma-test-%d", (int)getpid());
	int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	CHECK(fd >= 0, "shm_open: %s", strerror(errno));
	ZERO(ftruncate(fd, SIZE));
	void *p = mapped(fd, PROT_READ | PROT_WRITE);
	close(fd);
	return p;
}

static void posix_shm_end(void)
{
	char name[64];
	snprintf(name, sizeof name, "/vrdma-test-%d", (int)getpid());
	shm_unlink(name);
}

static void *sysv_shm(void)
{
	int id = shmget(IPC_PRIVATE, SIZE, 0600);
	CHECK(id >= 0, "shmget: %s", strerror(errno));
	void *p = shmat(id, NULL, 0);
	shmctl(id, IPC_RMID, NULL); /* it stays until the last one is detached */
	CHECK(p != (void *)-1, "shmat: %s", strerror(errno));
	return p;
}

static int memfd(void)
{
	int fd = memfd_create("shared", MFD_ALLOW_SEALING);
	CHECK(fd >= 0, "memfd_create: %s", strerror(errno));
	ZERO(ftruncate(fd, SIZE));
	return fd;
}

static void *memfd_memory(void)
{
	return mapped(memfd(), PROT_READ | PROT_WRITE);
}

static void *tmpfs_file(void)
{
	char path[] = "/dev/shm/vrdma-test-XXXXXX";
	int fd = mkstemp(path);
	CHECK(fd >= 0, "mkstemp: %s", strerror(errno));
	unlink(path);
	ZERO(ftruncate(fd, SIZE));
	return mapped(fd, PROT_READ | PROT_WRITE);
}

static void *anonymous(void)
{
	void *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED, "mmap: %s", strerror(errno));
	return p;
}

/* A file of hugetlbfs, which the test has mounted at /huge: a huge page. */
static void *huge_file(void)
{
	const size_t page = 2u << 20;
	int fd = open("/huge/vrdma-test", O_RDWR | O_CREAT, 0600);
	CHECK(fd >= 0, "open: %s", strerror(errno));
	unlink("/huge/vrdma-test");
	ZERO(ftruncate(fd, (off_t)page));
	void *p = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED, "mmap: %s", strerror(errno));
	close(fd);
	return p;
}

/* ---- two processes and RDMA ---- */

static struct buf registered(struct dev *d, void *p, int access)
{
	struct buf b = {.p = p, .len = SIZE};
	b.mr = MADE(ibv_reg_mr(d->pd, p, SIZE, access));
	return b;
}

static void step(int fd)
{
	char c = 0;
	CHECK(write(fd, &c, 1) == 1, "write: %s", strerror(errno));
}

static void await(int fd)
{
	char c;
	CHECK(read(fd, &c, 1) == 1, "the other process has ended");
}

/* An older process sees what RDMA writes to p, and RDMA sees its answer. */
static void coherent(void *p, const char *what)
{
	int go[2], done[2], status;
	ZERO(pipe(go));
	ZERO(pipe(done));
	memset(p, 1, SIZE / 2); /* the rest is a hole */
	struct dev d = dev_open();
	struct buf shared = registered(&d, p, ALL_ACCESS), mine = buf_new(&d, SIZE, ALL_ACCESS);
	struct couple c = couple_new(&d, (struct opt){0});
	pid_t child = fork();
	CHECK(child >= 0, "fork: %s", strerror(errno));
	if (child == 0) {
		close(go[1]);
		close(done[0]);
		await(go[0]);
		expect_fill(p, SIZE, 11, what);
		fill(p, SIZE, 12);
		step(done[1]);
		await(go[0]);
		expect_fill(p, SIZE, 13, what);
		_exit(0);
	}
	close(go[0]);
	close(done[1]);
	fill(mine.p, SIZE, 11);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mine, 0, SIZE, 1, (uintptr_t)p, shared.mr->rkey));
	expect_ok(c.a.cq, 1);
	expect_fill(p, SIZE, 11, what);
	step(go[1]);
	await(done[0]);
	post_work(&c.a, rdma(IBV_WR_RDMA_READ, &mine, 0, SIZE, 2, (uintptr_t)p, shared.mr->rkey));
	expect_ok(c.a.cq, 2);
	expect_fill(mine.p, SIZE, 12, what);
	/* as the source of a WRITE, and as its target, at once */
	fill(p, SIZE / 2, 13);
	fill(mine.p, SIZE, 13);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &shared, 0, SIZE / 2, 3, (uintptr_t)mine.p, mine.mr->rkey));
	expect_ok(c.a.cq, 3);
	expect_fill(mine.p, SIZE, 13, what);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mine, 0, SIZE, 4, (uintptr_t)p, shared.mr->rkey));
	expect_ok(c.a.cq, 4);
	step(go[1]);
	CHECK(waitpid(child, &status, 0) == child && status == 0, "%s: the other process ended with %#x", what, status);
	couple_free(&c);
	ZERO(ibv_dereg_mr(shared.mr));
	buf_free(&mine);
	dev_close(&d);
}

static void posix(void)
{
	coherent(posix_shm(), "POSIX shared memory");
	posix_shm_end();
}

static void sysv(void)
{
	coherent(sysv_shm(), "System V shared memory");
}

static void memfds(void)
{
	coherent(memfd_memory(), "memfd");
}

static void tmpfs(void)
{
	coherent(tmpfs_file(), "file of tmpfs");
}

static void anonymous_memory(void)
{
	coherent(anonymous(), "shared anonymous memory");
}

static void huge(void)
{
	coherent(huge_file(), "file of hugetlbfs");
}

/* ---- atomics ---- */

#define ADDS 1000

static void add(uint64_t *word, bool rdma_too)
{
	struct dev d = dev_open();
	struct buf shared = registered(&d, word, ALL_ACCESS), old = buf_new(&d, 4096, ALL_ACCESS);
	struct couple c = couple_new(&d, (struct opt){0});
	for (uint64_t i = 0; i < ADDS; i++) {
		post_work(&c.a, atomic_op(IBV_WR_ATOMIC_FETCH_AND_ADD, &old, 0, i, (uintptr_t)word, shared.mr->rkey, 1, 0));
		if (rdma_too)
			__atomic_fetch_add(word, 1, __ATOMIC_SEQ_CST);
		expect_ok(c.a.cq, i);
	}
	couple_free(&c);
	ZERO(ibv_dereg_mr(shared.mr));
	buf_free(&old);
	dev_close(&d);
}

/* Two sessions, of two processes, and the processor add to one word. */
static void atomics(void)
{
	uint64_t *word = posix_shm();
	int status;
	pid_t child = fork();
	if (child == 0) {
		add(word, false);
		_exit(0);
	}
	add(word, true);
	CHECK(waitpid(child, &status, 0) == child && status == 0, "the other process ended with %#x", status);
	posix_shm_end();
	CHECK(*word == 3 * ADDS, "the sum is %lu, want %d", (unsigned long)*word, 3 * ADDS);
}

/* ---- what its owner can do to it ---- */

/* Holes that are punched after the registration read as zeros, and can be written. */
static void punched(void)
{
	int fd = memfd();
	void *p = mapped(fd, PROT_READ | PROT_WRITE);
	memset(p, 1, SIZE);
	struct dev d = dev_open();
	struct buf shared = registered(&d, p, ALL_ACCESS), mine = buf_new(&d, SIZE, ALL_ACCESS);
	struct couple c = couple_new(&d, (struct opt){0});
	for (uint64_t i = 0; i < 40; i += 4) {
		ZERO(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE));
		fill(mine.p, SIZE, (uint32_t)i);
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mine, 0, SIZE, i + 2, (uintptr_t)p, shared.mr->rkey));
		expect_ok(c.a.cq, i + 2);
		expect_fill(p, SIZE, (uint32_t)i, "what was written to a hole");
		ZERO(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE));
		memset(mine.p, 1, SIZE);
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &shared, 0, SIZE, i, (uintptr_t)mine.p, mine.mr->rkey));
		expect_ok(c.a.cq, i);
		expect_bytes(mine.p, SIZE, 0, "what was sent from a hole");
		ZERO(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE));
		memset(mine.p, 1, SIZE);
		post_work(&c.a, rdma(IBV_WR_RDMA_READ, &mine, 0, SIZE, i + 1, (uintptr_t)p, shared.mr->rkey));
		expect_ok(c.a.cq, i + 1);
		expect_bytes(mine.p, SIZE, 0, "what was read from a hole");
		ZERO(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE));
		post_work(&c.a, atomic_op(IBV_WR_ATOMIC_FETCH_AND_ADD, &mine, 0, i + 3, (uintptr_t)p, shared.mr->rkey, 5, 0));
		expect_ok(c.a.cq, i + 3);
		CHECK(*(uint64_t *)p == 5, "the word in a hole is %lu, want 5", (unsigned long)*(uint64_t *)p);
	}
	couple_free(&c);
	ZERO(ibv_dereg_mr(shared.mr));
	buf_free(&mine);
	dev_close(&d);
}

/* Writes to a file that was truncated. The daemon ends the session that does this. */
static void write_to_what_is_gone(void)
{
	int fd = memfd();
	void *p = mapped(fd, PROT_READ | PROT_WRITE);
	memset(p, 1, SIZE);
	struct dev d = dev_open();
	struct buf shared = registered(&d, p, ALL_ACCESS), mine = buf_new(&d, SIZE, ALL_ACCESS);
	struct couple c = couple_new(&d, (struct opt){0});
	struct ibv_wc wc;
	int n = 0;
	ZERO(ftruncate(fd, 0));
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mine, 0, SIZE, 1, (uintptr_t)p, shared.mr->rkey));
	for (int i = 0; i < 200 && !n; i++, usleep(1000))
		n = ibv_poll_cq(c.a.cq, 1, &wc);
	_exit(n > 0 && wc.status == IBV_WC_SUCCESS); /* a session that has ended may say nothing */
}

/* Truncating a file ends the session that uses the missing part, and no other. */
static void truncated(void)
{
	struct dev d = dev_open();
	struct buf mine = buf_new(&d, SIZE, ALL_ACCESS);
	struct couple c = couple_new(&d, (struct opt){0});
	int status;
	pid_t child = fork();
	if (child == 0)
		write_to_what_is_gone();
	CHECK(waitpid(child, &status, 0) == child && status == 0, "the process whose file is gone ended with %#x", status);
	fill(mine.p, SIZE, 3);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mine, 0, SIZE / 2, 2, (uintptr_t)mine.p + SIZE / 2, mine.mr->rkey));
	expect_ok(c.a.cq, 2);
	couple_free(&c);
	buf_free(&mine);
	dev_close(&d);
}

/* Memory that the program maps read-only cannot be registered for writing. */
static void read_only(void)
{
	int fd = memfd();
	fill(mapped(fd, PROT_READ | PROT_WRITE), SIZE, 9);
	void *p = mapped(fd, PROT_READ);
	struct dev d = dev_open();
	CHECK(!ibv_reg_mr(d.pd, p, SIZE, ALL_ACCESS), "memory for reading only was registered for writing");
	struct buf shared = registered(&d, p, IBV_ACCESS_REMOTE_READ), mine = buf_new(&d, SIZE, ALL_ACCESS);
	struct couple c = couple_new(&d, (struct opt){0});
	post_work(&c.a, rdma(IBV_WR_RDMA_READ, &mine, 0, SIZE, 1, (uintptr_t)p, shared.mr->rkey));
	expect_ok(c.a.cq, 1);
	expect_fill(mine.p, SIZE, 9, "memory for reading only");
	couple_free(&c);
	ZERO(ibv_dereg_mr(shared.mr));
	buf_free(&mine);
	dev_close(&d);
}

/* A memfd can be sealed against writing as soon as it is deregistered and unmapped. */
static void sealed(void)
{
	for (int i = 0; i < 20; i++) {
		int fd = memfd();
		void *p = mapped(fd, PROT_READ | PROT_WRITE);
		memset(p, 1, SIZE);
		struct dev d = dev_open();
		struct buf shared = registered(&d, p, ALL_ACCESS);
		ZERO(ibv_dereg_mr(shared.mr));
		ZERO(munmap(p, SIZE));
		ZERO(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
		dev_close(&d);
		close(fd);
	}
}

/* Registers one of each kind, says so, and stays: the test looks at the daemon's status. */
static void hold(void)
{
	struct dev d = dev_open();
	void *all[] = {posix_shm(), sysv_shm(), memfd_memory(), tmpfs_file(), anonymous()};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		registered(&d, all[i], ALL_ACCESS);
	posix_shm_end();
	printf("registered\n");
	fflush(stdout);
	pause();
}

static void hold_huge(void)
{
	struct dev d = dev_open();
	registered(&d, huge_file(), ALL_ACCESS);
	printf("registered\n");
	fflush(stdout);
	pause();
}

static const struct vt_case cases[] = {
	{"posix", posix},
	{"sysv", sysv},
	{"memfd", memfds},
	{"tmpfs", tmpfs},
	{"anonymous", anonymous_memory},
	{"atomics", atomics},
	{"punched", punched},
	{"truncated", truncated},
	{"read_only", read_only},
	{"sealed", sealed},
	{".hold", hold},
	{".huge", huge}, /* in a guest, which may have huge pages */
	{".hold_huge", hold_huge},
};

MAIN(cases)
