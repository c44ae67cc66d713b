/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What work requests do: every opcode, immediate data, scatter and gather, inline,
 * fences, memory windows, multicast.
 */
#include "vt.h"

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

static void immediate_and_opcodes(void)
{
	start();
	struct couple c = couple_new(&d, (struct opt){0});
	struct work w;
	struct ibv_wc wc;

	fill(mem.p, 100, 1);
	post_recv(&c.b, &mem, 4096, 100, 10);
	w = work_new(IBV_WR_SEND_WITH_IMM, &mem, 0, 100, 1);
	w.wr.imm_data = htonl(0xcafe0001);
	post_work(&c.a, w);
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "send with immediate");
	wc = expect_wc(c.b.cq, 10, IBV_WC_SUCCESS, "receive with immediate");
	CHECK(wc.opcode == IBV_WC_RECV && (wc.wc_flags & IBV_WC_WITH_IMM) && ntohl(wc.imm_data) == 0xcafe0001 && wc.byte_len == 100 && wc.qp_num == c.b.qp->qp_num,
	      "opcode %d flags %#x imm %#x len %u", wc.opcode, wc.wc_flags, ntohl(wc.imm_data), wc.byte_len);
	post_recv(&c.b, &mem, 4096, 0, 11);
	w = rdma(IBV_WR_RDMA_WRITE_WITH_IMM, &mem, 0, 100, 2, at(8192), mem.mr->rkey);
	w.wr.imm_data = htonl(0xcafe0002);
	post_work(&c.a, w);
	wc = expect_wc(c.a.cq, 2, IBV_WC_SUCCESS, "write with immediate");
	CHECK(wc.opcode == IBV_WC_RDMA_WRITE, "opcode %d", wc.opcode);
	wc = expect_wc(c.b.cq, 11, IBV_WC_SUCCESS, "receive of a write with immediate");
	CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && (wc.wc_flags & IBV_WC_WITH_IMM) && ntohl(wc.imm_data) == 0xcafe0002 && wc.byte_len == 100,
	      "opcode %d flags %#x imm %#x len %u", wc.opcode, wc.wc_flags, ntohl(wc.imm_data), wc.byte_len);
	expect_fill(mem.p + 8192, 100, 1, "write with immediate");
	post_work(&c.a, rdma(IBV_WR_RDMA_READ, &mem, 12288, 100, 3, at(8192), mem.mr->rkey));
	wc = expect_wc(c.a.cq, 3, IBV_WC_SUCCESS, "read");
	CHECK(wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == 100, "opcode %d len %u", wc.opcode, wc.byte_len);
	expect_fill(mem.p + 12288, 100, 1, "read");
	*(uint64_t *)(mem.p + 16384) = 100;
	post_work(&c.a, atomic_op(IBV_WR_ATOMIC_FETCH_AND_ADD, &mem, 0, 4, at(16384), mem.mr->rkey, 23, 0));
	wc = expect_wc(c.a.cq, 4, IBV_WC_SUCCESS, "fetch and add");
	CHECK(wc.opcode == IBV_WC_FETCH_ADD, "opcode %d", wc.opcode);
	CHECK(*(uint64_t *)mem.p == 100 && *(uint64_t *)(mem.p + 16384) == 123, "fetch and add: old %llu new %llu", *(unsigned long long *)mem.p, *(unsigned long long *)(mem.p + 16384));
	post_work(&c.a, atomic_op(IBV_WR_ATOMIC_CMP_AND_SWP, &mem, 0, 5, at(16384), mem.mr->rkey, 123, 7));
	wc = expect_wc(c.a.cq, 5, IBV_WC_SUCCESS, "compare and swap");
	CHECK(wc.opcode == IBV_WC_COMP_SWAP, "opcode %d", wc.opcode);
	CHECK(*(uint64_t *)mem.p == 123 && *(uint64_t *)(mem.p + 16384) == 7, "compare and swap that matches");
	post_work(&c.a, atomic_op(IBV_WR_ATOMIC_CMP_AND_SWP, &mem, 0, 6, at(16384), mem.mr->rkey, 99, 8));
	expect_wc(c.a.cq, 6, IBV_WC_SUCCESS, "compare and swap that does not match");
	CHECK(*(uint64_t *)mem.p == 7 && *(uint64_t *)(mem.p + 16384) == 7, "compare and swap that does not match");
	couple_free(&c);
	finish();
}

