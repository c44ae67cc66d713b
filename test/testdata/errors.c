/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every way in which a work request can fail: the status on both sides, the state of both queue
 * pairs afterwards, and no write outside the target.
 */
#include "vt.h"

static struct dev d;
static struct buf mem; /* one page for each side, with every right */

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

static uint64_t remote(size_t off)
{
	return (uintptr_t)mem.p + off;
}

/* ---- receiver not ready, peer not there ---- */

static void rnr_retry_exceeded(void)
{
	struct couple c = start((struct opt){.rnr_retry = 2});

	post_send(&c.a, &mem, 0, 64, 1);
	expect_wc(c.a.cq, 1, IBV_WC_RNR_RETRY_EXC_ERR, "send without a receive");
	expect_state(&c.a, IBV_QPS_ERR, "requester");
	expect_state(&c.b, IBV_QPS_RTS, "responder");
	finish(&c);
}

static void rnr_retry_zero(void)
{
	struct couple c = start((struct opt){.rnr_retry = -1});

	post_send(&c.a, &mem, 0, 64, 1);
	expect_wc(c.a.cq, 1, IBV_WC_RNR_RETRY_EXC_ERR, "send without a receive, no retry");
	finish(&c);
}

static void rnr_for_ever_until_receive(void)
{
	struct couple c = start((struct opt){.rnr_retry = 7});

	fill(mem.p, 64, 1);
	post_send(&c.a, &mem, 0, 64, 1);
	expect_no_wc(c.a.cq, 50, "send before the receive, rnr_retry 7");
	post_recv(&c.b, &mem, 4096, 64, 2);
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "send after the receive came");
	expect_wc(c.b.cq, 2, IBV_WC_SUCCESS, "late receive");
	expect_fill(mem.p + 4096, 64, 1, "late receive");
	finish(&c);
}

static void retry_exceeded_peer_destroyed(void)
{
	struct couple c = start((struct opt){.timeout = 8, .retry = 2});

	ZERO(ibv_destroy_qp(c.b.qp));
	post_send(&c.a, &mem, 0, 64, 1);
	post_send(&c.a, &mem, 0, 64, 2);
	expect_wc(c.a.cq, 1, IBV_WC_RETRY_EXC_ERR, "send to a destroyed QP");
	expect_wc(c.a.cq, 2, IBV_WC_WR_FLUSH_ERR, "the one behind it");
	expect_state(&c.a, IBV_QPS_ERR, "requester");
	end_free(&c.a);
	ZERO(ibv_destroy_cq(c.b.cq));
	buf_free(&mem);
	dev_close(&d);
}

static void retry_exceeded_peer_reset(void)
{
	struct couple c = start((struct opt){.timeout = 8, .retry = 1});

	end_to(&c.b, IBV_QPS_RESET);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 1, remote(4096), mem.mr->rkey));
	expect_wc(c.a.cq, 1, IBV_WC_RETRY_EXC_ERR, "write to a QP in RESET");
	expect_bytes(mem.p + 4096, 64, 0, "target");
	finish(&c);
}

/* The requester's own timeout counts: 4.096 µs * 2^16 twice is half a second. */
static void retry_exceeded_not_early(void)
{
	struct couple c = start((struct opt){.timeout = 16, .retry = 1});

	end_to(&c.b, IBV_QPS_ERR);
	double t = vt_now();
	post_send(&c.a, &mem, 0, 64, 1);
	expect_wc(c.a.cq, 1, IBV_WC_RETRY_EXC_ERR, "send to a QP in ERR");
	CHECK(vt_now() - t > 0.268, "gave up after %.3f s, before one timeout of 0.268 s", vt_now() - t);
	finish(&c);
}

/* ---- remote access ---- */

