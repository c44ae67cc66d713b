/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory regions over every kind of memory a program has. Each case registers,
 * moves data through the region both ways with RDMA, and looks at every byte and
 * at the neighbours.
 */
#include "vt.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>

static struct dev d;
static struct couple c;
static struct buf other; /* the far end of every transfer */

static void start(void)
{
	d = dev_open();
	other = buf_new(&d, 4 << 20, ALL_ACCESS);
	c = couple_new(&d, (struct opt){0});
}

static void finish(void)
{
	couple_free(&c);
	buf_free(&other);
	dev_close(&d);
}

/* Data goes out of and into [p, p+len), by write, read and send. */
static void exercise(char *p, size_t len, const char *what)
{
	struct buf b = {.p = p, .len = len, .mr = MADE(ibv_reg_mr(d.pd, p, len, ALL_ACCESS))};

	CHECK(b.mr->addr == p && b.mr->length == len, "%s: region says %p+%zu, want %p+%zu", what, b.mr->addr, b.mr->length, (void *)p, len);
	fill(p, len, 1);
	memset(other.p, 0, len);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &b, 0, len, 1, (uintptr_t)other.p, other.mr->rkey));
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, what);
	expect_fill(other.p, len, 1, what);
	fill(other.p, len, 2);
	post_work(&c.a, rdma(IBV_WR_RDMA_READ, &b, 0, len, 2, (uintptr_t)other.p, other.mr->rkey));
	expect_wc(c.a.cq, 2, IBV_WC_SUCCESS, what);
	expect_fill(p, len, 2, what);
	fill(other.p, len, 3);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &other, 0, len, 3, (uintptr_t)p, b.mr->rkey));
	expect_wc(c.a.cq, 3, IBV_WC_SUCCESS, what);
	expect_fill(p, len, 3, what);
	fill(other.p, len, 4);
	post_recv(&c.b, &b, 0, len, 5);
	post_send(&c.a, &other, 0, len, 4);
	expect_wc(c.a.cq, 4, IBV_WC_SUCCESS, what);
	expect_wc(c.b.cq, 5, IBV_WC_SUCCESS, what);
	expect_fill(p, len, 4, what);
	ZERO(ibv_dereg_mr(b.mr));
	expect_fill(p, len, 4, "after deregistration");
	fill(p, len, 6); /* the memory belongs to the program again */
	expect_fill(p, len, 6, "written after deregistration");
}

static void heap(void)
{
	start();
	char *p = malloc(100000);
	exercise(p, 100000, "heap");
	free(p);
	finish();
}

static void heap_small_pieces(void)
{
	char *p[200];

	start();
	for (int i = 0; i < 200; i++)
		p[i] = malloc(48);
	for (int i = 0; i < 200; i += 7)
		exercise(p[i], 48, "small heap block");
	for (int i = 0; i < 200; i++)
		free(p[i]);
	finish();
}

static void unaligned(void)
{
	start();
	char *p = aligned_alloc(4096, 65536);
	memset(p, 0x5a, 65536);
	exercise(p + 4095, 2, "two bytes across a page");
	exercise(p + 1, 1, "one byte");
	exercise(p + 8191, 12289, "unaligned");
	CHECK(p[0] == 0x5a && p[8190 - 4092] == 0x5a && p[8191 + 12289] == 0x5a, "neighbours changed");
	free(p);
	finish();
}

static char bss[300000];
static char data[70000] = {1};
static __thread char tls[20000];

static void bss_memory(void)
{
	start();
	exercise(bss + 3, 299990, ".bss");
	finish();
}

static void data_memory(void)
{
	start();
	exercise(data, sizeof(data), ".data");
	finish();
}

static void thread_local_memory(void)
{
	start();
	exercise(tls, sizeof(tls), "thread-local");
	finish();
}

static void stack(void)
{
	char s[50000];

	start();
	exercise(s + 13, 49000, "stack");
	finish();
}

static void *on_thread(void *arg)
{
	char s[50000];

	exercise(s + 13, 49000, "stack of a thread");
	return arg;
}