static void scatter_gather(void)
{
	start();
	struct couple c = couple_new(&d, (struct opt){.sge = 16});
	struct ibv_sge out[16], in[16];
	size_t total = 0, room = 0;

	fill(mem.p, 16384, 1);
	for (int i = 0; i < 16; i++) {
		out[i] = sge_of(&mem, (size_t)i * 1000, (size_t)(i * 37) % 400); /* zero-length ones too */
		total += out[i].length;
	}
	for (int i = 0; i < 16; i++) {
		in[i] = sge_of(&mem, 32768 + (size_t)i * 1000, i == 15 ? 999 : (size_t)(i * 91) % 300);
		room += in[i].length;
	}
	CHECK(room >= total, "bad test: %zu < %zu", room, total);
	struct ibv_recv_wr rwr = {.wr_id = 2, .sg_list = in, .num_sge = 16}, *rbad;
	ZERO(ibv_post_recv(c.b.qp, &rwr, &rbad));
	struct work w = work_new(IBV_WR_SEND, &mem, 0, 0, 1);
	w.wr.sg_list = out;
	w.wr.num_sge = 16;
	post_work(&c.a, w);
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "gathered send");
	struct ibv_wc wc = expect_wc(c.b.cq, 2, IBV_WC_SUCCESS, "scattered receive");
	CHECK(wc.byte_len == total, "byte_len %u, want %zu", wc.byte_len, total);
	char *a = malloc(total), *b = malloc(room);
	size_t na = 0, nb = 0;
	for (int i = 0; i < 16; i++) {
		memcpy(a + na, (char *)(uintptr_t)out[i].addr, out[i].length);
		na += out[i].length;
		memcpy(b + nb, (char *)(uintptr_t)in[i].addr, in[i].length);
		nb += in[i].length;
	}
	CHECK(!memcmp(a, b, total), "scattered bytes differ from gathered bytes");
	free(a);
	free(b);
	couple_free(&c);
	finish();
}

static void inline_data(void)
{
	start();
	struct couple c = couple_new(&d, (struct opt){.inline_data = 128});

	for (size_t len = 0; len <= 128; len += 16) {
		char local[128];
		struct work w = work_new(IBV_WR_SEND, &mem, 0, len, 1);
		fill(local, len, (uint32_t)len);
		w.sge.addr = (uintptr_t)local; /* not registered at all */
		w.sge.lkey = 0;
		w.wr.send_flags |= IBV_SEND_INLINE;
		post_recv(&c.b, &mem, 4096, 128, 2);
		ZERO(try_send(&c.a, &w));
		memset(local, 0, sizeof(local)); /* it is ours again at once */
		expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "inline send");
		CHECK(expect_wc(c.b.cq, 2, IBV_WC_SUCCESS, "inline receive").byte_len == len, "byte_len is not %zu", len);
		expect_fill(mem.p + 4096, len, (uint32_t)len, "inline data");
	}
	couple_free(&c);
	finish();
}

/* Many unsignalled requests, one completion, and the queue's slots come back. */
static void unsignalled(void)
{
	start();
	struct couple c = couple_new(&d, (struct opt){.depth = 64});

	for (uint64_t round = 0; round < 50; round++) {
		for (uint64_t i = 0; i < 32; i++) {
			struct work w = rdma(IBV_WR_RDMA_WRITE, &mem, 0, 8, i, at(4096 + i * 8), mem.mr->rkey);
			if (i < 31)
				w.wr.send_flags = 0;
			*(uint64_t *)mem.p = 1;
			post_work(&c.a, w);
		}
		expect_wc(c.a.cq, 31, IBV_WC_SUCCESS, "the only signalled one");
	}
	expect_no_wc(c.a.cq, 10, "unsignalled ones");
	couple_free(&c);
	finish();
}

static void queue_full(void)
{
	start();
	struct couple c = couple_new(&d, (struct opt){.depth = 16});
	int n = 0, e = 0;

	while (n < 1000 && !(e = try_recv(&c.b, &mem, 4096, 8, (uint64_t)n)))
		n++;
	CHECK(e == ENOMEM && n >= 16, "%d receives posted, then %d, want ENOMEM after 16 or more", n, e);
	for (int i = 0; i < n; i++) {
		post_send(&c.a, &mem, 0, 8, 1);
		expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "send");
		expect_wc(c.b.cq, (uint64_t)i, IBV_WC_SUCCESS, "receive");
	}
	post_recv(&c.b, &mem, 4096, 8, 5);
	couple_free(&c);
	finish();
}

