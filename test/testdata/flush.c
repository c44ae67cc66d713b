/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that is queued when a queue pair fails, or posted afterwards: every request completes once,
 * in order, flushed, and the queue pair can be used again.
 */
#include "vt.h"

static struct dev d;
static struct buf mem;

static struct couple start(struct opt o)
{
	d = dev_open();
	mem = buf_new(&d, 16384, ALL_ACCESS);
	return couple_new(&d, o);
}

static void finish(struct couple *c)
{
	couple_free(c);
	buf_free(&mem);
	dev_close(&d);
}

static void flush_both_queues(void)
{
	struct couple c = start((struct opt){.rnr_retry = 7});

	for (uint64_t i = 0; i < 8; i++)
		post_recv(&c.a, &mem, 0, 64, 100 + i);
	for (uint64_t i = 0; i < 8; i++)
		post_send(&c.a, &mem, 0, 64, 200 + i); /* the peer has no receive: they wait */
	expect_no_wc(c.a.cq, 20, "before");
	end_to(&c.a, IBV_QPS_ERR);
	uint64_t next_recv = 100, next_send = 200;
	for (int i = 0; i < 16; i++) {
		struct ibv_wc wc = wait_wc(c.a.cq, "flush");
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR, "wr_id %llu: %s, want a flush", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
		if (wc.wr_id >= 200)
			CHECK(wc.wr_id == next_send++, "send %llu flushed out of order", (unsigned long long)wc.wr_id);
		else
			CHECK(wc.wr_id == next_recv++, "receive %llu flushed out of order", (unsigned long long)wc.wr_id);
	}
	expect_no_wc(c.a.cq, 20, "after the flush");
	finish(&c);
}

static void flush_sends_posted_in_error(void)
{
	struct couple c = start((struct opt){0});

	end_to(&c.a, IBV_QPS_ERR);
	for (uint64_t i = 0; i < 4; i++)
		post_send(&c.a, &mem, 0, 64, i);
	for (uint64_t i = 0; i < 4; i++)
		expect_wc(c.a.cq, i, IBV_WC_WR_FLUSH_ERR, "send posted in ERR");
	finish(&c);
}

static int cmp_double(const void *a, const void *b)
{
	return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Receives ring no doorbell, but in the error state they must complete soon. */
static void flush_receives_posted_in_error(void)
{
	struct couple c = start((struct opt){0});
	double took[20];

	end_to(&c.a, IBV_QPS_ERR);
	usleep(100000); /* the daemon has gone to sleep by now */
	for (int i = 0; i < 20; i++) {
		double t = vt_now();
		post_recv(&c.a, &mem, 0, 64, (uint64_t)i);
		expect_wc(c.a.cq, (uint64_t)i, IBV_WC_WR_FLUSH_ERR, "receive posted in ERR");
		took[i] = vt_now() - t;
	}
	qsort(took, 20, sizeof(took[0]), cmp_double);
	printf("flush of receives posted in ERR: median %.3f ms, worst %.3f ms\n", took[10] * 1e3, took[19] * 1e3);
	CHECK(took[10] < 0.1, "median is %.3f s, want under 0.1 (and 0.01 on a quiet machine)", took[10]);
	finish(&c);
}

static void flush_behind_an_error(void)
{
	struct couple c = start((struct opt){0});

	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 1, (uintptr_t)mem.p + 4096, 0x12345600));
	for (uint64_t i = 2; i < 6; i++)
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, i, (uintptr_t)mem.p + 4096, mem.mr->rkey));
	expect_wc(c.a.cq, 1, IBV_WC_REM_ACCESS_ERR, "first");
	for (uint64_t i = 2; i < 6; i++)
		expect_wc(c.a.cq, i, IBV_WC_WR_FLUSH_ERR, "those behind it");
	expect_bytes(mem.p + 4096, 64, 0, "target of the flushed writes");
	finish(&c);
}

/* Unsignalled requests complete only when they fail. */
static void flush_unsignalled(void)
{
	struct couple c = start((struct opt){.rnr_retry = 2});
	struct work w = work_new(IBV_WR_SEND, &mem, 0, 64, 1);

	w.wr.send_flags = 0;
	post_work(&c.a, w);
	w.wr.wr_id = 2;
	w.wr.sg_list = NULL;
	post_work(&c.a, w);
	expect_wc(c.a.cq, 1, IBV_WC_RNR_RETRY_EXC_ERR, "unsignalled send that fails");
	expect_wc(c.a.cq, 2, IBV_WC_WR_FLUSH_ERR, "unsignalled send behind it");
	finish(&c);
}

static void reuse_after_error(void)
{
	struct couple c = start((struct opt){.rnr_retry = -1});

	post_send(&c.a, &mem, 0, 64, 1);
	expect_wc(c.a.cq, 1, IBV_WC_RNR_RETRY_EXC_ERR, "make it fail");
	for (int i = 0; i < 3; i++) {
		end_to(&c.a, IBV_QPS_RESET);
		end_to(&c.b, IBV_QPS_RESET);
		qp_init_state(&c.a);
		qp_init_state(&c.b);
		post_recv(&c.b, &mem, 4096, 64, 5);
		end_connect(&c.a, end_addr(&c.b, NULL));
		end_connect(&c.b, end_addr(&c.a, NULL));
		post_send(&c.a, &mem, 0, 64, 4);
		expect_wc(c.a.cq, 4, IBV_WC_SUCCESS, "send after RESET and reconnect");
		expect_wc(c.b.cq, 5, IBV_WC_SUCCESS, "receive after RESET and reconnect");
	}
	finish(&c);
}

static const struct vt_case cases[] = {
	{"flush_both_queues", flush_both_queues},
	{"flush_sends_posted_in_error", flush_sends_posted_in_error},
	{"flush_receives_posted_in_error", flush_receives_posted_in_error},
	{"flush_behind_an_error", flush_behind_an_error},
	{"flush_unsignalled", flush_unsignalled},
	{"reuse_after_error", reuse_after_error},
};

MAIN(cases)
