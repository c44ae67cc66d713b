/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion queues, shared receive queues, the queue pair's states, limits.
 */
#include "vt.h"
#include <fcntl.h>

static struct dev d;
static struct buf mem;

static void start(void)
{
	d = dev_open();
	mem = buf_new(&d, 65536, ALL_ACCESS);
}

static void finish(void)
{
	buf_free(&mem);
	dev_close(&d);
}

static uint64_t at(size_t off)
{
	return (uintptr_t)mem.p + off;
}

/* ---- completion queues ---- */

static void cq_overflow(void)
{
	start();
	struct ibv_cq *cq = MADE(ibv_create_cq(d.ctx, 4, NULL, NULL, 0));
	int room = cq->cqe;
	struct couple c = couple_new(&d, (struct opt){.send_cq = cq, .depth = 256});
	for (int i = 0; i < room + 20 && i < 200; i++) {
		struct work w = rdma(IBV_WR_RDMA_WRITE, &mem, 0, 8, (uint64_t)i, at(4096), mem.mr->rkey);
		post_work(&c.a, w);
	}
	struct ibv_async_event ev = expect_event(d.ctx, IBV_EVENT_CQ_ERR, "more completions than the queue holds");
	CHECK(ev.element.cq == cq, "the event names another CQ");
	couple_free(&c);
	ZERO(ibv_destroy_cq(cq));
	finish();
}

static struct ibv_comp_channel *channel;

static bool event_comes(struct ibv_cq *cq, int ms)
{
	struct pollfd p = {.fd = channel->fd, .events = POLLIN};
	struct ibv_cq *got;
	void *ctx;

	if (poll(&p, 1, ms) <= 0)
		return false;
	ZERO(ibv_get_cq_event(channel, &got, &ctx));
	CHECK(got == cq, "event of another CQ");
	CHECK(ctx == &channel, "event with another context");
	ibv_ack_cq_events(got, 1);
	return true;
}

static void cq_notification(void)
{
	start();
	channel = MADE(ibv_create_comp_channel(d.ctx));
	struct ibv_cq *cq = MADE(ibv_create_cq(d.ctx, 64, &channel, channel, 0));
	struct ibv_cq *scq = MADE(ibv_create_cq(d.ctx, 64, NULL, NULL, 0));
	struct couple c = couple_new(&d, (struct opt){.send_cq = scq, .recv_cq = cq});
	struct work w = work_new(IBV_WR_SEND, &mem, 0, 8, 1);

	for (int i = 0; i < 20; i++)
		post_recv(&c.b, &mem, 4096, 64, 50);
	post_work(&c.a, w);
	CHECK(!event_comes(cq, 50), "event without a request for one");
	/* Arming after the completion: no event for existing completions. */
	ZERO(ibv_req_notify_cq(cq, 0));
	post_work(&c.a, w);
	CHECK(event_comes(cq, PATIENCE), "no event after ibv_req_notify_cq");
	post_work(&c.a, w);
	CHECK(!event_comes(cq, 50), "a second event for one request");
	ZERO(ibv_req_notify_cq(cq, 1));
	post_work(&c.a, w);
	CHECK(!event_comes(cq, 50), "event for an unsolicited message, asked for solicited ones");
	w.wr.send_flags |= IBV_SEND_SOLICITED;
	post_work(&c.a, w);
	CHECK(event_comes(cq, PATIENCE), "no event for a solicited message");
	ZERO(ibv_req_notify_cq(cq, 1));
	end_to(&c.b, IBV_QPS_ERR);
	CHECK(event_comes(cq, PATIENCE), "no event for a failed receive, asked for solicited ones");
	couple_free(&c);
	ZERO(ibv_destroy_cq(cq));
	ZERO(ibv_destroy_cq(scq));
	ZERO(ibv_destroy_comp_channel(channel));
	finish();
}

/* Unread events must not block the destruction of the queue. */
static void cq_destroy_with_unread_events(void)
{
	start();
	channel = MADE(ibv_create_comp_channel(d.ctx));
	struct ibv_cq *cq = MADE(ibv_create_cq(d.ctx, 64, &channel, channel, 0));
	struct couple c = couple_new(&d, (struct opt){.send_cq = cq});
	struct ibv_wc wc;

	for (int i = 0; i < 5; i++) {
		ZERO(ibv_req_notify_cq(cq, 0));
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 8, 1, at(4096), mem.mr->rkey));
		CHECK(poll_wc(cq, &wc, PATIENCE), "no completion");
	}
	couple_free(&c);
	ZERO(ibv_destroy_cq(cq));
	ZERO(ibv_destroy_comp_channel(channel));
	finish();
}