static void thread_stack(void)
{
	pthread_t th;

	start();
	ZERO(pthread_create(&th, NULL, on_thread, NULL));
	ZERO(pthread_join(th, NULL));
	finish();
}

static char *map(size_t len, int flags, int fd)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);

	CHECK(p != MAP_FAILED, "mmap of %zu bytes: %s", len, strerror(errno));
	return p;
}

static void anonymous_private(void)
{
	start();
	char *p = map(1 << 20, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	exercise(p, 1 << 20, "private anonymous mapping");
	munmap(p, 1 << 20);
	finish();
}

static void anonymous_shared(void)
{
	start();
	char *p = map(1 << 20, MAP_SHARED | MAP_ANONYMOUS, -1);
	exercise(p, 1 << 20, "shared anonymous mapping");
	munmap(p, 1 << 20);
	finish();
}

static int temp_file(size_t len)
{
	char name[] = "/tmp/vt-file-XXXXXX";
	int fd = mkstemp(name);

	CHECK(fd >= 0, "mkstemp: %s", strerror(errno));
	unlink(name);
	ZERO(ftruncate(fd, (off_t)len));
	return fd;
}

static void file_shared(void)
{
	start();
	int fd = temp_file(100000);
	char *p = map(100000, MAP_SHARED, fd), got[100];
	exercise(p, 100000, "shared file mapping");
	CHECK(pread(fd, got, 100, 500) == 100 && !memcmp(got, p + 500, 100), "the file does not hold what the mapping holds");
	munmap(p, 100000);
	close(fd);
	finish();
}

static void file_private(void)
{
	start();
	int fd = temp_file(100000);
	char *p = map(100000, MAP_PRIVATE, fd), got[100] = {0}, none[100] = {0};
	exercise(p, 100000, "private file mapping");
	CHECK(pread(fd, got, 100, 500) == 100 && !memcmp(got, none, 100), "a private mapping changed the file");
	munmap(p, 100000);
	close(fd);
	finish();
}

/* Local read only, over a file that may not be written. */
static void file_read_only(void)
{
	start();
	int fd = temp_file(100000);
	char *p = map(100000, MAP_SHARED, fd);
	fill(p, 100000, 8);
	munmap(p, 100000);
	p = mmap(NULL, 100000, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(p != MAP_FAILED, "mmap: %s", strerror(errno));
	struct buf b = {.p = p, .len = 100000, .mr = MADE(ibv_reg_mr(d.pd, p, 100000, 0))};
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &b, 0, 100000, 1, (uintptr_t)other.p, other.mr->rkey));
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "write from a read-only mapping");
	expect_fill(other.p, 100000, 8, "read-only mapping");
	ZERO(ibv_dereg_mr(b.mr));
	errno = 0;
	struct ibv_mr *mr = ibv_reg_mr(d.pd, p, 100000, IBV_ACCESS_LOCAL_WRITE);
	CHECK(!mr && errno == EFAULT, "LOCAL_WRITE over read-only memory: %p, errno %d, want EFAULT", (void *)mr, errno);
	munmap(p, 100000);
	close(fd);
	finish();
}

static void not_mapped(void)
{
	start();
	char *p = map(3 * 4096, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	munmap(p + 4096, 4096);
	errno = 0;
	struct ibv_mr *mr = ibv_reg_mr(d.pd, p, 3 * 4096, ALL_ACCESS);
	CHECK(!mr && errno == EFAULT, "region over a hole: %p, errno %d, want EFAULT", (void *)mr, errno);
	exercise(p, 4096, "before the hole");
	exercise(p + 8192, 4096, "behind the hole");
	finish();
}

static void bad_access_flags(void)
{
	start();
	errno = 0;
	struct ibv_mr *mr = ibv_reg_mr(d.pd, other.p, 4096, IBV_ACCESS_REMOTE_WRITE);
	CHECK(!mr && errno == EINVAL, "REMOTE_WRITE without LOCAL_WRITE: %p, errno %d, want EINVAL", (void *)mr, errno);
	mr = ibv_reg_mr(d.pd, other.p, 4096, IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(!mr && errno == EINVAL, "REMOTE_ATOMIC without LOCAL_WRITE: %p, errno %d, want EINVAL", (void *)mr, errno);
	mr = MADE(ibv_reg_mr(d.pd, other.p, 4096, ALL_ACCESS | IBV_ACCESS_RELAXED_ORDERING));
	ZERO(ibv_dereg_mr(mr));
	finish();
}

/* 1 GiB that was never touched: registered fast, and usable at both ends. */
static void huge_sparse(void)
{
	const size_t len = 1ul << 30;

	start();
	char *p = map(len, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	struct buf b = {.p = p, .len = len, .mr = MADE(ibv_reg_mr(d.pd, p, len, ALL_ACCESS))};
	for (size_t off = 0; off < len; off += len / 4 - 4096) {
		fill(other.p, 8192, (uint32_t)off);
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &other, 0, 8192, 1, (uintptr_t)p + off, b.mr->rkey));
		expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "write into 1 GiB");
		expect_fill(p + off, 8192, (uint32_t)off, "1 GiB");
	}
	ZERO(ibv_dereg_mr(b.mr));
	munmap(p, len);
	finish();
}

