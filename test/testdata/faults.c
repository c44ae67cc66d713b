/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program sees when it is made to fail on purpose: each case is run with the fault that
 * faults_test.go gives it.
 */
#include "vt.h"

static struct dev d;
static struct buf mem; /* the first half is sent, the second half is received into */

#define HALF (256 << 10)

static struct couple start(struct opt o)
{
	d = dev_open();
	mem = buf_new(&d, 2 * HALF, ALL_ACCESS);
	return couple_new(&d, o);
}

static void finish(struct couple *c)
{
	couple_free(c);
	buf_free(&mem);
	dev_close(&d);
}

static void post_write(struct couple *c, size_t len, uint64_t id)
{
	post_work(&c->a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, len, id, (uintptr_t)mem.p + HALF, mem.mr->rkey));
}

/* One send fails with a status, and the queue pair with it. */
static void send_fails(struct opt o, enum ibv_wc_status want)
{
	struct couple c = start(o);

	post_recv(&c.b, &mem, HALF, 4096, 2);
	post_send(&c.a, &mem, 0, 4096, 1);
	expect_wc(c.a.cq, 1, want, "a send");
	expect_state(&c.a, IBV_QPS_ERR, "requester");
	finish(&c);
}

static void rnr(void) { send_fails((struct opt){.rnr_retry = -1}, IBV_WC_RNR_RETRY_EXC_ERR); }
static void rnr_exceeded(void) { send_fails((struct opt){.rnr_retry = 2}, IBV_WC_RNR_RETRY_EXC_ERR); }
static void retry(void) { send_fails((struct opt){.retry = 7}, IBV_WC_RETRY_EXC_ERR); }
static void silent(void) { send_fails((struct opt){.timeout = 8, .retry = 2}, IBV_WC_RETRY_EXC_ERR); }
static void access_error(void) { send_fails((struct opt){.retry = 7}, IBV_WC_REM_ACCESS_ERR); }

static void qp_error(void)
{
	struct couple c = start((struct opt){.retry = 7});

	post_write(&c, 4096, 1);
	expect_wc(c.a.cq, 1, IBV_WC_WR_FLUSH_ERR, "a write");
	expect_event(d.ctx, IBV_EVENT_QP_FATAL, "the queue pair");
	finish(&c);
}

static void enomem(void)
{
	d = dev_open();
	struct buf first = buf_new(&d, 4096, ALL_ACCESS);
	errno = 0;
	CHECK(!ibv_reg_mr(d.pd, first.p, 4096, ALL_ACCESS) && errno == ENOMEM, "ibv_reg_mr: errno %d, want ENOMEM", errno);
	struct buf third = buf_new(&d, 4096, ALL_ACCESS);
	buf_free(&third);
	buf_free(&first);
	dev_close(&d);
}

/* The data is there, and the completion is not. */
static void completion(void)
{
	struct couple c = start((struct opt){.retry = 7});

	fill(mem.p, 64, 7);
	memset(mem.p + HALF, 0, 64);
	post_write(&c, 64, 1);
	for (double t = vt_now(); memcmp(mem.p, mem.p + HALF, 64) != 0;)
		CHECK(vt_now() - t < PATIENCE / 1000, "no data after %d ms", PATIENCE);
	expect_no_wc(c.a.cq, 20, "a completion that is held back");
	finish(&c);
}

static enum ibv_port_state port_state(void)
{
	struct ibv_port_attr pa;
	ZERO(ibv_query_port(d.ctx, 1, &pa));
	return pa.state;
}

/* The port goes down with the first message and comes up again: the message arrives late. */
static void port(void)
{
	struct couple c = start((struct opt){.retry = 7});

	CHECK(port_state() == IBV_PORT_ACTIVE, "before: port state %d, want ACTIVE", port_state());
	post_write(&c, 4096, 1);
	expect_event(d.ctx, IBV_EVENT_PORT_ERR, "the port");
	expect_event(d.ctx, IBV_EVENT_PORT_ACTIVE, "the port");
	CHECK(port_state() == IBV_PORT_ACTIVE, "after: port state %d, want ACTIVE", port_state());
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "a write over a port that was down");
	finish(&c);
}

static void port_stays_down(void)
{
	struct couple c = start((struct opt){.timeout = 8, .retry = 2});

	post_write(&c, 4096, 1);
	expect_event(d.ctx, IBV_EVENT_PORT_ERR, "the port");
	CHECK(port_state() == IBV_PORT_DOWN, "port state %d, want DOWN", port_state());
	expect_wc(c.a.cq, 1, IBV_WC_RETRY_EXC_ERR, "a write over a port that is down");
	finish(&c);
}

static void device(void)
{
	struct couple c = start((struct opt){.retry = 7});

	post_write(&c, 4096, 1);
	expect_event(d.ctx, IBV_EVENT_DEVICE_FATAL, "the device");
	expect_wc(c.a.cq, 1, IBV_WC_WR_FLUSH_ERR, "a write");
	errno = 0;
	CHECK(!ibv_alloc_pd(d.ctx) && errno == EIO, "ibv_alloc_pd: errno %d, want EIO", errno);
}

static void gid_change(void)
{
	struct couple c = start((struct opt){.retry = 7});

	post_write(&c, 4096, 1);
	expect_event(d.ctx, IBV_EVENT_GID_CHANGE, "the port");
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "a write");
	finish(&c);
}

/* Messages of many packets, one at a time, arrive with the right data. */
static void data(void)
{
	struct couple c = start((struct opt){.retry = 7, .mtu = 4096});

	for (unsigned i = 0; i < 100; i++) {
		size_t len = 50000 + 7 * i;
		fill(mem.p, len, i);
		memset(mem.p + HALF, 0, len);
		if (i % 2) {
			post_write(&c, len, i);
		} else {
			post_recv(&c.b, &mem, HALF, len, i);
			post_send(&c.a, &mem, 0, len, i);
			expect_wc(c.b.cq, i, IBV_WC_SUCCESS, "a receive");
		}
		expect_wc(c.a.cq, i, IBV_WC_SUCCESS, "a message");
		expect_fill(mem.p + HALF, len, i, "a message");
		if (i % 10 == 0) {
			post_work(&c.a, rdma(IBV_WR_RDMA_READ, &mem, 0, len, i, (uintptr_t)mem.p + HALF, mem.mr->rkey));
			expect_wc(c.a.cq, i, IBV_WC_SUCCESS, "a read");
			expect_fill(mem.p, len, i, "a read");
		}
	}
	finish(&c);
}

static const struct vt_case cases[] = {
	{"rnr", rnr}, {"rnr_exceeded", rnr_exceeded}, {"retry", retry}, {"silent", silent}, {"access", access_error},
	{"qp_error", qp_error}, {"enomem", enomem}, {"completion", completion}, {"port", port},
	{"port_stays_down", port_stays_down}, {"device", device}, {"gid_change", gid_change}, {"data", data},
};

MAIN(cases)