static void cq_nonblocking_channel(void)
{
	start();
	channel = MADE(ibv_create_comp_channel(d.ctx));
	struct ibv_cq *cq = MADE(ibv_create_cq(d.ctx, 64, &channel, channel, 0)), *got;
	void *ctx;
	ZERO(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK));
	errno = 0;
	int r = ibv_get_cq_event(channel, &got, &ctx);
	CHECK(r == -1 && errno == EAGAIN, "ibv_get_cq_event on an empty non-blocking channel: %d, errno %d, want -1 and EAGAIN", r, errno);
	ZERO(ibv_destroy_cq(cq));
	ZERO(ibv_destroy_comp_channel(channel));
	finish();
}

static void cq_resize(void)
{
	start();
	struct ibv_cq *cq = MADE(ibv_create_cq(d.ctx, 8, NULL, NULL, 0));
	struct couple c = couple_new(&d, (struct opt){.send_cq = cq, .depth = 200});
	for (uint64_t i = 0; i < 5; i++)
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 8, i, at(4096), mem.mr->rkey));
	usleep(50000);
	ZERO(ibv_resize_cq(cq, 300));
	CHECK(cq->cqe >= 300, "cqe is %d after a resize to 300", cq->cqe);
	for (uint64_t i = 5; i < 105; i++)
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 8, i, at(4096), mem.mr->rkey));
	for (uint64_t i = 0; i < 105; i++)
		expect_wc(cq, i, IBV_WC_SUCCESS, "completion before and after a resize");
	for (uint64_t i = 0; i < 49; i++)
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 8, i, at(4096), mem.mr->rkey));
	/* No thread may poll; but the last completion shows that the others are done. */
	volatile char *fetched = mem.p + 64;
	mem.p[8192] = 1, *fetched = 0;
	post_work(&c.a, rdma(IBV_WR_RDMA_READ, &mem, 64, 1, 49, at(8192), mem.mr->rkey));
	for (double until = vt_now() + PATIENCE / 1e3; !*fetched && vt_now() < until;)
		sched_yield();
	int e = ibv_resize_cq(cq, 10);
	CHECK(e == EINVAL, "resize to 10 with 50 completions: %d, want EINVAL", e);
	couple_free(&c);
	ZERO(ibv_destroy_cq(cq));
	finish();
}

static void cq_extended(void)
{
	start();
	struct ibv_cq_init_attr_ex a = {.cqe = 64, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM};
	struct ibv_cq_ex *ex = MADE(ibv_create_cq_ex(d.ctx, &a));
	struct couple c = couple_new(&d, (struct opt){.recv_cq = ibv_cq_ex_to_cq(ex), .send_cq = MADE(ibv_create_cq(d.ctx, 64, NULL, NULL, 0))});
	struct work w = work_new(IBV_WR_SEND_WITH_IMM, &mem, 0, 33, 1);

	w.wr.imm_data = htonl(0x12345678);
	post_recv(&c.b, &mem, 4096, 64, 2);
	post_work(&c.a, w);
	struct ibv_poll_cq_attr pa = {0};
	double until = vt_now() + PATIENCE / 1e3;
	int r;
	while ((r = ibv_start_poll(ex, &pa)) == ENOENT && vt_now() < until)
		sched_yield();
	ZERO(r);
	CHECK(ex->wr_id == 2 && ex->status == IBV_WC_SUCCESS, "wr_id %llu status %d", (unsigned long long)ex->wr_id, ex->status);
	CHECK(ibv_wc_read_byte_len(ex) == 33, "byte_len %u, want 33", ibv_wc_read_byte_len(ex));
	CHECK(ntohl(ibv_wc_read_imm_data(ex)) == 0x12345678, "immediate %#x", ntohl(ibv_wc_read_imm_data(ex)));
	CHECK(ibv_wc_read_qp_num(ex) == c.b.qp->qp_num, "QP number %#x", ibv_wc_read_qp_num(ex));
	CHECK(ibv_next_poll(ex) == ENOENT, "a second completion");
	ibv_end_poll(ex);
	struct ibv_cq *scq = c.a.cq;
	couple_free(&c);
	ZERO(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)));
	ZERO(ibv_destroy_cq(scq));
	finish();
}