static void zero_length(void)
{
	start();
	struct ibv_mr *mr = MADE(ibv_reg_mr(d.pd, other.p, 0, ALL_ACCESS));
	struct buf b = {.p = other.p, .mr = mr};
	post_recv(&c.b, &b, 0, 0, 2);
	post_send(&c.a, &b, 0, 0, 1);
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "empty send");
	CHECK(expect_wc(c.b.cq, 2, IBV_WC_SUCCESS, "empty receive").byte_len == 0, "byte_len is not 0");
	ZERO(ibv_dereg_mr(mr));
	finish();
}

static void overlapping(void)
{
	start();
	char *p = aligned_alloc(4096, 65536);
	struct ibv_mr *mr[8];
	memset(p, 0, 65536);
	for (int i = 0; i < 8; i++)
		mr[i] = MADE(ibv_reg_mr(d.pd, p + i * 1000, 30000, ALL_ACCESS));
	for (int i = 0; i < 8; i++) {
		for (int j = 0; j < 8; j++)
			CHECK(i == j || mr[i]->rkey != mr[j]->rkey, "two regions have the rkey %#x", mr[i]->rkey);
		fill(other.p, 10000, (uint32_t)i);
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &other, 0, 10000, 1, (uintptr_t)p + 10000, mr[i]->rkey));
		expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "write through an overlapping region");
		expect_fill(p + 10000, 10000, (uint32_t)i, "overlapping regions");
	}
	/* The first regions are deregistered; the last still works. */
	for (int i = 0; i < 7; i++)
		ZERO(ibv_dereg_mr(mr[i]));
	fill(other.p, 10000, 77);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &other, 0, 10000, 1, (uintptr_t)p + 10000, mr[7]->rkey));
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "write through the last region");
	expect_fill(p + 10000, 10000, 77, "the last region");
	ZERO(ibv_dereg_mr(mr[7]));
	free(p);
	finish();
}

static void twice(void)
{
	start();
	char *p = malloc(40000);
	for (int i = 0; i < 2; i++) {
		struct ibv_mr *first = MADE(ibv_reg_mr(d.pd, p, 40000, ALL_ACCESS));
		exercise(p, 40000, "registered twice");
		ZERO(ibv_dereg_mr(first));
		exercise(p, 40000, "registered again");
	}
	free(p);
	finish();
}

/* free() and malloc() reuse memory behind the library's back. */
static void reuse_after_free(void)
{
	start();
	for (int i = 0; i < 50; i++) {
		size_t len = 200000 + (size_t)i * 4096; /* above glibc's mmap threshold: unmapped by free */
		char *p = malloc(len);
		exercise(p, len, "memory that was mapped anew");
		free(p);
	}
	for (int i = 0; i < 50; i++) {
		char *p = malloc(60000);
		exercise(p, 60000, "heap used again");
		free(p);
	}
	finish();
}

static volatile int stop_writers;
static char *contested;
enum { PAGES = 64 };