/* One bad remote operation by a; target and neighbours must keep their bytes. */
static void bad_remote(struct couple *c, struct work w, enum ibv_wc_status want, const char *what)
{
	memset(mem.p, 0x5a, mem.len);
	post_recv(&c->b, &mem, 8192, 64, 77);
	post_work(&c->a, w);
	expect_wc(c->a.cq, w.wr.wr_id, want, what);
	expect_state(&c->a, IBV_QPS_ERR, "requester");
	expect_state(&c->b, IBV_QPS_ERR, "responder");
	expect_wc(c->b.cq, 77, IBV_WC_WR_FLUSH_ERR, "receive of the responder");
	expect_bytes(mem.p, mem.len, 0x5a, what);
}

static void write_bad_rkey(void)
{
	struct couple c = start((struct opt){0});

	bad_remote(&c, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 1, remote(4096), mem.mr->rkey ^ 0x5500), IBV_WC_REM_ACCESS_ERR, "write, unknown rkey");
	finish(&c);
}

static void write_stale_key_byte(void)
{
	struct couple c = start((struct opt){0});

	bad_remote(&c, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 1, remote(4096), mem.mr->rkey ^ 0x1), IBV_WC_REM_ACCESS_ERR, "write, low byte of the rkey wrong");
	finish(&c);
}

static void read_bad_rkey(void)
{
	struct couple c = start((struct opt){0});

	bad_remote(&c, rdma(IBV_WR_RDMA_READ, &mem, 0, 64, 1, remote(4096), mem.mr->rkey ^ 0x5500), IBV_WC_REM_ACCESS_ERR, "read, unknown rkey");
	finish(&c);
}

static void atomic_bad_rkey(void)
{
	struct couple c = start((struct opt){0});

	bad_remote(&c, atomic_op(IBV_WR_ATOMIC_FETCH_AND_ADD, &mem, 0, 1, remote(4096), mem.mr->rkey ^ 0x5500, 1, 0), IBV_WC_REM_ACCESS_ERR, "atomic, unknown rkey");
	finish(&c);
}

static void write_past_end(void)
{
	struct couple c = start((struct opt){0});

	bad_remote(&c, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 1, remote(mem.len - 63), mem.mr->rkey), IBV_WC_REM_ACCESS_ERR, "write one byte past the end");
	finish(&c);
}

static void write_before_start(void)
{
	struct couple c = start((struct opt){0});

	bad_remote(&c, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 1, remote(0) - 1, mem.mr->rkey), IBV_WC_REM_ACCESS_ERR, "write one byte before the start");
	finish(&c);
}

static void write_wraps_address_space(void)
{
	struct couple c = start((struct opt){0});

	bad_remote(&c, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 1, UINT64_MAX - 31, mem.mr->rkey), IBV_WC_REM_ACCESS_ERR, "write around the end of the address space");
	finish(&c);
}

static void read_past_end(void)
{
	struct couple c = start((struct opt){0});

	bad_remote(&c, rdma(IBV_WR_RDMA_READ, &mem, 0, 4096, 1, remote(mem.len - 4095), mem.mr->rkey), IBV_WC_REM_ACCESS_ERR, "read past the end");
	finish(&c);
}

/* A region without one right, then the operation that needs it. */
static void without(int right, enum ibv_wr_opcode op, const char *what)
{
	struct couple c = start((struct opt){0});
	struct buf r = buf_new(&d, 4096, (ALL_ACCESS & ~right) | IBV_ACCESS_LOCAL_WRITE);
	struct work w = op == IBV_WR_ATOMIC_FETCH_AND_ADD ? atomic_op(op, &mem, 0, 1, (uintptr_t)r.p, r.mr->rkey, 1, 0)
							  : rdma(op, &mem, 0, 64, 1, (uintptr_t)r.p, r.mr->rkey);

	bad_remote(&c, w, IBV_WC_REM_ACCESS_ERR, what);
	expect_bytes(r.p, r.len, 0, what);
	buf_free(&r);
	finish(&c);
}