/* ---- shared receive queues ---- */

static void srq_limit_event(void)
{
	start();
	struct ibv_srq_init_attr ia = {.attr = {.max_wr = 64, .max_sge = 2}};
	struct ibv_srq *srq = MADE(ibv_create_srq(d.pd, &ia));
	struct couple c = couple_new(&d, (struct opt){.srq = srq});
	struct ibv_srq_attr a = {.srq_limit = 5};

	for (uint64_t i = 0; i < 10; i++)
		post_recv(&c.b, &mem, 4096 + i * 64, 64, i);
	ZERO(ibv_modify_srq(srq, &a, IBV_SRQ_LIMIT));
	memset(&a, 0, sizeof(a));
	ZERO(ibv_query_srq(srq, &a));
	CHECK(a.srq_limit == 5 && a.max_wr >= 64, "query: limit %u, max_wr %u", a.srq_limit, a.max_wr);
	for (uint64_t i = 0; i < 8; i++)
		post_send(&c.a, &mem, 0, 32, i);
	struct ibv_async_event ev = expect_event(d.ctx, IBV_EVENT_SRQ_LIMIT_REACHED, "fewer receives than the limit");
	CHECK(ev.element.srq == srq, "the event names another SRQ");
	ZERO(ibv_query_srq(srq, &a));
	CHECK(a.srq_limit == 0, "the limit is still %u after its event", a.srq_limit);
	int e = ibv_destroy_srq(srq);
	CHECK(e == EBUSY, "ibv_destroy_srq with QPs: %d, want EBUSY", e);
	couple_free(&c);
	ZERO(ibv_destroy_srq(srq));
	finish();
}

/* Receives of one queue serve many queue pairs, each used once, in order. */
static void srq_many_qps(void)
{
	start();
	struct ibv_srq_init_attr ia = {.attr = {.max_wr = 256, .max_sge = 1}};
	struct ibv_srq *srq = MADE(ibv_create_srq(d.pd, &ia));
	struct ibv_cq *scq = MADE(ibv_create_cq(d.ctx, 1000, NULL, NULL, 0)), *rcq = MADE(ibv_create_cq(d.ctx, 1000, NULL, NULL, 0));
	struct couple c[8];
	bool used[160] = {false};

	for (int i = 0; i < 8; i++)
		c[i] = couple_new(&d, (struct opt){.srq = srq, .send_cq = scq, .recv_cq = rcq});
	for (uint64_t i = 0; i < 160; i++)
		post_recv(&c[0].b, &mem, 16384 + i * 64, 64, i);
	for (uint64_t i = 0; i < 160; i++) {
		((uint64_t *)mem.p)[i] = i;
		post_work(&c[i % 8].a, work_new(IBV_WR_SEND, &mem, i * 8, 8, i));
	}
	for (int i = 0; i < 160; i++) {
		struct ibv_wc wc = wait_wc(rcq, "receive of a shared queue");
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id < 160 && !used[wc.wr_id], "receive %llu: %s, or used twice", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
		used[wc.wr_id] = true;
		uint64_t sent = *(uint64_t *)(mem.p + 16384 + wc.wr_id * 64);
		CHECK(wc.qp_num == c[sent % 8].b.qp->qp_num, "message %llu came on QP %#x", (unsigned long long)sent, wc.qp_num);
	}
	for (int i = 0; i < 8; i++)
		couple_free(&c[i]);
	ZERO(ibv_destroy_cq(scq));
	ZERO(ibv_destroy_cq(rcq));
	ZERO(ibv_destroy_srq(srq));
	finish();
}

static void srq_resize(void)
{
	start();
	struct ibv_srq_init_attr ia = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_srq *srq = MADE(ibv_create_srq(d.pd, &ia));
	struct couple c = couple_new(&d, (struct opt){.srq = srq});
	struct ibv_srq_attr a = {.max_wr = 200};

	for (uint64_t i = 0; i < 8; i++)
		post_recv(&c.b, &mem, 4096, 64, i);
	ZERO(ibv_modify_srq(srq, &a, IBV_SRQ_MAX_WR));
	for (uint64_t i = 8; i < 100; i++)
		post_recv(&c.b, &mem, 4096, 64, i);
	for (uint64_t i = 0; i < 60; i++)
		post_send(&c.a, &mem, 0, 8, i);
	for (uint64_t i = 0; i < 60; i++) {
		expect_wc(c.b.cq, i, IBV_WC_SUCCESS, "receive before and after a resize");
		expect_wc(c.a.cq, i, IBV_WC_SUCCESS, "send");
	}
	couple_free(&c);
	ZERO(ibv_destroy_srq(srq));
	finish();
}