/* A read with a fence behind it: the send must carry what the read brought. */
static void fence(void)
{
	start();
	struct couple c = couple_new(&d, (struct opt){0});

	for (uint64_t i = 1; i <= 100; i++) {
		*(uint64_t *)(mem.p + 8192) = i;
		*(uint64_t *)mem.p = 0;
		post_recv(&c.b, &mem, 4096, 8, i);
		struct work r = rdma(IBV_WR_RDMA_READ, &mem, 0, 8, 1, at(8192), mem.mr->rkey);
		struct work s = work_new(IBV_WR_SEND, &mem, 0, 8, 2);
		s.wr.send_flags |= IBV_SEND_FENCE;
		s.wr.sg_list = &s.sge;
		r.wr.next = &s.wr;
		post_work(&c.a, r);
		expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "read");
		expect_wc(c.a.cq, 2, IBV_WC_SUCCESS, "fenced send");
		expect_wc(c.b.cq, i, IBV_WC_SUCCESS, "receive");
		CHECK(*(uint64_t *)(mem.p + 4096) == i, "the fenced send carried %llu, want %llu", *(unsigned long long *)(mem.p + 4096), (unsigned long long)i);
	}
	couple_free(&c);
	finish();
}

/* ---- memory windows ---- */

static void window_type1(void)
{
	start();
	struct couple c = couple_new(&d, (struct opt){0});
	struct ibv_mw *mw = MADE(ibv_alloc_mw(d.pd, IBV_MW_TYPE_1));
	struct ibv_mw_bind b = {.wr_id = 1, .send_flags = IBV_SEND_SIGNALED,
				.bind_info = {.mr = mem.mr, .addr = at(8192), .length = 100, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}};

	ZERO(ibv_bind_mw(c.b.qp, mw, &b));
	CHECK(expect_wc(c.b.cq, 1, IBV_WC_SUCCESS, "bind").opcode == IBV_WC_BIND_MW, "opcode of a bind");
	uint32_t old = mw->rkey;
	fill(mem.p, 100, 1);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 100, 2, at(8192), mw->rkey));
	expect_wc(c.a.cq, 2, IBV_WC_SUCCESS, "write through a window");
	expect_fill(mem.p + 8192, 100, 1, "write through a window");
	int e = ibv_dereg_mr(mem.mr);
	CHECK(e == EBUSY || e == EINVAL, "dereg of a region with a window: %d, want EBUSY or EINVAL", e);
	ZERO(ibv_bind_mw(c.b.qp, mw, &b)); /* bound again: a new key, the old one is dead */
	expect_wc(c.b.cq, 1, IBV_WC_SUCCESS, "second bind");
	CHECK(mw->rkey != old, "a second bind left the rkey %#x", old);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 100, 3, at(8192), old));
	expect_wc(c.a.cq, 3, IBV_WC_REM_ACCESS_ERR, "write through the old key");
	couple_free(&c);
	ZERO(ibv_dealloc_mw(mw));
	finish();
}

static void bind2(struct end *e, struct ibv_mw *mw, uint32_t rkey, uint64_t id)
{
	struct work w = work_new(IBV_WR_BIND_MW, NULL, 0, 0, id);

	w.wr.bind_mw.mw = mw;
	w.wr.bind_mw.rkey = rkey;
	w.wr.bind_mw.bind_info = (struct ibv_mw_bind_info){.mr = mem.mr, .addr = at(8192), .length = 100, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
	post_work(e, w);
	/* rxe finds the window by the key it has now, and its provider leaves this to us. */
	mw->rkey = rkey;
}

static void window_type2(void)
{
	start();
	struct couple c = couple_new(&d, (struct opt){0});
	struct ibv_mw *mw = MADE(ibv_alloc_mw(d.pd, IBV_MW_TYPE_2));
	uint32_t key = ibv_inc_rkey(mw->rkey);

	bind2(&c.b, mw, key, 1);
	expect_wc(c.b.cq, 1, IBV_WC_SUCCESS, "bind of a type 2 window");
	fill(mem.p, 100, 1);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 100, 2, at(8192), key));
	expect_wc(c.a.cq, 2, IBV_WC_SUCCESS, "write through a window");
	expect_fill(mem.p + 8192, 100, 1, "write through a window");
	post_work(&c.a, rdma(IBV_WR_RDMA_READ, &mem, 20480, 100, 3, at(8192), key));
	expect_wc(c.a.cq, 3, IBV_WC_SUCCESS, "read through a window");
	struct work w = work_new(IBV_WR_LOCAL_INV, NULL, 0, 0, 4);
	w.wr.invalidate_rkey = key;
	post_work(&c.b, w);
	CHECK(expect_wc(c.b.cq, 4, IBV_WC_SUCCESS, "local invalidate").opcode == IBV_WC_LOCAL_INV, "opcode of a local invalidate");
	key = ibv_inc_rkey(key);
	bind2(&c.b, mw, key, 5);
	expect_wc(c.b.cq, 5, IBV_WC_SUCCESS, "bind after invalidate");
	post_recv(&c.b, &mem, 4096, 64, 7);
	w = work_new(IBV_WR_SEND_WITH_INV, &mem, 0, 64, 6);
	w.wr.invalidate_rkey = key;
	post_work(&c.a, w);
	expect_wc(c.a.cq, 6, IBV_WC_SUCCESS, "send with invalidate");
	struct ibv_wc wc = expect_wc(c.b.cq, 7, IBV_WC_SUCCESS, "receive with invalidate");
	CHECK((wc.wc_flags & IBV_WC_WITH_INV) && wc.invalidated_rkey == key, "flags %#x, invalidated %#x, want %#x", wc.wc_flags, wc.invalidated_rkey, key);
	memset(mem.p + 8192, 0x5a, 100);
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 100, 8, at(8192), key));
	expect_wc(c.a.cq, 8, IBV_WC_REM_ACCESS_ERR, "write through an invalidated window");
	expect_bytes(mem.p + 8192, 100, 0x5a, "an invalidated window");
	couple_free(&c);
	ZERO(ibv_dealloc_mw(mw));
	finish();
}

