/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unruly QPS: a misbehaving tenant that stays below every cap on bytes. QPS queue pairs, each
 * connected to itself, send messages of one byte. Every eighth batch of a queue pair ends in an
 * error: a write with a wrong key, or a message longer than its receive buffer. The queue pair
 * is then reset and connected again, after an attempt with an MTU that the port does not
 * support. It prints "ready" before the first message and ends with its standard input.
 */
#include "device.h"
#include <pthread.h>
#include <unistd.h>

enum { BATCH = 4, ERROR_EVERY = 8 };

static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	union ibv_gid gid;
	char memory[4096] __attribute__((aligned(4096)));
} me;

struct peer {
	struct ibv_qp *qp;
	unsigned int batches;
};

static void *until_told(void *unused)
{
	char byte;

	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	_exit(0);
	return unused;
}

/* One batch: receives of a byte, and messages for them. */
static void post(struct peer *p, int id)
{
	struct ibv_sge one = { .addr = (uintptr_t)me.memory, .length = 1, .lkey = me.mr->lkey }, two = one;
	struct ibv_send_wr send[BATCH] = { { 0 } }, *bad;
	struct ibv_recv_wr receive[BATCH] = { { 0 } }, *unused;
	int error = ++p->batches % ERROR_EVERY == 0;

	two.length = 2;
	for (int i = 0; i < BATCH; i++) {
		receive[i] = (struct ibv_recv_wr){ .wr_id = ~0ull, .sg_list = &one, .num_sge = 1, .next = i + 1 < BATCH ? &receive[i + 1] : NULL };
		send[i] = (struct ibv_send_wr){ .wr_id = (uint64_t)p->batches << 32 | (unsigned int)id, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND, .next = i + 1 < BATCH ? &send[i + 1] : NULL };
	}
	send[BATCH - 1].send_flags = IBV_SEND_SIGNALED;
	if (error && p->batches / ERROR_EVERY % 2)
		send[BATCH - 1].sg_list = &two;
	else if (error)
		send[BATCH - 1].opcode = IBV_WR_RDMA_WRITE, send[BATCH - 1].wr.rdma.rkey = 0xbad;
	if (ibv_post_recv(p->qp, receive, &unused) || ibv_post_send(p->qp, send, &bad))
		fail("ibv_post_send");
}

static void reconnect(struct peer *p)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RESET };
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_attr wrong = { .qp_state = IBV_QPS_RTR, .path_mtu = 99, .dest_qp_num = p->qp->qp_num, .ah_attr = { .is_global = 1, .port_num = 1 } };

	if (ibv_modify_qp(p->qp, &a, IBV_QP_STATE) ||
	    ibv_modify_qp(p->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("modify to RESET and INIT");
	wrong.ah_attr.grh.dgid = me.gid;
	if (!ibv_modify_qp(p->qp, &wrong, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("a wrong MTU was taken");
	if (ibv_modify_qp(p->qp, &a, IBV_QP_STATE))
		fail("modify to RESET");
	connect_qp(p->qp, &me.gid, p->qp->qp_num);
}

int main(int argc, char **argv)
{
	int qps = argc > 1 ? atoi(argv[1]) : 0;
	struct ibv_comp_channel *channel;
	struct peer *peers = calloc((size_t)qps + 1, sizeof(*peers));
	struct ibv_wc done[64];
	pthread_t thread;

	if (qps < 1 || !peers) {
		fprintf(stderr, "usage: unruly QPS\n");
		return 2;
	}
	me.context = open_device();
	me.pd = ibv_alloc_pd(me.context);
	channel = ibv_create_comp_channel(me.context);
	me.cq = channel ? ibv_create_cq(me.context, qps * 2 * (BATCH + 1), NULL, channel, 0) : NULL;
	if (!me.pd || !me.cq || ibv_query_gid(me.context, 1, 0, &me.gid))
		fail("the device");
	me.mr = ibv_reg_mr(me.pd, me.memory, sizeof(me.memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!me.mr)
		fail("ibv_reg_mr");
	for (int i = 0; i < qps; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = me.cq,
			.recv_cq = me.cq,
			.qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = BATCH, .max_recv_wr = BATCH, .max_send_sge = 1, .max_recv_sge = 1 },
		};

		peers[i].qp = ibv_create_qp(me.pd, &init);
		if (!peers[i].qp)
			fail("ibv_create_qp");
		peers[i].batches = (unsigned int)i; /* not all fail at the same time */
		connect_qp(peers[i].qp, &me.gid, peers[i].qp->qp_num);
	}
	if (pthread_create(&thread, NULL, until_told, NULL))
		fail("pthread_create");
	say("ready");
	if (ibv_req_notify_cq(me.cq, 0))
		fail("ibv_req_notify_cq");
	for (int i = 0; i < qps; i++)
		post(&peers[i], i);
	for (;;) {
		struct ibv_cq *of;
		void *tag;
		int n;

		if (ibv_get_cq_event(channel, &of, &tag))
			fail("ibv_get_cq_event");
		ibv_ack_cq_events(of, 1);
		if (ibv_req_notify_cq(me.cq, 0))
			fail("ibv_req_notify_cq");
		while ((n = ibv_poll_cq(me.cq, 64, done)) > 0) {
			for (int i = 0; i < n; i++) {
				struct peer *p;

				if (done[i].wr_id == ~0ull)
					continue; /* a receive */
				p = &peers[(unsigned int)done[i].wr_id];
				if (done[i].wr_id >> 32 != p->batches)
					continue; /* flushed with one that came before it */
				if (done[i].status)
					reconnect(p);
				post(p, (int)(unsigned int)done[i].wr_id);
			}
		}
		if (n < 0)
			fail("ibv_poll_cq");
	}
}