/* ---- states ---- */

static int modify(struct end *e, enum ibv_qp_state to, int mask)
{
	struct ibv_qp_attr a = {.qp_state = to, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				.max_rd_atomic = 1, .max_dest_rd_atomic = 1, .min_rnr_timer = 1, .qkey = 1,
				.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = d.gid, .sgid_index = (uint8_t)d.gid_index, .hop_limit = 1}}};

	return ibv_modify_qp(e->qp, &a, IBV_QP_STATE | mask);
}

static void qp_state_table(void)
{
	const int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	const int rtr = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	const int rts = IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

	start();
	struct end e = end_new(&d, (struct opt){0}); /* in INIT */
	end_to(&e, IBV_QPS_RESET);
#define REFUSED(to, mask)                                                                                              \
	do {                                                                                                           \
		enum ibv_qp_state was = qp_state(&e);                                                                  \
		int r = modify(&e, to, mask);                                                                          \
		CHECK(r == EINVAL, "from state %d to %s with %s: got %d, want EINVAL", was, #to, #mask, r);            \
		CHECK(qp_state(&e) == was, "a refused transition changed the state");                                  \
	} while (0)
#define TAKEN(to, mask)                                                                                                \
	do {                                                                                                           \
		int r = modify(&e, to, mask);                                                                          \
		CHECK(r == 0, "to %s with %s: got %d, want 0", #to, #mask, r);                                         \
		CHECK(qp_state(&e) == to, "state is %d, want %s", qp_state(&e), #to);                                  \
	} while (0)
	REFUSED(IBV_QPS_RTR, rtr);
	REFUSED(IBV_QPS_RTS, rts);
	REFUSED(IBV_QPS_SQD, 0);
	REFUSED(IBV_QPS_INIT, 0);
	REFUSED(IBV_QPS_INIT, init & ~IBV_QP_PORT);
	REFUSED(IBV_QPS_INIT, init | IBV_QP_QKEY); /* RC has no Q_Key */
	TAKEN(IBV_QPS_INIT, init);
	TAKEN(IBV_QPS_INIT, init);
	REFUSED(IBV_QPS_RTS, rts);
	REFUSED(IBV_QPS_RTR, rtr & ~IBV_QP_AV);
	REFUSED(IBV_QPS_RTR, rtr & ~IBV_QP_DEST_QPN);
	REFUSED(IBV_QPS_RTR, rtr & ~IBV_QP_MIN_RNR_TIMER);
	TAKEN(IBV_QPS_RTR, rtr);
	REFUSED(IBV_QPS_INIT, init);
	REFUSED(IBV_QPS_RTS, rts & ~IBV_QP_SQ_PSN);
	REFUSED(IBV_QPS_SQD, 0);
	TAKEN(IBV_QPS_RTS, rts);
	REFUSED(IBV_QPS_RTR, rtr);
	REFUSED(IBV_QPS_RTS, IBV_QP_SQ_PSN);
	TAKEN(IBV_QPS_RTS, IBV_QP_MIN_RNR_TIMER);
	TAKEN(IBV_QPS_SQD, 0);
	TAKEN(IBV_QPS_RTS, 0);
	TAKEN(IBV_QPS_ERR, 0);
	REFUSED(IBV_QPS_RTS, rts);
	TAKEN(IBV_QPS_RESET, 0);
	REFUSED(IBV_QPS_ERR, 0);
	end_free(&e);
	finish();
}

static void qp_query(void)
{
	start();
	struct couple c = couple_new(&d, (struct opt){.timeout = 12, .retry = 5, .rnr_retry = 3, .min_rnr = 9});
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;

	ZERO(ibv_query_qp(c.a.qp, &a, IBV_QP_RATE_LIMIT - 1, &i)); /* all but the newest */
	CHECK(a.qp_state == IBV_QPS_RTS && a.cur_qp_state == IBV_QPS_RTS, "state %d/%d", a.qp_state, a.cur_qp_state);
	CHECK(a.dest_qp_num == c.b.qp->qp_num, "dest_qp_num %#x", a.dest_qp_num);
	CHECK(a.timeout == 12 && a.retry_cnt == 5 && a.rnr_retry == 3 && a.min_rnr_timer == 9, "timers %d %d %d %d", a.timeout, a.retry_cnt, a.rnr_retry, a.min_rnr_timer);
	CHECK(a.path_mtu == IBV_MTU_1024, "path_mtu %d", a.path_mtu);
	CHECK(a.sq_psn == end_addr(&c.a, NULL).psn && a.rq_psn == end_addr(&c.b, NULL).psn, "PSNs %#x %#x", a.sq_psn, a.rq_psn);
	CHECK(!memcmp(&a.ah_attr.grh.dgid, &d.gid, 16), "destination GID differs");
	CHECK(a.qp_access_flags == QP_ACCESS, "access %#x", a.qp_access_flags);
	CHECK(a.max_rd_atomic == 8 && a.max_dest_rd_atomic == 8, "rd_atomic %d %d", a.max_rd_atomic, a.max_dest_rd_atomic);
	CHECK(i.send_cq == c.a.cq && i.recv_cq == c.a.cq && i.qp_type == IBV_QPT_RC, "init attributes differ");
	CHECK(a.cap.max_send_wr >= 64 && a.cap.max_send_sge >= 4, "caps %u %u", a.cap.max_send_wr, a.cap.max_send_sge);
	couple_free(&c);
	finish();
}

/* SQD: started work ends, the event arrives, new work waits, and RTS resumes it. */
static void sqd(void)
{
	start();
	struct couple c = couple_new(&d, (struct opt){0});
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};

	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 4096, 1, at(8192), mem.mr->rkey));
	ZERO(ibv_modify_qp(c.a.qp, &a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	struct ibv_async_event ev = expect_event(d.ctx, IBV_EVENT_SQ_DRAINED, "SQD with notification");
	CHECK(ev.element.qp == c.a.qp, "the event names another QP");
	/* The write above may or may not have started before SQD. */
	struct ibv_wc wc;
	bool first = poll_wc(c.a.cq, &wc, 30);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 4096, 2, at(8192), mem.mr->rkey));
	expect_no_wc(c.a.cq, 50, "work posted in SQD");
	struct ibv_qp_attr q;
	struct ibv_qp_init_attr qi;
	ZERO(ibv_query_qp(c.a.qp, &q, IBV_QP_STATE, &qi));
	CHECK(q.qp_state == IBV_QPS_SQD && !q.sq_draining, "state %d, draining %d", q.qp_state, q.sq_draining);
	/* The responder side goes on. */
	fill(mem.p, 64, 5);
	post_work(&c.b, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 3, at(16384), mem.mr->rkey));
	expect_wc(c.b.cq, 3, IBV_WC_SUCCESS, "write by the peer while we are in SQD");
	end_to(&c.a, IBV_QPS_RTS);
	if (!first)
		expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "work posted before SQD");
	expect_wc(c.a.cq, 2, IBV_WC_SUCCESS, "work posted in SQD, after RTS");
	couple_free(&c);
	finish();
}

