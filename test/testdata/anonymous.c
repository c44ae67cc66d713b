/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared anonymous memory under an ordinary user's daemon. The library maps a memfd in its place, so
 * that the daemon can map it. For the program it is what the kernel makes: shared with fork children,
 * zero at first, gone when the last process unmaps it, whatever limits and filters there are.
 */
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "vt.h"

#define SIZE ((size_t)4 << 20)
#define SMALLEST ((size_t)64 << 10)

/* ---- what it is ---- */

static char *map_at(void *at, size_t n, int flags)
{
	char *p = mmap(at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | flags, -1, 0);
	CHECK(p != MAP_FAILED, "mmap of %zu bytes: %s", n, strerror(errno));
	return p;
}

static char *map(size_t n)
{
	return map_at(NULL, n, 0);
}

/* Reports whether p is in a memfd now. */
static bool has_file(const void *p)
{
	char line[1024];
	unsigned long start, end;
	bool found = false, file = false;
	FILE *maps = MADE(fopen("/proc/self/maps", "r"));
	while (fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx", &start, &end) == 2 && (uintptr_t)p >= start && (uintptr_t)p < end) {
			found = true;
			file = strstr(line, "/memfd:shared-anonymous") != NULL;
		}
	fclose(maps);
	CHECK(found, "%p is not mapped", p);
	return file;
}

/* The memfds of this process: how many, and how much memory all of them have. */
static int files(long *bytes)
{
	int n = 0;
	char path[300], name[256];
	DIR *d = MADE(opendir("/proc/self/fd"));
	*bytes = 0;
	for (struct dirent *e; (e = readdir(d));) {
		struct stat st;
		snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
		ssize_t k = readlink(path, name, sizeof name - 1);
		name[k > 0 ? k : 0] = 0;
		if (!strstr(name, "/memfd:shared-anonymous") || stat(path, &st) < 0)
			continue;
		CHECK(st.st_nlink == 0, "the file has a link: core dumps would not contain it by default");
		n++;
		*bytes += st.st_blocks * 512;
	}
	closedir(d);
	return n;
}

static void expect_bytes_of_files(long want, const char *what)
{
	long got;
	files(&got);
	CHECK(got == want, "%s: the files have %ld bytes of memory, want %ld", what, got, want);
}

/* The library frees small areas together: the next large one takes them along. */
static void settle(void)
{
	ZERO(munmap(map(SIZE), SIZE));
}

/* RDMA and the program see the same bytes there. */
static void prove(char *p, size_t n)
{
	struct dev d = dev_open();
	struct buf mine = buf_new(&d, n, ALL_ACCESS), b = {.p = p, .len = n};
	struct couple c = couple_new(&d, (struct opt){0});
	b.mr = MADE(ibv_reg_mr(d.pd, p, n, ALL_ACCESS));
	fill(mine.p, n, 21);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mine, 0, n, 1, (uintptr_t)p, b.mr->rkey));
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "a WRITE to shared anonymous memory");
	expect_fill(p, n, 21, "shared anonymous memory");
	fill(p, n, 22);
	post_work(&c.a, rdma(IBV_WR_RDMA_READ, &mine, 0, n, 2, (uintptr_t)p, b.mr->rkey));
	expect_wc(c.a.cq, 2, IBV_WC_SUCCESS, "a READ of shared anonymous memory");
	expect_fill(mine.p, n, 22, "shared anonymous memory");
	couple_free(&c);
	ZERO(ibv_dereg_mr(b.mr));
	buf_free(&mine);
	dev_close(&d);
}

