/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cross target                          prints what an attacker would like to know, waits for
 *                                       the end of its input, and checks that nothing came
 * cross attack QPN RKEY VA UDQPN GID    uses all of it, from another network
 *
 * Both networks have the same addresses. What one network calls QPN, RKEY or a group means
 * nothing in the other.
 */
#include "vt.h"
#include <arpa/inet.h>

enum { LEN = 4096, PATTERN = 7, MISSING = 300 /* ms in which nothing may come */ };

static const char group[] = "::ffff:239.1.2.3";

static struct ibv_ah *ah_to(struct dev *d, const union ibv_gid *gid)
{
	struct ibv_ah_attr a = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .sgid_index = d->gid_index, .hop_limit = 64}};

	return ibv_create_ah(d->pd, &a);
}

static union ibv_gid gid_of(const char *text)
{
	union ibv_gid g;

	CHECK(inet_pton(AF_INET6, text, g.raw) == 1, "%s is no GID", text);
	return g;
}

static void target(struct dev *d)
{
	struct buf mem = buf_new(d, LEN, ALL_ACCESS), in = buf_new(d, 2 * LEN, ALL_ACCESS);
	struct couple c = couple_new(d, (struct opt){0});
	struct end ud = end_new(d, (struct opt){.type = IBV_QPT_UD});
	union ibv_gid g = gid_of(group);
	struct ibv_wc wc;

	fill(mem.p, LEN, PATTERN);
	end_connect(&ud, (struct addr){0});
	ZERO(ibv_attach_mcast(ud.qp, &g, 0));
	for (int i = 0; i < 8; i++) {
		post_recv(&c.a, &in, 0, LEN, 1);
		post_recv(&ud, &in, LEN, LEN, 2);
	}
	printf("target %u %u %llu %u\n", c.a.qp->qp_num, mem.mr->rkey, (unsigned long long)(uintptr_t)mem.p, ud.qp->qp_num);
	fflush(stdout);
	while (getchar() != EOF)
		;
	CHECK(!poll_wc(c.a.cq, &wc, MISSING), "something has come to the queue pair: status %d", wc.status);
	CHECK(!poll_wc(ud.cq, &wc, 0), "a datagram has come: status %d", wc.status);
	expect_fill(mem.p, LEN, PATTERN, "the target's memory");
	expect_bytes(in.p, 2 * LEN, 0, "the target's receive buffers");
	expect_state(&c.a, IBV_QPS_RTS, "the target's queue pair");
	printf("untouched\n");
}

/* No queue pair answers there: the request fails after its retries. */
static void unanswered(struct dev *d, struct addr to, struct work w, const char *what)
{
	struct end e = end_new(d, (struct opt){.timeout = 8, .retry = 1});
	struct ibv_wc wc;

	end_connect(&e, to);
	post_work(&e, w);
	CHECK(poll_wc(e.cq, &wc, PATIENCE), "%s: no completion", what);
	CHECK(wc.status == IBV_WC_RETRY_EXC_ERR, "%s: status %s, want that nobody answers", what, ibv_wc_status_str(wc.status));
	end_free(&e);
}

static void attack(struct dev *d, char **v)
{
	struct addr to = {.qpn = strtoul(v[0], NULL, 0), .rkey = strtoul(v[1], NULL, 0), .va = strtoull(v[2], NULL, 0), .gid = gid_of(v[4])};
	uint32_t ud_qpn = strtoul(v[3], NULL, 0);
	struct buf mem = buf_new(d, LEN, ALL_ACCESS);
	union ibv_gid g = gid_of(group);
	struct ibv_wc wc;

	unanswered(d, to, rdma(IBV_WR_RDMA_WRITE, &mem, 0, 64, 1, to.va, to.rkey), "write");
	unanswered(d, to, rdma(IBV_WR_RDMA_READ, &mem, 0, 64, 2, to.va, to.rkey), "read");
	unanswered(d, to, atomic_op(IBV_WR_ATOMIC_FETCH_AND_ADD, &mem, 0, 3, to.va, to.rkey, 1, 0), "atomic");
	unanswered(d, to, work_new(IBV_WR_SEND, &mem, 0, 64, 4), "send");

	/* The key, in a network where the queue pair is our own. */
	struct couple c = couple_new(d, (struct opt){0});
	post_work(&c.a, rdma(IBV_WR_RDMA_READ, &mem, 0, 64, 5, to.va, to.rkey));
	CHECK(poll_wc(c.a.cq, &wc, PATIENCE), "the key: no completion");
	CHECK(wc.status == IBV_WC_REM_ACCESS_ERR, "the key: status %s, want a remote access error", ibv_wc_status_str(wc.status));
	expect_bytes(mem.p, LEN, 0, "the attacker's memory");
	couple_free(&c);

	/* Datagrams are dropped or refused. */
	struct end ud = end_new(d, (struct opt){.type = IBV_QPT_UD});
	end_connect(&ud, (struct addr){0});
	const union ibv_gid *gids[] = {&to.gid, &g};
	for (int i = 0; i < 2; i++) {
		struct work w = work_new(IBV_WR_SEND, &mem, 0, 64, 6);
		w.wr.wr.ud.ah = ah_to(d, gids[i]);
		if (!w.wr.wr.ud.ah)
			continue;
		w.wr.wr.ud.remote_qpn = i ? 0xffffff : ud_qpn;
		w.wr.wr.ud.remote_qkey = 0x11111111;
		post_work(&ud, w);
		CHECK(poll_wc(ud.cq, &wc, PATIENCE), "datagram %d: no completion", i);
	}
	printf("attacked\n");
}

int main(int argc, char **argv)
{
	struct dev d = dev_open();

	if (argc == 2 && !strcmp(argv[1], "target"))
		target(&d);
	else if (argc == 7 && !strcmp(argv[1], "attack"))
		attack(&d, argv + 2);
	else
		FAIL("usage: cross target | cross attack QPN RKEY VA UDQPN GID");
	return 0;
}