static void keys_and_numbers_are_random(void)
{
	enum { N = 32 };
	struct end e[N];
	int near = 0;

	start();
	for (int i = 0; i < N; i++)
		e[i] = end_new(&d, (struct opt){.depth = 1});
	for (int i = 1; i < N; i++)
		near += abs((int)e[i].qp->qp_num - (int)e[i - 1].qp->qp_num) < 256;
	CHECK(near < N / 2, "%d of %d QP numbers follow one another: they can be guessed", near, N);
	for (int i = 0; i < N; i++) {
		CHECK(e[i].qp->qp_num > 1 && e[i].qp->qp_num < 1 << 24, "QP number %#x", e[i].qp->qp_num);
		end_free(&e[i]);
	}
	finish();
}

static void limits_give_the_kernels_errno(void)
{
	start();
	struct ibv_device_attr a;
	ZERO(ibv_query_device(d.ctx, &a));
	CHECK(a.max_qp > 0 && a.max_cq > 0 && a.max_mr > 0 && a.max_sge > 0 && a.max_qp_wr > 0, "limits are zero");
	errno = 0;
	CHECK(!ibv_create_cq(d.ctx, a.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL, "CQ of max_cqe+1: errno %d, want EINVAL", errno);
	struct ibv_cq *cq = MADE(ibv_create_cq(d.ctx, 16, NULL, NULL, 0));
	struct ibv_qp_init_attr q = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = (uint32_t)a.max_qp_wr + 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
	errno = 0;
	CHECK(!ibv_create_qp(d.pd, &q) && errno == EINVAL, "QP with max_qp_wr+1: errno %d, want EINVAL", errno);
	q.cap.max_send_wr = 1;
	q.cap.max_send_sge = (uint32_t)a.max_sge + 1;
	errno = 0;
	CHECK(!ibv_create_qp(d.pd, &q) && errno == EINVAL, "QP with max_sge+1: errno %d, want EINVAL", errno);
	ZERO(ibv_destroy_cq(cq));
	finish();
}

/* Queues as deep as libfabric's rxm wants them, and work that fills them: a completion queue
 * of 262144 entries, and as many unpolled completions in it as a ring of 200000 requests has.
 */
static void deep_queues(void)
{
	start();
	struct ibv_device_attr a;
	ZERO(ibv_query_device(d.ctx, &a));
	CHECK(a.max_cqe >= 262144 && a.max_qp_wr >= 1048576 && a.max_srq_wr >= 1048576, "max_cqe %d, max_qp_wr %d, max_srq_wr %d", a.max_cqe, a.max_qp_wr, a.max_srq_wr);
	struct ibv_cq *largest = MADE(ibv_create_cq(d.ctx, a.max_cqe, NULL, NULL, 0));
	ZERO(ibv_destroy_cq(largest));
	struct ibv_srq_init_attr sa = {.attr = {.max_wr = (uint32_t)a.max_srq_wr, .max_sge = 1}};
	ZERO(ibv_destroy_srq(MADE(ibv_create_srq(d.pd, &sa))));
	struct ibv_cq *cq = MADE(ibv_create_cq(d.ctx, 262144, NULL, NULL, 0));
	struct ibv_qp_init_attr qa = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = (uint32_t)a.max_qp_wr, .max_recv_wr = (uint32_t)a.max_qp_wr, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *qp = MADE(ibv_create_qp(d.pd, &qa));
	ZERO(ibv_destroy_qp(qp));
	enum { N = 200000 };
	struct couple c = couple_new(&d, (struct opt){.send_cq = cq, .depth = N, .sge = 1});
	for (uint64_t i = 0; i < N; i++)
		post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 8, i, at(4096), mem.mr->rkey));
	for (uint64_t i = 0; i < N; i++)
		expect_wc(cq, i, IBV_WC_SUCCESS, "one of 200000 completions");
	couple_free(&c);
	ZERO(ibv_destroy_cq(cq));
	finish();
}