static void *writer(void *arg)
{
	size_t me = (size_t)(uintptr_t)arg, n = 0;

	while (!stop_writers) {
		for (size_t i = 0; i < PAGES; i++)
			((volatile uint64_t *)(contested + i * 4096))[me]++;
		n++;
	}
	for (size_t i = 0; i < PAGES; i++)
		if (((volatile uint64_t *)(contested + i * 4096))[me] != n)
			return (void *)1;
	return NULL;
}

/* Other threads write into the pages while they are registered: no write is lost. */
static void registered_while_written(void)
{
	start();
	for (int round = 0; round < 20; round++) {
		pthread_t th[2];
		contested = map(PAGES * 4096, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		stop_writers = 0;
		for (uintptr_t i = 0; i < 2; i++)
			ZERO(pthread_create(&th[i], NULL, writer, (void *)i));
		usleep(2000);
		struct ibv_mr *mr = MADE(ibv_reg_mr(d.pd, contested, PAGES * 4096, ALL_ACCESS));
		usleep(1000);
		ZERO(ibv_dereg_mr(mr));
		stop_writers = 1;
		for (int i = 0; i < 2; i++) {
			void *lost;
			ZERO(pthread_join(th[i], &lost));
			CHECK(!lost, "round %d: writes of a thread were lost during registration", round);
		}
		munmap(contested, PAGES * 4096);
	}
	finish();
}

/* Deregistered while sends from it wait: they fail or complete, and nothing else happens. */
static void dereg_while_queued(void)
{
	start();
	for (int round = 0; round < 10; round++) {
		char *p = map(1 << 20, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		struct buf b = {.p = p, .len = 1 << 20, .mr = MADE(ibv_reg_mr(d.pd, p, 1 << 20, ALL_ACCESS))};
		struct couple k = couple_new(&d, (struct opt){0});
		for (uint64_t i = 0; i < 32; i++)
			post_work(&k.a, rdma(IBV_WR_RDMA_WRITE, &b, 0, 1 << 20, i, (uintptr_t)other.p, other.mr->rkey));
		ZERO(ibv_dereg_mr(b.mr));
		munmap(p, 1 << 20);
		bool failed = false;
		for (uint64_t i = 0; i < 32; i++) {
			struct ibv_wc wc = wait_wc(k.a.cq, "write from a region that went");
			if (wc.status == IBV_WC_SUCCESS)
				CHECK(!failed, "write %llu succeeded behind one that failed", (unsigned long long)wc.wr_id);
			else
				CHECK(wc.status == (failed ? IBV_WC_WR_FLUSH_ERR : IBV_WC_LOC_PROT_ERR), "write %llu: %s", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
			failed |= wc.status != IBV_WC_SUCCESS;
		}
		couple_free(&k);
	}
	finish();
}

/* Unmapped under a living region: its user gets an error or old bytes, and no process crashes. */
static void unmapped_under_region(void)
{
	start();
	char *p = map(1 << 20, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	struct buf b = {.p = p, .len = 1 << 20, .mr = MADE(ibv_reg_mr(d.pd, p, 1 << 20, ALL_ACCESS))};
	munmap(p, 1 << 20);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &other, 0, 1 << 20, 1, (uintptr_t)p, b.mr->rkey));
	wait_wc(c.a.cq, "write to unmapped memory");
	ZERO(ibv_dereg_mr(b.mr));
	/* The address is free for something new, which must not see old writes. */
	char *q = mmap(p, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK(q == p, "mmap at the old address: %s", strerror(errno));
	expect_bytes(q, 1 << 20, 0, "new mapping at the old address");
	couple_free(&c);
	c = couple_new(&d, (struct opt){0});
	exercise(q, 1 << 20, "new mapping at the old address");
	finish();
}

/* mremap moves registered pages elsewhere and back. */
static void grown_by_realloc(void)
{
	start();
	size_t len = 300000;
	char *p = malloc(len);
	for (int i = 0; i < 6; i++) {
		exercise(p, len, "before realloc");
		fill(p, len, 50);
		p = realloc(p, len * 2);
		expect_fill(p, len, 50, "after realloc");
		if (len * 2 > 4u << 20)
			break;
		len *= 2;
	}
	free(p);
	finish();
}

static void many_regions(void)
{
	enum { N = 2000 };
	struct ibv_mr *mr[N];

	start();
	char *p = malloc(N * 100);
	for (int i = 0; i < N; i++)
		mr[i] = MADE(ibv_reg_mr(d.pd, p + i * 100, 100, ALL_ACCESS));
	for (int i = 0; i < N; i += 97) {
		fill(other.p, 100, (uint32_t)i);
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &other, 0, 100, 1, (uintptr_t)p + (uintptr_t)i * 100, mr[i]->rkey));
		expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "one of many regions");
		expect_fill(p + i * 100, 100, (uint32_t)i, "one of many regions");
	}
	for (int i = 0; i < N; i++)
		ZERO(ibv_dereg_mr(mr[i]));
	free(p);
	finish();
}