static void write_without_right(void) { without(IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_WRITE, "write to a region without REMOTE_WRITE"); }
static void read_without_right(void) { without(IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_READ, "read of a region without REMOTE_READ"); }
static void atomic_without_right(void) { without(IBV_ACCESS_REMOTE_ATOMIC, IBV_WR_ATOMIC_FETCH_AND_ADD, "atomic on a region without REMOTE_ATOMIC"); }

/* rxe answers "invalid request" when the QP itself does not allow the operation. */
static void write_qp_without_access(void)
{
	struct couple c = start((struct opt){.no_access = true});

	bad_remote(&c, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 1, remote(4096), mem.mr->rkey), IBV_WC_REM_INV_REQ_ERR, "write to a QP without REMOTE_WRITE");
	finish(&c);
}

static void rkey_of_other_pd(void)
{
	struct couple c = start((struct opt){0});
	struct dev other = d;
	other.pd = MADE(ibv_alloc_pd(d.ctx));
	struct buf r = buf_new(&other, 4096, ALL_ACCESS);

	bad_remote(&c, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 1, (uintptr_t)r.p, r.mr->rkey), IBV_WC_REM_ACCESS_ERR, "write to a region of another PD");
	expect_bytes(r.p, r.len, 0, "region of another PD");
	buf_free(&r);
	ZERO(ibv_dealloc_pd(other.pd));
	finish(&c);
}

static void rkey_after_dereg(void)
{
	struct couple c = start((struct opt){0});
	struct buf r = buf_new(&d, 4096, ALL_ACCESS);
	uint32_t rkey = r.mr->rkey;

	ZERO(ibv_dereg_mr(r.mr));
	bad_remote(&c, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 1, (uintptr_t)r.p, rkey), IBV_WC_REM_ACCESS_ERR, "write to a deregistered region");
	expect_bytes(r.p, r.len, 0, "deregistered region");
	free(r.p);
	finish(&c);
}