/* Values above the device's limits are refused with the right errno. */
static void raw_packet_qp_is_refused(void)
{
	start();
	struct ibv_cq *cq = MADE(ibv_create_cq(d.ctx, 16, NULL, NULL, 0));
	struct ibv_qp_init_attr q = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET, .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
	errno = 0;
	CHECK(!ibv_create_qp(d.pd, &q) && errno == EOPNOTSUPP, "raw packet QP: errno %d, want EOPNOTSUPP", errno);
	ZERO(ibv_destroy_cq(cq));
	finish();
}

static const struct vt_case cases[] = {
	{"cq_overflow", cq_overflow},
	{"cq_notification", cq_notification},
	{"cq_destroy_with_unread_events", cq_destroy_with_unread_events},
	{"cq_nonblocking_channel", cq_nonblocking_channel},
	{"cq_resize", cq_resize},
	{"cq_extended", cq_extended},
	{"srq_limit_event", srq_limit_event},
	{"srq_many_qps", srq_many_qps},
	{"srq_resize", srq_resize},
	{"qp_state_table", qp_state_table},
	{"qp_query", qp_query},
	{"sqd", sqd},
	{"keys_and_numbers_are_random", keys_and_numbers_are_random},
	{"limits_give_the_kernels_errno", limits_give_the_kernels_errno},
	{"deep_queues", deep_queues},
	{"raw_packet_qp_is_refused", raw_packet_qp_is_refused},
};

MAIN(cases)
