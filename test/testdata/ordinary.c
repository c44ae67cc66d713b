/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deregistered memory is ordinary memory again: libc calls and bare system calls work on it as
 * always, and no two buffers share a page.
 */
#include "vt.h"
#include <pthread.h>
#include <sys/syscall.h>

enum { N = 1 << 20 };

static struct dev d;
static struct couple c;
static struct buf other; /* the far end of every transfer */

static void start(void)
{
	d = dev_open();
	other = buf_new(&d, N, ALL_ACCESS);
	c = couple_new(&d, (struct opt){0});
}

static void finish(void)
{
	couple_free(&c);
	buf_free(&other);
	dev_close(&d);
}

/* The peer's bytes are written into [p, p+N) through mr. */
static void receive(char *p, struct ibv_mr *mr, uint32_t seed)
{
	fill(other.p, N, seed);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &other, 0, N, 1, (uintptr_t)p, mr->rkey));
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "write");
}

static void expect_zeros(const char *p, size_t n, const char *what)
{
	for (size_t i = 0; i < n; i++)
		CHECK(p[i] == 0, "%s: byte %zu is %d, want 0", what, i, p[i]);
}

/* Two blocks of malloc, neighbours; the second grows. */
static void reallocate(bool registered)
{
	start();
	char *p = malloc(N), *q = malloc(N);
	struct ibv_mr *mp = MADE(ibv_reg_mr(d.pd, p, N, ALL_ACCESS));
	struct ibv_mr *mq = MADE(ibv_reg_mr(d.pd, q, N, ALL_ACCESS));
	receive(p, mp, 1);
	receive(q, mq, 2);
	if (!registered)
		ZERO(ibv_dereg_mr(mq));
	q = realloc(q, 2 * N);
	expect_fill(q, N, 2, "the block that grew");
	fill(q + N, N, 3);
	expect_fill(p, N, 1, "its neighbour");
	receive(p, mp, 4);
	expect_fill(q + N, N, 3, "what it grew by");
	if (registered)
		ZERO(ibv_dereg_mr(mq));
	ZERO(ibv_dereg_mr(mp));
	expect_fill(p, N, 4, "the neighbour in the end");
	free(p);
	free(q);
	finish();
}

static void realloc_after(void)
{
	reallocate(false);
}

static void realloc_registered(void)
{
	reallocate(true);
}

static void dontneed_after(void)
{
	start();
	char *p = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = MADE(ibv_reg_mr(d.pd, p, N, ALL_ACCESS));
	receive(p, mr, 5);
	ZERO(ibv_dereg_mr(mr));
	expect_fill(p, N, 5, "after deregistration");
	ZERO(syscall(SYS_madvise, p, N, MADV_DONTNEED));
	expect_zeros(p, N, "after MADV_DONTNEED");
	mr = MADE(ibv_reg_mr(d.pd, p, N, ALL_ACCESS));
	expect_zeros(p, N, "registered again");
	receive(p, mr, 6);
	ZERO(ibv_dereg_mr(mr));
	expect_fill(p, N, 6, "deregistered again");
	munmap(p, N);
	finish();
}

/* The region keeps the pages of a buffer that is unmapped too early, and releases them later. */
static void unmapped_too_early(void)
{
	start();
	for (uint32_t i = 0; i < 20; i++) {
		char *p = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *q;
		struct ibv_mr *mr = MADE(ibv_reg_mr(d.pd, p, N, ALL_ACCESS));
		munmap(p, N);
		receive(p, mr, i);
		q = mmap(p, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		expect_zeros(q, N, "mapped while it is registered");
		ZERO(ibv_dereg_mr(mr));
		expect_zeros(q, N, "mapped anew");
		mr = MADE(ibv_reg_mr(d.pd, q, N, ALL_ACCESS));
		expect_zeros(q, N, "registered anew");
		ZERO(ibv_dereg_mr(mr));
		munmap(q, N);
	}
	finish();
}

/* Registered, used and deregistered over and over beside a region that lives. */
static void again_and_again(void)
{
	start();
	char *p = malloc(3 * N);
	struct ibv_mr *lives = MADE(ibv_reg_mr(d.pd, p, N + 100, ALL_ACCESS));
	for (uint32_t i = 0; i < 50; i++) {
		struct ibv_mr *mr = MADE(ibv_reg_mr(d.pd, p + N, 2 * N, ALL_ACCESS));
		receive(p + N, mr, i);
		struct buf b = {.p = p + N, .len = N, .mr = mr};
		expect_fill(p + N, N, i, "registered");
		fill(p + N, N, i + 1);
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &b, 0, N, 2, (uintptr_t)other.p, other.mr->rkey));
		expect_wc(c.a.cq, 2, IBV_WC_SUCCESS, "write back");
		ZERO(ibv_dereg_mr(mr));
		expect_fill(other.p, N, i + 1, "what the peer has");
		expect_fill(p + N, N, i + 1, "deregistered");
		receive(p, lives, 100 + i);
		expect_fill(p, N, 100 + i, "the region that lives");
	}
	ZERO(ibv_dereg_mr(lives));
	free(p);
	finish();
}

/* A device is closed while it still has a region. */
static void closed_with_regions(void)
{
	start();
	struct dev second = dev_open();
	char *p = malloc(N), *q = malloc(N);
	fill(p, N, 7);
	fill(q, N, 8);
	MADE(ibv_reg_mr(second.pd, p, N, ALL_ACCESS));
	ZERO(close(second.ctx->cmd_fd));
	p = realloc(p, 2 * N);
	expect_fill(p, N, 7, "after the device was closed");
	fill(p + N, N, 9);
	expect_fill(q, N, 8, "a neighbour");
	finish();
}

static const struct vt_case cases[] = {
	{"realloc_after", realloc_after},
	{"realloc_registered", realloc_registered},
	{"dontneed_after", dontneed_after},
	{"unmapped_too_early", unmapped_too_early},
	{"again_and_again", again_and_again},
	{"closed_with_regions", closed_with_regions},
};

MAIN(cases)
