/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints "ready" and waits until the daemon dies. Then every call must fail soon with the right
 * error, and nothing may hang.
 */
#include <sys/resource.h>

#include "vt.h"

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	struct dev d = dev_open();
	struct buf mem = buf_new(&d, 65536, ALL_ACCESS);
	struct ibv_comp_channel *ch = MADE(ibv_create_comp_channel(d.ctx));
	struct couple c = couple_new(&d, (struct opt){.channel = ch});

	expect_alive(&c, &mem, "before");
	ZERO(ibv_req_notify_cq(c.a.cq, 0));
	printf("ready\n");
	struct pollfd p = {.fd = d.ctx->async_fd, .events = POLLIN};
	CHECK(poll(&p, 1, PATIENCE) == 1, "no event on the async fd %d ms after the daemon died", PATIENCE);
	struct ibv_async_event ev;
	ZERO(ibv_get_async_event(d.ctx, &ev));
	ibv_ack_async_event(&ev);
	CHECK(ev.event_type == IBV_EVENT_DEVICE_FATAL, "event is %s, want DEVICE_FATAL", ibv_event_type_str(ev.event_type));
	double t = vt_now();
	struct ibv_device_attr da;
	struct ibv_port_attr pa;
	int e = ibv_query_port(d.ctx, 1, &pa);
	CHECK(e == EIO || (e == -1 && errno == EIO), "ibv_query_port: %d (errno %d), want EIO", e, errno);
	errno = 0;
	CHECK(!ibv_alloc_pd(d.ctx) && errno == EIO, "ibv_alloc_pd: errno %d, want EIO", errno);
	errno = 0;
	CHECK(!ibv_reg_mr(d.pd, mem.p, 4096, ALL_ACCESS) && errno == EIO, "ibv_reg_mr: errno %d, want EIO", errno);
	errno = 0;
	CHECK(!ibv_create_cq(d.ctx, 16, NULL, NULL, 0) && errno == EIO, "ibv_create_cq: errno %d, want EIO", errno);
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	e = ibv_modify_qp(c.a.qp, &a, IBV_QP_STATE);
	CHECK(e == EIO || errno == EIO, "ibv_modify_qp: %d, want EIO", e);
	(void)ibv_query_device(d.ctx, &da);
	/* Posting fails or has no effect; polling returns nothing or fails. */
	struct work w = rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 1, (uintptr_t)mem.p + 4096, mem.mr->rkey);
	(void)try_send(&c.a, &w);
	struct ibv_wc wc;
	for (int i = 0; i < 1000; i++)
		(void)ibv_poll_cq(c.a.cq, 1, &wc);
	/* A thread that sleeps on the completion channel wakes up. */
	p.fd = ch->fd;
	int r = poll(&p, 1, PATIENCE);
	CHECK(r == 1, "poll on the completion channel: %d, want it to wake", r);
	struct ibv_cq *cq;
	void *ctx;
	(void)ibv_get_cq_event(ch, &cq, &ctx);
	/* A program that ignores the error and polls again sleeps in between: it does not spin. */
	for (int async = 0; async < 2; async++) {
		struct rusage before, after;
		const int times = 20;
		p.fd = async ? d.ctx->async_fd : ch->fd;
		getrusage(RUSAGE_THREAD, &before);
		for (int i = 0; i < times; i++) {
			CHECK(poll(&p, 1, PATIENCE) == 1, "poll does not report the end of the daemon again");
			errno = 0;
			CHECK((async ? ibv_get_async_event(d.ctx, &ev) : ibv_get_cq_event(ch, &cq, &ctx)) && errno == EIO,
			      "an event after the daemon's end, or errno %d instead of EIO", errno);
		}
		getrusage(RUSAGE_THREAD, &after);
		CHECK(after.ru_nvcsw - before.ru_nvcsw >= times, "%ld sleeps in %d reads of the %s file", after.ru_nvcsw - before.ru_nvcsw,
		      times, async ? "asynchronous" : "completion");
	}
	/* Cleaning up may fail, and must not hang or crash. */
	ibv_destroy_qp(c.a.qp);
	ibv_destroy_qp(c.b.qp);
	ibv_dereg_mr(mem.mr);
	memset(mem.p, 1, mem.len);
	ibv_close_device(d.ctx);
	printf("ok after %.3f s\n", vt_now() - t);
	return 0;
}