/* The provider checks alignment in ibv_post_send, not in ibv_wr_*. */
static void atomic_misaligned(void)
{
	struct couple c = start((struct opt){0});
	struct ibv_qp_init_attr_ex a = {.send_cq = c.a.cq, .recv_cq = c.a.cq, .qp_type = IBV_QPT_RC, .pd = d.pd, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	struct work w = atomic_op(IBV_WR_ATOMIC_FETCH_AND_ADD, &mem, 0, 1, remote(4100), mem.mr->rkey, 1, 0);
	CHECK(try_send(&c.a, &w) == EINVAL, "ibv_post_send took a misaligned atomic");
	struct end e = {.d = &d, .o = {.type = IBV_QPT_RC}, .cq = c.a.cq, .qp = MADE(ibv_create_qp_ex(d.ctx, &a))};
	struct end f = end_new(&d, (struct opt){0});
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(e.qp);

	qp_init_state(&e);
	end_connect(&e, end_addr(&f, NULL));
	end_connect(&f, end_addr(&e, NULL));
	ibv_wr_start(x);
	x->wr_id = 7;
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_fetch_add(x, mem.mr->rkey, remote(4100), 1);
	ibv_wr_set_sge(x, mem.mr->lkey, remote(0), 8);
	ZERO(ibv_wr_complete(x));
	expect_wc(e.cq, 7, IBV_WC_REM_INV_REQ_ERR, "misaligned atomic");
	expect_state(&e, IBV_QPS_ERR, "requester");
	expect_state(&f, IBV_QPS_ERR, "responder");
	expect_bytes(mem.p, mem.len, 0, "misaligned atomic");
	end_free(&e);
	end_free(&f);
	finish(&c);
}

/* ---- the edges of regions and windows, and of the address space ---- */

/* Bytes that a key covers. */
struct range {
	uint64_t lo, hi;
	uint32_t key;
};

static bool covers(struct range r, uint64_t at, uint64_t len)
{
	return at >= r.lo && at <= r.hi && len <= r.hi - at;
}

/* One operation at an edge: it works if the key covers it, and else changes nothing. */
static void at_edge(struct couple *c, enum ibv_wr_opcode op, struct range r, uint64_t at, uint32_t len)
{
	bool fits = covers(r, at, len);
	char what[100];
	struct work w = op == IBV_WR_ATOMIC_FETCH_AND_ADD ? atomic_op(op, &mem, 0, 1, at, r.key, 1, 0) : rdma(op, &mem, 0, len, 1, at, r.key);

	snprintf(what, sizeof(what), "operation %d of %u bytes at the start %+lld, the end %+lld", op, len, (long long)(at - r.lo), (long long)(at - r.hi));
	memset(mem.p, 0x11, 4096);
	memset(mem.p + 4096, 0x5a, mem.len - 4096);
	post_work(&c->a, w);
	expect_wc(c->a.cq, 1, fits ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR, what);
	if (fits && op != IBV_WR_RDMA_READ) {
		size_t off = at - (uintptr_t)mem.p;
		CHECK(mem.p[off] != 0x5a, "%s: nothing was written", what);
		memset(mem.p + off, 0x5a, len);
	}
	expect_bytes(mem.p + 4096, mem.len - 4096, 0x5a, what);
	if (!fits) {
		couple_free(c);
		*c = couple_new(&d, (struct opt){0});
	}
}

static void edges(struct couple *c, struct range r)
{
	static const uint32_t lengths[] = {1, 8, 2000};

	for (int op = 0; op < 2; op++)
		for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
			uint32_t n = lengths[i];
			uint64_t at[] = {r.lo - n, r.lo - 1, r.lo, r.lo + 1, r.hi - n - 1, r.hi - n, r.hi - n + 1, r.hi - 1, r.hi, r.hi + 1, 0, 1,
					 0 - (uint64_t)n, 1 - (uint64_t)n, UINT64_MAX, r.lo + (1ull << 32), r.lo + (1ull << 63), r.hi - n + (1ull << 48)};
			for (size_t k = 0; k < sizeof(at) / sizeof(at[0]); k++)
				at_edge(c, op ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, r, at[k], n);
		}
	uint64_t at[] = {r.lo - 8, r.lo, r.hi - 8, r.hi, 0, 0 - 8ull, r.lo + (1ull << 63)};
	for (size_t k = 0; k < sizeof(at) / sizeof(at[0]); k++)
		at_edge(c, IBV_WR_ATOMIC_FETCH_AND_ADD, r, at[k], 8);
}

static void edges_of_a_region(void)
{
	struct couple c = start((struct opt){0});
	struct ibv_mr *mr = MADE(ibv_reg_mr(d.pd, mem.p + 6000, 3000, ALL_ACCESS));

	edges(&c, (struct range){remote(6000), remote(9000), mr->rkey});
	ZERO(ibv_dereg_mr(mr));
	finish(&c);
}

static void edges_of_a_window(void)
{
	struct couple c = start((struct opt){0});
	struct ibv_mw *mw = MADE(ibv_alloc_mw(d.pd, IBV_MW_TYPE_1));
	struct ibv_mw_bind b = {.wr_id = 1, .send_flags = IBV_SEND_SIGNALED,
				.bind_info = {.mr = mem.mr, .addr = remote(6000), .length = 3000, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC}};

	ZERO(ibv_bind_mw(c.b.qp, mw, &b));
	expect_wc(c.b.cq, 1, IBV_WC_SUCCESS, "bind");
	edges(&c, (struct range){remote(6000), remote(9000), mw->rkey});
	ZERO(ibv_dealloc_mw(mw));
	finish(&c);
}

