/* SPDX-License-Identifier: Apache-2.0 */
/*
 * punch MIB HOLES holes|control: a hostile tenant. It punches HOLES holes over MIB of its registered
 * memory, while another thread writes there by RDMA, at random: a page fault sleeps until the hole is
 * punched. With control that thread writes elsewhere.
 *
 * punch victim: another tenant. It writes 64 bytes again and again until its standard input ends, and
 * prints each write that took longer than 50 ms.
 */
#include "vt.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define SLOW 0.05

static _Atomic int stop;
static struct dev d;
static char *mem;
static size_t size;
static struct ibv_mr *mr;
static bool control;

/* The memfd of registered memory: the one that is as large as an address space. */
static int memfd(void)
{
	for (int fd = 0; fd < 65536; fd++) {
		struct stat st;

		if (syscall(SYS_fstat, fd, &st) == 0 && st.st_size > 1ll << 40)
			return fd;
	}
	FAIL("no memfd");
}

/* Writes each word and reads it back. Only a hole punched in between may change it, to 0. */
static void *writer(void *none)
{
	struct couple c = couple_new(&d, (struct opt){0});
	struct buf b = buf_new(&d, 4096, ALL_ACCESS), beside = buf_new(&d, 1 << 20, ALL_ACCESS);
	struct buf to = control ? beside : (struct buf){.p = mem, .len = size, .mr = mr};
	uint64_t *out = (uint64_t *)b.p, *in = out + 8, zeros = 0, n = 0;
	unsigned seed = 1;

	while (!stop) {
		uint64_t at = ((((uint64_t)rand_r(&seed) << 12) ^ ((uint64_t)rand_r(&seed) << 20)) % to.len) & ~4095ul;

		*out = ++n;
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &b, 0, 8, n, (uintptr_t)to.p + at, to.mr->rkey));
		CHECK(wait_wc(c.a.cq, "the write").status == IBV_WC_SUCCESS, "a write failed");
		post_work(&c.a, rdma(IBV_WR_RDMA_READ, &b, 64, 8, n, (uintptr_t)to.p + at, to.mr->rkey));
		CHECK(wait_wc(c.a.cq, "the read").status == IBV_WC_SUCCESS, "a read failed");
		CHECK(*in == n || (!control && *in == 0), "read %lu, want %lu", *in, n);
		zeros += *in == 0;
		usleep(100);
	}
	CHECK(zeros <= n / 2, "%lu of %lu words are lost", zeros, n);
	return none;
}

static int victim(void)
{
	d = dev_open();
	struct couple c = couple_new(&d, (struct opt){0});
	struct buf b = buf_new(&d, 8192, ALL_ACCESS);
	struct pollfd in = {.fd = 0, .events = POLLIN};
	double worst = 0;
	long n = 0;

	for (; n % 100 || poll(&in, 1, 0) == 0; n++) {
		double t = vt_now();

		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &b, 0, 64, 1, (uintptr_t)b.p + 4096, b.mr->rkey));
		CHECK(wait_wc(c.a.cq, "the write").status == IBV_WC_SUCCESS, "a write failed");
		t = vt_now() - t;
		worst = t > worst ? t : worst;
		if (t > SLOW)
			printf("slow %.0f\n", 1e3 * t);
		if (n == 0) {
			printf("begun\n");
			fflush(stdout);
		}
	}
	printf("%ld writes, longest %.0f ms\n", n, 1e3 * worst);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "victim") == 0)
		return victim();
	CHECK(argc == 4, "usage: punch MIB HOLES holes|control, or punch victim");
	size = strtoul(argv[1], NULL, 10) << 20;
	control = strcmp(argv[3], "control") == 0;
	int holes = atoi(argv[2]);
	pthread_t t;
	double total = 0;

	d = dev_open();
	mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mem != MAP_FAILED, "mmap: %s", strerror(errno));
	ZERO(madvise(mem, size, MADV_POPULATE_WRITE));
	mr = MADE(ibv_reg_mr(d.pd, mem, size, ALL_ACCESS));
	int fd = memfd();
	ZERO(pthread_create(&t, NULL, writer, NULL));
	printf("begun\n");
	fflush(stdout);
	for (int i = 0; i < holes; i++) {
		double at = vt_now();

		ZERO(syscall(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (uintptr_t)mem, size));
		total += vt_now() - at;
		ZERO(madvise(mem, size, MADV_POPULATE_WRITE));
	}
	stop = 1;
	ZERO(pthread_join(t, NULL));
	printf("done, each took %.0f\n", 1e3 * total / holes);
	fflush(stdout);
	getchar(); /* the test looks at the daemon's status */
	return 0;
}