static void window_out_of_bounds(void)
{
	start();
	struct couple c = couple_new(&d, (struct opt){0});
	struct ibv_mw *mw = MADE(ibv_alloc_mw(d.pd, IBV_MW_TYPE_2));
	uint32_t key = ibv_inc_rkey(mw->rkey);

	bind2(&c.b, mw, key, 1);
	expect_wc(c.b.cq, 1, IBV_WC_SUCCESS, "bind");
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 100, 2, at(8193), key)); /* inside the region, outside the window */
	expect_wc(c.a.cq, 2, IBV_WC_REM_ACCESS_ERR, "write past a window");
	expect_bytes(mem.p + 8193, 100, 0, "past a window");
	couple_free(&c);
	ZERO(ibv_dealloc_mw(mw));
	finish();
}

/* ---- UD multicast ---- */

static void multicast(void)
{
	start();
	struct end e[3];
	union ibv_gid group = {.raw = {0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224, 1, 2, 3}};
	struct ibv_ah_attr at_ = {.is_global = 1, .port_num = 1, .grh = {.dgid = group, .sgid_index = (uint8_t)d.gid_index, .hop_limit = 1}};

	for (int i = 0; i < 3; i++) {
		e[i] = end_new(&d, (struct opt){.type = IBV_QPT_UD});
		end_connect(&e[i], (struct addr){0});
		post_recv(&e[i], &mem, 4096 * (size_t)(i + 1), 200, 10);
	}
	ZERO(ibv_attach_mcast(e[0].qp, &group, 0));
	ZERO(ibv_attach_mcast(e[1].qp, &group, 0));
	struct ibv_ah *ah = MADE(ibv_create_ah(d.pd, &at_));
	struct work w = work_new(IBV_WR_SEND, &mem, 0, 100, 1);
	w.wr.wr.ud.ah = ah;
	w.wr.wr.ud.remote_qpn = 0xffffff;
	w.wr.wr.ud.remote_qkey = 0x11111111;
	fill(mem.p, 100, 1);
	post_work(&e[2], w);
	expect_wc(e[2].cq, 1, IBV_WC_SUCCESS, "send to a group");
	for (int i = 0; i < 2; i++) {
		expect_wc(e[i].cq, 10, IBV_WC_SUCCESS, "member of the group");
		expect_fill(mem.p + 4096 * (i + 1) + 40, 100, 1, "member of the group");
	}
	expect_no_wc(e[2].cq, 30, "not a member");
	ZERO(ibv_detach_mcast(e[0].qp, &group, 0));
	post_recv(&e[0], &mem, 4096, 200, 11);
	post_recv(&e[1], &mem, 8192, 200, 12);
	w.wr.sg_list = NULL;
	post_work(&e[2], w);
	expect_wc(e[2].cq, 1, IBV_WC_SUCCESS, "second send");
	expect_wc(e[1].cq, 12, IBV_WC_SUCCESS, "the member that stayed");
	expect_no_wc(e[0].cq, 30, "the member that left");
	CHECK(ibv_detach_mcast(e[0].qp, &group, 0) == EINVAL, "a second detach was taken");
	ZERO(ibv_detach_mcast(e[1].qp, &group, 0));
	ZERO(ibv_destroy_ah(ah));
	for (int i = 0; i < 3; i++)
		end_free(&e[i]);
	finish();
}

static const struct vt_case cases[] = {
	{"immediate_and_opcodes", immediate_and_opcodes},
	{"scatter_gather", scatter_gather},
	{"inline_data", inline_data},
	{"unsignalled", unsignalled},
	{"queue_full", queue_full},
	{"fence", fence},
	{"window_type1", window_type1},
	{"window_type2", window_type2},
	{"window_out_of_bounds", window_out_of_bounds},
	{"multicast", multicast},
};

MAIN(cases)