/* Windows that leave their region are not bound. */
static void windows_past_a_region(void)
{
	static const struct {
		uint64_t off, len;
	} wrong[] = {{6000 - 1, 10}, {9000 - 9, 10}, {9000, 1}, {6000, 3001}, {6000, UINT64_MAX}, {6000 + 8, UINT64_MAX - 7}, {6000, 1ull << 63}, {0 - 16ull, 32}};
	struct couple c = start((struct opt){0});
	struct ibv_mr *mr = MADE(ibv_reg_mr(d.pd, mem.p + 6000, 3000, ALL_ACCESS | IBV_ACCESS_MW_BIND));

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct ibv_mw *mw = MADE(ibv_alloc_mw(d.pd, IBV_MW_TYPE_1));
		struct ibv_mw_bind b = {.wr_id = 1, .send_flags = IBV_SEND_SIGNALED,
					.bind_info = {.mr = mr, .addr = remote(0) + wrong[i].off, .length = wrong[i].len, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}};
		struct ibv_wc wc;
		if (!ibv_bind_mw(c.b.qp, mw, &b)) { /* else the library has refused it */
			CHECK(poll_wc(c.b.cq, &wc, PATIENCE), "bind %zu: no completion", i);
			CHECK(wc.status != IBV_WC_SUCCESS, "bind %zu: a window of %llu bytes at %lld of a region from 6000 to 9000", i, (unsigned long long)wrong[i].len, (long long)wrong[i].off);
			couple_free(&c);
			c = couple_new(&d, (struct opt){0});
		}
		ZERO(ibv_dealloc_mw(mw));
	}
	ZERO(ibv_dereg_mr(mr));
	finish(&c);
}

/* Lists of local buffers whose sum of lengths, or one of whose ends, passes 2^32 or 2^64. */
static void local_edges(void)
{
	struct couple c = start((struct opt){.sge = 4});
	struct ibv_mr *mr = MADE(ibv_reg_mr(d.pd, mem.p + 6000, 3000, ALL_ACCESS));
	const uint64_t lo = remote(6000), hi = remote(9000);
	const struct ibv_sge bad[][2] = {
		{{lo, 100, mr->lkey}, {hi - 9, 10, mr->lkey}},
		{{lo, 100, mr->lkey}, {lo - 1, 10, mr->lkey}},
		{{lo, 100, mr->lkey}, {hi, 1, mr->lkey}},
		{{lo, 0x7fffffff, mr->lkey}, {lo, 1, mr->lkey}},
		{{lo, 0x7fffffff, mr->lkey}, {lo, 0x7fffffff, mr->lkey}},
		{{lo, 0xfffffff0, mr->lkey}, {lo, 0x20, mr->lkey}},
		{{UINT64_MAX, 1, mr->lkey}, {lo, 1, mr->lkey}},
		{{0 - 8ull, 16, mr->lkey}, {lo, 1, mr->lkey}},
		{{lo + (1ull << 63), 8, mr->lkey}, {lo, 1, mr->lkey}},
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct ibv_sge list[2];
		struct work w = rdma(IBV_WR_RDMA_WRITE, &mem, 0, 1, 1, remote(12288), mem.mr->rkey);
		struct ibv_wc wc;
		memcpy(list, bad[i], sizeof(list));
		memset(mem.p, 0x5a, mem.len);
		w.wr.sg_list = list;
		w.wr.num_sge = 2;
		if (try_send(&c.a, &w))
			continue; /* the library has refused it */
		CHECK(poll_wc(c.a.cq, &wc, PATIENCE), "list %zu: no completion", i);
		CHECK(wc.status == IBV_WC_LOC_PROT_ERR || wc.status == IBV_WC_LOC_LEN_ERR || wc.status == IBV_WC_LOC_QP_OP_ERR, "list %zu: %s", i, ibv_wc_status_str(wc.status));
		expect_bytes(mem.p, mem.len, 0x5a, "a list that leaves its region");
		couple_free(&c);
		c = couple_new(&d, (struct opt){.sge = 4});
	}
	ZERO(ibv_dereg_mr(mr));
	finish(&c);
}

/* A zero-length write touches nothing, so no key is checked. */
static void zero_length_write_any_key(void)
{
	struct couple c = start((struct opt){0});

	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, NULL, 0, 0, 1, 0, 0));
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "zero-length write");
	post_work(&c.a, rdma(IBV_WR_RDMA_READ, NULL, 0, 0, 2, 0, 0));
	expect_wc(c.a.cq, 2, IBV_WC_SUCCESS, "zero-length read");
	expect_alive(&c, &mem, "afterwards");
	finish(&c);
}