static void which(void)
{
	char *p = map(SIZE), *small = map(SMALLEST - 4096);
	char *reading = mmap(NULL, SIZE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char *private = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(has_file(p), "shared anonymous memory has no file");
	CHECK(!has_file(small) && !has_file(reading) && !has_file(private), "other memory has a file");
	char *numbered = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, 0, 0); /* as libcuda does */
	CHECK(has_file(numbered), "with a descriptor, which is ignored, it has no file");
	expect_bytes(p, SIZE, 0, "fresh memory");
	expect_bytes_of_files(SIZE, "memory that was read");
	char *all = map_at(NULL, SIZE, MAP_POPULATE);
	CHECK(has_file(all), "populated memory has no file");
	expect_bytes_of_files(2 * SIZE, "memory that was populated");
	prove(p, SIZE);
	/* over a part of another one */
	fill(p, SIZE, 3);
	CHECK(map_at(p + SIZE / 4, SIZE / 4, MAP_FIXED) == p + SIZE / 4 && has_file(p + SIZE / 4), "MAP_FIXED");
	expect_bytes(p + SIZE / 4, SIZE / 4, 0, "fresh memory");
	prove(p, SIZE);
	CHECK(mmap(p, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED &&
	      errno == EEXIST, "MAP_FIXED_NOREPLACE replaces: %s", strerror(errno));
	/* More than the machine has: the kernel decides, as without the library. */
	const size_t much = (size_t)1 << 46;
	bool fails = syscall(SYS_mmap, NULL, much, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == -1;
	void *too = mmap(NULL, much, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK((too == MAP_FAILED) == fails, "64 TiB: mmap returns %p", too);
}

/* ---- mremap and munmap ---- */

static void grows(void)
{
	char *p = map(SIZE), *q = map(SIZE);
	fill(p, SIZE, 1);
	fill(q, SIZE, 2);
	p = mremap(p, SIZE, 4 * SIZE, MREMAP_MAYMOVE);
	CHECK(p != MAP_FAILED, "mremap: %s", strerror(errno));
	expect_fill(p, SIZE, 1, "what has moved");
	expect_bytes(p + SIZE, 3 * SIZE, 0, "what was appended");
	fill(p, 4 * SIZE, 4);
	expect_fill(q, SIZE, 2, "the neighbour");
	prove(p, 4 * SIZE);
	p = mremap(p, 4 * SIZE, SIZE, 0);
	CHECK(p != MAP_FAILED, "mremap: %s", strerror(errno));
	expect_bytes_of_files(5 * SIZE, "after it became shorter");
	CHECK(mremap(p, SIZE, (size_t)1 << 40, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM, "it grows into its neighbour");
	ZERO(munmap(p, SIZE));
	expect_bytes_of_files(SIZE, "after it was unmapped");
	expect_fill(q, SIZE, 2, "the neighbour");
}

static void freed(void)
{
	char *p = map(SIZE), *q = map(SIZE);
	memset(p, 1, SIZE);
	memset(q, 2, SIZE);
	ZERO(munmap(p, SIZE / 2));
	expect_bytes(p + SIZE / 2, SIZE / 2, 1, "the half that is mapped");
	ZERO(munmap(p + SIZE / 2, SIZE / 2));
	expect_bytes_of_files(SIZE, "after munmap");
	CHECK(mmap(q, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == q, "mmap: %s", strerror(errno));
	expect_bytes_of_files(0, "after something else was mapped there");
	for (int i = 0; i < 1000; i++) {
		p = map(SMALLEST);
		CHECK(p[SMALLEST - 1] == 0, "fresh memory has %d", p[SMALLEST - 1]);
		memset(p, 1, SMALLEST);
		ZERO(munmap(p, SMALLEST));
	}
	long bytes;
	CHECK(files(&bytes) == 1 && bytes <= (1 << 20) + (long)SMALLEST, "%ld bytes are left of 1000 mappings", bytes);
}

/* The library does not see a bare system call, and nothing changes. */
static void bare(void)
{
	char *p = map(SIZE), *q = map(SIZE);
	fill(p, SIZE, 1);
	char *moved = (char *)syscall(SYS_mremap, p, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, q);
	CHECK(moved == q, "mremap: %s", strerror(errno));
	ZERO(munmap(p, SIZE));
	CHECK(map_at(p, SIZE, MAP_FIXED_NOREPLACE) == p, "mmap: %s", strerror(errno));
	memset(p, 1, SIZE);
	ZERO(munmap(p, SIZE));
	expect_fill(moved, SIZE, 1, "what a bare mremap has moved");
	ZERO(munmap(moved, SIZE));
	for (int i = 0; i < 600; i++) {
		p = map(SMALLEST);
		memset(p, 1, SMALLEST);
		syscall(SYS_munmap, p, SMALLEST);
	}
	long bytes;
	files(&bytes);
	CHECK(bytes <= 300 * (long)SMALLEST, "%ld bytes are left of 600 mappings", bytes);
}

static void many(void)
{
	enum { N = 1000 };
	static char *p[N];
	struct dev d = dev_open();
	struct ibv_mr *mr[N];
	long bytes;
	for (int i = 0; i < N; i++) {
		p[i] = map(SMALLEST);
		CHECK(i % 50 || has_file(p[i]), "mapping %d has no file", i);
		memset(p[i], i % 250 + 1, SMALLEST);
		mr[i] = i % 20 ? NULL : MADE(ibv_reg_mr(d.pd, p[i], SMALLEST, ALL_ACCESS));
	}
	CHECK(files(&bytes) == 1, "%d descriptors for %d mappings", files(&bytes), N);
	for (int i = 0; i < N; i++) {
		expect_bytes(p[i], SMALLEST, i % 250 + 1, "one of many mappings");
		if (mr[i])
			ZERO(ibv_dereg_mr(mr[i]));
		ZERO(munmap(p[i], SMALLEST));
	}
	settle();
	expect_bytes_of_files(0, "after all were unmapped");
	dev_close(&d);
}

/* ---- other processes ---- */

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

static void ended(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0, "the other process ended with %#x", status);
}

static pid_t bare_fork(void)
{
	return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

/* A child keeps what its parent unmaps, and the memory is freed after the child has ended. */
static void child_keeps(pid_t (*make)(void))
{
	int go[2], done[2];
	char *p = map(SIZE);
	memset(p, 1, SIZE);
	ZERO(pipe(go));
	ZERO(pipe(done));
	pid_t child = make();
	if (child == 0) {
		await(go[0]);
		expect_bytes(p, SIZE, 1, "what the parent has unmapped");
		p[0] = 2;
		step(done[1]);
		await(go[0]);
		expect_bytes(p + 1, SIZE - 1, 1, "what the parent has unmapped");
		_exit(p[0] != 2);
	}
	char *q = map(SIZE); /* the child has no part in it */
	memset(q, 3, SIZE);
	ZERO(munmap(p, SIZE));
	step(go[1]);
	await(done[0]);
	for (int i = 0; i < 3; i++) {
		char *r = map(SIZE);
		CHECK(has_file(r), "beside a child new memory has no file");
		expect_bytes(r, SIZE, 0, "fresh memory");
		memset(r, 4, SIZE);
		ZERO(munmap(r, SIZE));
	}
	expect_bytes_of_files(SIZE, "beside a child");
	step(go[1]);
	ended(child);
	ZERO(munmap(q, SIZE));
	expect_bytes_of_files(0, "after the child");
	long bytes;
	CHECK(files(&bytes) <= 2, "%d descriptors", files(&bytes));
}

static void fork_keeps(void)
{
	child_keeps(fork);
}

static void clone_keeps(void)
{
	child_keeps(bare_fork);
}

/* A child that ends returns everything to its parent, which frees it. */
static void parent_frees(void)
{
	char *p = map(SIZE);
	memset(p, 1, SIZE);
	for (int i = 0; i < 40; i++) {
		pid_t child = fork();
		if (child == 0) {
			char *q = map(SIZE);
			CHECK(has_file(q), "in child %d new memory has no file", i);
			expect_bytes(p, SIZE, i + 1, "memory of the parent");
			memset(p, i + 2, SIZE);
			memset(q, 9, SIZE);
			ZERO(munmap(q, SIZE));
			expect_bytes_of_files(SIZE, "in a child that has unmapped its own");
			if (i % 2)
				ZERO(munmap(p, SIZE));
			_exit(0);
		}
		ended(child);
		expect_bytes(p, SIZE, i + 2, "memory that a child wrote");
	}
	prove(p, SIZE);
	ZERO(munmap(p, SIZE));
	expect_bytes_of_files(0, "after all children");
}

/* Children that stay: above a number of them, new memory is the kernel's own. */
static void children(void)
{
	enum { N = 20 };
	int go[2];
	pid_t child[N];
	char *p[N];
	ZERO(pipe(go));
	for (int i = 0; i < N; i++) {
		p[i] = map(2 * SMALLEST);
		memset(p[i], i + 1, 2 * SMALLEST);
		child[i] = fork();
		if (child[i] == 0) {
			close(go[1]);
			char c;
			while (read(go[0], &c, 1) > 0)
				;
			for (int k = 0; k <= i; k++)
				expect_bytes(p[k], 2 * SMALLEST, k + 1, "what a child has inherited");
			_exit(0);
		}
	}
	long bytes;
	int n = files(&bytes);
	CHECK(n <= 16, "%d descriptors", n);
	close(go[1]);
	for (int i = 0; i < N; i++)
		ended(child[i]);
	for (int i = 0; i < N; i++) {
		expect_bytes(p[i], 2 * SMALLEST, i + 1, "memory of the parent");
		ZERO(munmap(p[i], 2 * SMALLEST));
	}
	settle();
	expect_bytes_of_files(0, "after all children");
	CHECK(has_file(map(2 * SMALLEST)), "after all children new memory has no file");
}

/* ---- threads ---- */

static _Atomic bool stop;

static void *maps_and_unmaps(void *arg)
{
	int byte = (int)(intptr_t)arg;
	for (int i = 0; !stop; i++) {
		size_t n = SMALLEST << (i % 6);
		char *p = map(n);
		CHECK(p[0] == 0 && p[n - 1] == 0, "fresh memory has %d and %d", p[0], p[n - 1]);
		memset(p, byte, n);
		expect_bytes(p, n, byte, "memory of a thread");
		if (i % 5 == 0) {
			p = mremap(p, n, 2 * n, MREMAP_MAYMOVE);
			CHECK(p != MAP_FAILED, "mremap: %s", strerror(errno));
			expect_bytes(p, n, byte, "memory of a thread");
			expect_bytes(p + n, n, 0, "fresh memory");
			n *= 2;
		}
		ZERO(munmap(p, n));
	}
	return NULL;
}

/* Threads map and unmap while another one forks, and the children do so, too. */
static void threads(void)
{
	enum { N = 3 };
	pthread_t t[N];
	char *p = map(SIZE);
	memset(p, 7, SIZE);
	for (int i = 0; i < N; i++)
		ZERO(pthread_create(&t[i], NULL, maps_and_unmaps, (void *)(intptr_t)(i + 1)));
	for (int i = 0; i < 20; i++) {
		pid_t child = fork();
		if (child == 0) {
			char *q = map(SIZE);
			memset(q, 8, SIZE);
			expect_bytes(p, SIZE, 7, "memory of the parent");
			ZERO(munmap(i % 2 ? q : p, SIZE));
			_exit(0);
		}
		ended(child);
	}
	stop = true;
	for (int i = 0; i < N; i++)
		ZERO(pthread_join(t[i], NULL));
	expect_bytes(p, SIZE, 7, "memory of the parent");
	settle();
	expect_bytes_of_files(SIZE, "after all threads");
}

/* ---- limits, filters, descriptors ---- */

static void limit(int what, rlim_t n)
{
	struct rlimit r = {n, n};
	ZERO(setrlimit((__rlimit_resource_t)what, &r));
}

static void file_size(void)
{
	char *before = map(SIZE);
	limit(RLIMIT_FSIZE, 1 << 20);
	char *after = map(SIZE);
	memset(before, 1, SIZE);
	memset(after, 2, SIZE);
	CHECK(has_file(before), "shared anonymous memory has no file");
	prove(before, SIZE);
	prove(after, SIZE);
	ZERO(munmap(before, SIZE));
	ZERO(munmap(after, SIZE));
	expect_bytes_of_files(0, "after munmap");
}

static void file_size_first(void)
{
	limit(RLIMIT_FSIZE, 1 << 20);
	char *p = map(SIZE);
	CHECK(!has_file(p), "there is a file of 4 EiB where the limit is 1 MiB");
	prove(p, SIZE);
}

static void no_descriptors(void)
{
	int fd, last = -1;
	limit(RLIMIT_NOFILE, 40);
	while ((fd = dup(0)) >= 0)
		last = fd;
	char *p = map(SIZE);
	memset(p, 1, SIZE);
	ZERO(munmap(p, SIZE));
	for (fd = 3; fd <= last; fd++)
		close(fd);
	p = map(SIZE);
	CHECK(has_file(p), "shared anonymous memory has no file");
	prove(p, SIZE);
}

static void closes_all(void)
{
	char *p = map(SIZE);
	memset(p, 1, SIZE);
	for (int fd = 3; fd < 5000; fd++)
		close(fd);
	syscall(SYS_close, -1);
	closefrom(3);
	char *q = map(SIZE);
	CHECK(has_file(q), "shared anonymous memory has no file");
	expect_bytes(p, SIZE, 1, "memory whose descriptor was closed");
	prove(p, SIZE);
	prove(q, SIZE);
	ZERO(munmap(p, SIZE));
	ZERO(munmap(q, SIZE));
	expect_bytes_of_files(0, "after munmap");
}

/*
 * A bare system call closes our descriptor, and its number becomes a file of the program, which
 * stays unchanged.
 */
static void closed_bare(void)
{
	char *p = map(SIZE), name[] = "/dev/shm/vrdma-test-XXXXXX", path[64], link[256];
	static char data[1 << 16], back[1 << 16];
	int file = mkstemp(name), taken = -1;
	CHECK(file >= 0, "mkstemp: %s", strerror(errno));
	unlink(name);
	memset(data, 5, sizeof data);
	CHECK(write(file, data, sizeof data) == sizeof data, "write: %s", strerror(errno));
	memset(p, 1, SIZE);
	for (int fd = 3; fd < 5000 && taken < 0; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(path, link, sizeof link - 1);
		link[n > 0 ? n : 0] = 0;
		if (strstr(link, "shared-anonymous"))
			taken = fd;
	}
	CHECK(taken >= 0, "there is no descriptor");
	CHECK(syscall(SYS_dup3, file, taken, 0) == taken, "dup3: %s", strerror(errno));
	char *q = map(SIZE);
	memset(q, 2, SIZE);
	prove(p, SIZE);
	prove(q, SIZE);
	ZERO(munmap(p, SIZE));
	ZERO(munmap(q, SIZE));
	CHECK(pread(file, back, sizeof back, 0) == sizeof back && !memcmp(data, back, sizeof back), "a file of the program has changed");
}

/* A program that forbids itself all but a few calls. Any other call kills it. */
static void confined(void)
{
	static const struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 5, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_munmap, 4, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpid, 2, 0), /* that of every call of this library */
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof code / sizeof *code, (struct sock_filter *)(uintptr_t)code};
	char *p = map(SIZE);
	pid_t child = fork();
	if (child == 0) {
		ZERO(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
		ZERO((int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
		char *q = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (q == MAP_FAILED || q[0])
			_exit(1);
		q = mremap(q, SIZE, SIZE / 2, MREMAP_MAYMOVE);
		_exit(q == MAP_FAILED || munmap(q, SIZE / 2) || munmap(p, SIZE));
	}
	ended(child);
	prove(p, SIZE);
}

/* ---- what the daemon says ---- */

static void stay(char *p)
{
	struct dev d = dev_open();
	MADE(ibv_reg_mr(d.pd, p, SIZE, ALL_ACCESS));
	printf("registered\n");
	pause();
}

/* Memory that was mapped before the device was opened. */
static void hold(void)
{
	stay(map(SIZE));
}

/* Memory that a parent has mapped. */
static void hold_inherited(void)
{
	char *p = map(SIZE);
	if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		stay(p);
	}
	pause();
}

static const struct vt_case cases[] = {
	{"which", which},
	{"grows", grows},
	{"freed", freed},
	{"bare", bare},
	{"many", many},
	{"fork_keeps", fork_keeps},
	{"clone_keeps", clone_keeps},
	{"parent_frees", parent_frees},
	{"children", children},
	{"threads", threads},
	{"file_size", file_size},
	{"file_size_first", file_size_first},
	{"no_descriptors", no_descriptors},
	{"closes_all", closes_all},
	{"closed_bare", closed_bare},
	{"confined", confined},
	{".hold", hold},
	{".hold_inherited", hold_inherited},
};

MAIN(cases)
