/* SPDX-License-Identifier: Apache-2.0 */
/*
 * traffic SIZE QPS DEPTH: the load of a tenant. QPS queue pairs, each connected to itself, write
 * SIZE bytes repeatedly. Each has DEPTH requests posted in four batches; a complete batch is
 * posted again. Only the last request of a batch is signaled. Between batches the program
 * sleeps on completion events. It needs little processor time, so many of them compete for the
 * daemon, not for processors. It prints "ready" before the first request and ends with its
 * standard input.
 */
#include "device.h"
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BATCHES = 4 };

struct stream {
	struct ibv_qp *qp;
	struct ibv_send_wr *batch; /* linked */
};

static void *until_told(void *unused)
{
	char byte;

	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	_exit(0);
	return unused;
}

static void post(struct stream *s)
{
	struct ibv_send_wr *bad;

	if (ibv_post_send(s->qp, s->batch, &bad))
		fail("ibv_post_send");
}

static void build(struct stream *s, int id, int length, struct ibv_sge *sge, const struct ibv_mr *mr, int size)
{
	s->batch = calloc((size_t)length, sizeof(*s->batch));
	if (!s->batch)
		fail("calloc");
	for (int i = 0; i < length; i++) {
		struct ibv_send_wr *wr = &s->batch[i];

		wr->wr_id = (uint64_t)id;
		wr->opcode = IBV_WR_RDMA_WRITE;
		wr->sg_list = sge;
		wr->num_sge = 1;
		wr->wr.rdma.remote_addr = (uintptr_t)mr->addr + (unsigned int)size;
		wr->wr.rdma.rkey = mr->rkey;
		wr->next = i + 1 < length ? wr + 1 : NULL;
		wr->send_flags = wr->next ? 0 : IBV_SEND_SIGNALED;
	}
}

int main(int argc, char **argv)
{
	int size = argc > 3 ? atoi(argv[1]) : 0, qps = argc > 3 ? atoi(argv[2]) : 0, depth = argc > 3 ? atoi(argv[3]) : 0;
	int batch = depth / BATCHES > 0 ? depth / BATCHES : 1;
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_sge sge;
	struct stream *streams;
	struct ibv_wc done[64];
	union ibv_gid gid;
	pthread_t thread;
	char *memory;

	if (size < 1 || qps < 1 || depth < 1) {
		fprintf(stderr, "usage: traffic SIZE QPS DEPTH\n");
		return 2;
	}
	context = open_device();
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	cq = channel ? ibv_create_cq(context, qps * BATCHES + 1, NULL, channel, 0) : NULL;
	streams = calloc((size_t)qps, sizeof(*streams));
	memory = mmap(NULL, 2 * (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!pd || !cq || !streams || memory == MAP_FAILED || ibv_query_gid(context, 1, 0, &gid))
		fail("the device");
	memset(memory, 1, 2 * (size_t)size);
	mr = ibv_reg_mr(pd, memory, 2 * (size_t)size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!mr)
		fail("ibv_reg_mr");
	sge = (struct ibv_sge){ .addr = (uintptr_t)memory, .length = (unsigned int)size, .lkey = mr->lkey };
	for (int i = 0; i < qps; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq,
			.recv_cq = cq,
			.qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = (unsigned int)(BATCHES * batch), .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		};

		streams[i].qp = ibv_create_qp(pd, &init);
		if (!streams[i].qp)
			fail("ibv_create_qp");
		connect_qp(streams[i].qp, &gid, streams[i].qp->qp_num);
		build(&streams[i], i, batch, &sge, mr, size);
	}
	if (pthread_create(&thread, NULL, until_told, NULL))
		fail("pthread_create");
	say("ready");
	if (ibv_req_notify_cq(cq, 0))
		fail("ibv_req_notify_cq");
	for (int i = 0; i < BATCHES * qps; i++)
		post(&streams[i % qps]);
	for (;;) {
		struct ibv_cq *of;
		void *tag;
		int n;

		if (ibv_get_cq_event(channel, &of, &tag))
			fail("ibv_get_cq_event");
		ibv_ack_cq_events(of, 1);
		if (ibv_req_notify_cq(cq, 0))
			fail("ibv_req_notify_cq");
		while ((n = ibv_poll_cq(cq, 64, done)) > 0) {
			for (int i = 0; i < n; i++) {
				if (done[i].status) {
					fprintf(stderr, "traffic: %s\n", ibv_wc_status_str(done[i].status));
					return 1;
				}
				post(&streams[done[i].wr_id]);
			}
		}
		if (n < 0)
			fail("ibv_poll_cq");
	}
}