/* ---- receives and local errors ---- */

static void receive_too_small(void)
{
	struct couple c = start((struct opt){0});

	memset(mem.p + 4096, 0x5a, 4096);
	post_recv(&c.b, &mem, 4096, 63, 2);
	post_send(&c.a, &mem, 0, 64, 1);
	expect_wc(c.a.cq, 1, IBV_WC_REM_INV_REQ_ERR, "send of 64 B to a receive of 63");
	expect_wc(c.b.cq, 2, IBV_WC_LOC_LEN_ERR, "receive of 63 B");
	expect_state(&c.a, IBV_QPS_ERR, "requester");
	expect_state(&c.b, IBV_QPS_ERR, "responder");
	expect_bytes(mem.p + 4096 + 63, 4096 - 63, 0x5a, "behind the receive");
	finish(&c);
}

static void receive_too_small_many_packets(void)
{
	struct couple c = start((struct opt){0});

	memset(mem.p + 8192, 0x5a, 8192);
	post_recv(&c.b, &mem, 8192, 3000, 2);
	post_send(&c.a, &mem, 0, 8192, 1);
	expect_wc(c.a.cq, 1, IBV_WC_REM_INV_REQ_ERR, "send of 8 KiB to a receive of 3000 B");
	expect_wc(c.b.cq, 2, IBV_WC_LOC_LEN_ERR, "receive of 3000 B");
	expect_bytes(mem.p + 8192 + 3000, 8192 - 3000, 0x5a, "behind the receive");
	finish(&c);
}

static void local_bad_lkey(void)
{
	struct couple c = start((struct opt){0});
	struct work w = work_new(IBV_WR_SEND, &mem, 0, 64, 1);

	post_recv(&c.b, &mem, 4096, 64, 2);
	w.sge.lkey ^= 0x5500;
	post_work(&c.a, w);
	expect_wc(c.a.cq, 1, IBV_WC_LOC_PROT_ERR, "send with an unknown lkey");
	expect_state(&c.a, IBV_QPS_ERR, "requester");
	expect_state(&c.b, IBV_QPS_RTS, "responder, who saw nothing");
	expect_no_wc(c.b.cq, 20, "responder");
	finish(&c);
}

static void local_past_end(void)
{
	struct couple c = start((struct opt){0});
	struct work w = work_new(IBV_WR_SEND, &mem, mem.len - 63, 64, 1);

	post_recv(&c.b, &mem, 4096, 64, 2);
	post_work(&c.a, w);
	expect_wc(c.a.cq, 1, IBV_WC_LOC_PROT_ERR, "send from past the end of the region");
	expect_state(&c.b, IBV_QPS_RTS, "responder");
	finish(&c);
}

static void read_into_read_only_region(void)
{
	struct couple c = start((struct opt){0});
	struct buf r = buf_new(&d, 4096, 0);

	fill(mem.p, 64, 3);
	post_work(&c.a, rdma(IBV_WR_RDMA_READ, &r, 0, 64, 1, remote(0), mem.mr->rkey));
	expect_wc(c.a.cq, 1, IBV_WC_LOC_PROT_ERR, "read into a region without LOCAL_WRITE");
	expect_state(&c.a, IBV_QPS_ERR, "requester");
	expect_bytes(r.p, 64, 0, "region without LOCAL_WRITE");
	buf_free(&r);
	finish(&c);
}