/* read(2) and write(2) of a registered buffer work as always. */
static void system_calls_on_region(void)
{
	start();
	int fd[2];
	char *p = malloc(65536);
	struct ibv_mr *mr = MADE(ibv_reg_mr(d.pd, p, 65536, ALL_ACCESS));
	ZERO(pipe(fd));
	fill(p, 30000, 11);
	CHECK(write(fd[1], p, 30000) == 30000, "write(2) from a region: %s", strerror(errno));
	CHECK(read(fd[0], p + 32768, 30000) == 30000, "read(2) into a region: %s", strerror(errno));
	expect_fill(p + 32768, 30000, 11, "through a pipe");
	ZERO(ibv_dereg_mr(mr));
	free(p);
	finish();
}

/* Remote peers use an address of our choice; only its offset in the page is fixed. */
static void io_address(void)
{
	start();
	char *p = malloc(65536);
	uint64_t iova = 0x1000 + ((uintptr_t)p & 4095);
	errno = 0;
	CHECK(!ibv_reg_mr_iova(d.pd, p, 65536, iova + 8, ALL_ACCESS) && errno == EINVAL, "another place in the page: errno %d, want EINVAL", errno);
	struct ibv_mr *mr = MADE(ibv_reg_mr_iova(d.pd, p, 65536, iova, ALL_ACCESS));
	fill(other.p, 5000, 21);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &other, 0, 5000, 1, iova + 100, mr->rkey));
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "write by I/O address");
	expect_fill(p + 100, 5000, 21, "write by I/O address");
	ZERO(ibv_dereg_mr(mr));
	free(p);
	finish();
}

static void objects_in_use_are_kept(void)
{
	start();
	int e = ibv_dealloc_pd(d.pd);
	CHECK(e == EBUSY, "ibv_dealloc_pd with regions: %d, want EBUSY", e);
	e = ibv_destroy_cq(c.a.cq);
	CHECK(e == EBUSY, "ibv_destroy_cq with a QP: %d, want EBUSY", e);
	exercise(bss, 1000, "afterwards");
	finish();
}

static const struct vt_case cases[] = {
	{"heap", heap},
	{"heap_small_pieces", heap_small_pieces},
	{"unaligned", unaligned},
	{"bss", bss_memory},
	{"data", data_memory},
	{"thread_local", thread_local_memory},
	{"stack", stack},
	{"thread_stack", thread_stack},
	{"anonymous_private", anonymous_private},
	{"anonymous_shared", anonymous_shared},
	{"file_shared", file_shared},
	{"file_private", file_private},
	{"file_read_only", file_read_only},
	{"not_mapped", not_mapped},
	{"bad_access_flags", bad_access_flags},
	{"huge_sparse", huge_sparse},
	{"zero_length", zero_length},
	{"overlapping", overlapping},
	{"twice", twice},
	{"reuse_after_free", reuse_after_free},
	{"registered_while_written", registered_while_written},
	{"dereg_while_queued", dereg_while_queued},
	{"unmapped_under_region", unmapped_under_region},
	{"grown_by_realloc", grown_by_realloc},
	{"many_regions", many_regions},
	{"system_calls_on_region", system_calls_on_region},
	{"io_address", io_address},
	{"objects_in_use_are_kept", objects_in_use_are_kept},
};

MAIN(cases)
