/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ownstack: two threads, the first one included, register memory of their own stacks, write to it with RDMA and check each byte,
 * until they are killed. The registered pages contain the frames that are in use meanwhile. The first thread prints "round N".
 *
 * ibv_fork_init splits the mapping of a stack at each region. The registration runs further down the stack than everything else,
 * so at that time the shim does not count the pages as this thread's.
 */
#include "vt.h"
#include <alloca.h>
#include <pthread.h>

enum { PAGE = 4096, SIZE = 16 * PAGE, PART = 4 * PAGE, DEEP = 8 * PAGE };

static struct dev d;

__attribute__((noinline)) static struct ibv_mr *register_deep(void *p, size_t n)
{
	volatile char deep[DEEP];

	for (size_t i = 0; i < sizeof deep; i += 64)
		deep[i] = 1;
	return MADE(ibv_reg_mr(d.pd, p, n, ALL_ACCESS));
}

static void *exchange(void *prints)
{
	/* The stack pointer is at the beginning of this memory, or a little below. */
	char *low = alloca(SIZE);
	char *start = (char *)(((uintptr_t)low & ~(uintptr_t)(PAGE - 1)) - PAGE);
	struct buf all = {.p = start, .len = SIZE, .mr = register_deep(start, SIZE)};
	struct couple c = couple_new(&d, (struct opt){0});
	size_t from = (size_t)(low - start) + PAGE, to = from + 2 * PART;

	for (uint32_t i = 0;; i++) {
		fill(start + from, PART, i);
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &all, from, PART, i, (uintptr_t)start + to, all.mr->rkey));
		expect_wc(c.a.cq, i, IBV_WC_SUCCESS, "write");
		expect_fill(start + to, PART, i, "the stack");
		if (prints && i % 100 == 0)
			printf("round %u\n", i);
	}
	return NULL;
}

int main(void)
{
	pthread_t thread;

	setvbuf(stdout, NULL, _IOLBF, 0);
	ZERO(ibv_fork_init());
	d = dev_open();
	ZERO(pthread_create(&thread, NULL, exchange, NULL));
	exchange(&d);
}