/* The responder cannot write its own receive buffer: hardware says LOC_PROT, rxe LOC_QP_OP. */
static void receive_bad_lkey(void)
{
	struct couple c = start((struct opt){0});
	struct buf r = buf_new(&d, 4096, 0);

	post_recv(&c.b, &r, 0, 64, 2);
	post_send(&c.a, &mem, 0, 64, 1);
	expect_wc(c.a.cq, 1, IBV_WC_REM_OP_ERR, "send to a receive in a region without LOCAL_WRITE");
	struct ibv_wc wc = wait_wc(c.b.cq, "that receive");
	CHECK(wc.wr_id == 2 && (wc.status == IBV_WC_LOC_PROT_ERR || wc.status == IBV_WC_LOC_QP_OP_ERR), "receive: status %d (%s)", wc.status, ibv_wc_status_str(wc.status));
	expect_state(&c.a, IBV_QPS_ERR, "requester");
	expect_state(&c.b, IBV_QPS_ERR, "responder");
	expect_bytes(r.p, r.len, 0, "region without LOCAL_WRITE");
	buf_free(&r);
	finish(&c);
}

static void receive_deregistered_meanwhile(void)
{
	struct couple c = start((struct opt){0});
	struct buf r = buf_new(&d, 4096, ALL_ACCESS);

	post_recv(&c.b, &r, 0, 64, 2);
	ZERO(ibv_dereg_mr(r.mr));
	post_send(&c.a, &mem, 0, 64, 1);
	expect_wc(c.a.cq, 1, IBV_WC_REM_OP_ERR, "send to a receive whose region is gone");
	CHECK(wait_wc(c.b.cq, "that receive").status != IBV_WC_SUCCESS, "receive into a deregistered region succeeded");
	expect_bytes(r.p, r.len, 0, "deregistered region");
	free(r.p);
	finish(&c);
}

static void rdma_on_ud(void)
{
	d = dev_open();
	mem = buf_new(&d, 16384, ALL_ACCESS);
	struct couple c = couple_new(&d, (struct opt){.type = IBV_QPT_UD});
	struct ibv_ah_attr at = {.is_global = 1, .port_num = 1, .grh = {.dgid = d.gid, .sgid_index = (uint8_t)d.gid_index, .hop_limit = 64}};
	struct ibv_ah *ah = MADE(ibv_create_ah(d.pd, &at));
	struct work w = rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 1, remote(4096), mem.mr->rkey);

	w.wr.wr.ud.ah = ah;
	int e = try_send(&c.a, &w);
	if (!e) { /* posting may refuse it; if not, the completion must */
		struct ibv_wc wc = wait_wc(c.a.cq, "RDMA write on UD");
		CHECK(wc.status == IBV_WC_LOC_QP_OP_ERR, "RDMA write on UD: %s", ibv_wc_status_str(wc.status));
	}
	expect_bytes(mem.p + 4096, 64, 0, "target");
	ZERO(ibv_destroy_ah(ah));
	finish(&c);
}

/* ---- UC and UD fail in silence ---- */

static void uc_bad_rkey_is_silent(void)
{
	struct couple c = start((struct opt){.type = IBV_QPT_UC});

	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 1, remote(4096), mem.mr->rkey ^ 0x5500));
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "UC write with a bad rkey");
	expect_bytes(mem.p + 4096, 64, 0, "target");
	expect_state(&c.a, IBV_QPS_RTS, "requester");
	finish(&c);
}

static void uc_without_receive_is_silent(void)
{
	struct couple c = start((struct opt){.type = IBV_QPT_UC});

	post_send(&c.a, &mem, 0, 64, 1);
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "UC send without a receive");
	expect_alive(&c, &mem, "UC afterwards");
	finish(&c);
}

static void ud_case(uint32_t qkey, size_t send_len, size_t recv_len, bool want, const char *what)
{
	struct couple c = start((struct opt){.type = IBV_QPT_UD});
	struct ibv_ah_attr at = {.is_global = 1, .port_num = 1, .grh = {.dgid = d.gid, .sgid_index = (uint8_t)d.gid_index, .hop_limit = 64}};
	struct ibv_ah *ah = MADE(ibv_create_ah(d.pd, &at));
	struct work w = work_new(IBV_WR_SEND, &mem, 0, send_len, 1);

	fill(mem.p, send_len, 7);
	post_recv(&c.b, &mem, 8192, recv_len, 2);
	w.wr.wr.ud.ah = ah;
	w.wr.wr.ud.remote_qpn = c.b.qp->qp_num;
	w.wr.wr.ud.remote_qkey = qkey;
	post_work(&c.a, w);
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, what);
	if (want) {
		struct ibv_wc wc = expect_wc(c.b.cq, 2, IBV_WC_SUCCESS, what);
		CHECK(wc.byte_len == send_len + 40, "%s: byte_len %u, want %zu", what, wc.byte_len, send_len + 40);
		CHECK(wc.src_qp == c.a.qp->qp_num, "%s: src_qp %#x, want %#x", what, wc.src_qp, c.a.qp->qp_num);
		CHECK(wc.wc_flags & IBV_WC_GRH, "%s: wc_flags %#x lack GRH", what, wc.wc_flags);
		expect_fill(mem.p + 8192 + 40, send_len, 7, what);
	} else {
		expect_no_wc(c.b.cq, 30, what);
	}
	ZERO(ibv_destroy_ah(ah));
	finish(&c);
}

static void ud_good(void) { ud_case(0x11111111, 512, 600, true, "UD send"); }
static void ud_bad_qkey_is_silent(void) { ud_case(0x22222222, 512, 600, false, "UD send with a wrong Q_Key"); }
static void ud_longer_than_mtu_is_silent(void) { ud_case(0x11111111, 5000, 8000, false, "UD send longer than the MTU"); }

static const struct vt_case cases[] = {
	{"rnr_retry_exceeded", rnr_retry_exceeded},
	{"rnr_retry_zero", rnr_retry_zero},
	{"rnr_for_ever_until_receive", rnr_for_ever_until_receive},
	{"retry_exceeded_peer_destroyed", retry_exceeded_peer_destroyed},
	{"retry_exceeded_peer_reset", retry_exceeded_peer_reset},
	{"retry_exceeded_not_early", retry_exceeded_not_early},
	{"write_bad_rkey", write_bad_rkey},
	{"write_stale_key_byte", write_stale_key_byte},
	{"read_bad_rkey", read_bad_rkey},
	{"atomic_bad_rkey", atomic_bad_rkey},
	{"write_past_end", write_past_end},
	{"write_before_start", write_before_start},
	{"write_wraps_address_space", write_wraps_address_space},
	{"read_past_end", read_past_end},
	{"write_without_right", write_without_right},
	{"read_without_right", read_without_right},
	{"atomic_without_right", atomic_without_right},
	{"write_qp_without_access", write_qp_without_access},
	{"rkey_of_other_pd", rkey_of_other_pd},
	{"rkey_after_dereg", rkey_after_dereg},
	{"atomic_misaligned", atomic_misaligned},
	{"edges_of_a_region", edges_of_a_region},
	{"edges_of_a_window", edges_of_a_window},
	{"windows_past_a_region", windows_past_a_region},
	{"local_edges", local_edges},
	{"zero_length_write_any_key", zero_length_write_any_key},
	{"receive_too_small", receive_too_small},
	{"receive_too_small_many_packets", receive_too_small_many_packets},
	{"local_bad_lkey", local_bad_lkey},
	{"local_past_end", local_past_end},
	{"read_into_read_only_region", read_into_read_only_region},
	{"receive_bad_lkey", receive_bad_lkey},
	{"receive_deregistered_meanwhile", receive_deregistered_meanwhile},
	{"rdma_on_ud", rdma_on_ud},
	{"uc_bad_rkey_is_silent", uc_bad_rkey_is_silent},
	{"uc_without_receive_is_silent", uc_without_receive_is_silent},
	{"ud_good", ud_good},
	{"ud_bad_qkey_is_silent", ud_bad_qkey_is_silent},
	{"ud_longer_than_mtu_is_silent", ud_longer_than_mtu_is_silent},
};

MAIN(cases)
