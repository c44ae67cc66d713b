/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gap QPS BYTES [hold]: makes QPS queue pairs, each connected to itself, registers BYTES, and prints "ready" after every
 * queue pair has received a message of 64 bytes from itself. Then each sends the next message as soon as it has received one, until
 * standard input ends. It prints the longest time between two messages of a queue pair, in seconds. With hold it only
 * waits for the end of standard input. A failed completion is an error.
 */
#include "device.h"
#include <poll.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 64 };

struct pair {
	struct ibv_qp *qp;
	double last;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void post(struct pair *p, int i, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = SIZE, .lkey = mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;

	if (ibv_post_recv(p->qp, &recv, &bad_recv) || ibv_post_send(p->qp, &send, &bad_send))
		fail("post");
}

static int ended(void)
{
	struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
	char byte;

	return poll(&in, 1, 0) > 0 && read(STDIN_FILENO, &byte, 1) <= 0;
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[1]) : 1, hold = argc > 3;
	size_t bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 4096;
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4 * count + 16, NULL, NULL, 0);
	struct pair *pairs = calloc((size_t)count, sizeof(*pairs));
	char *memory = aligned_alloc(4096, bytes);
	union ibv_gid gid;
	struct ibv_mr *mr;
	double worst = 0;
	char byte;

	if (!pd || !cq || !pairs || !memory || ibv_query_gid(context, 1, 0, &gid))
		fail("a device with its objects");
	memset(memory, 1, bytes);
	mr = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		fail("ibv_reg_mr");
	for (int i = 0; i < count; i++) {
		struct ibv_qp_init_attr init = {
			.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq,
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		};

		pairs[i].qp = ibv_create_qp(pd, &init);
		if (!pairs[i].qp)
			fail("ibv_create_qp");
		connect_qp(pairs[i].qp, &gid, pairs[i].qp->qp_num);
		post(&pairs[i], i, mr);
	}
	for (unsigned int first = 0, turn = 0;; turn++) {
		struct ibv_wc wc[16];
		int n = ibv_poll_cq(cq, 16, wc);

		for (int i = 0; i < n; i++) {
			struct pair *p = &pairs[wc[i].wr_id];
			double at = now();

			if (wc[i].status) {
				fprintf(stderr, "gap: %s\n", ibv_wc_status_str(wc[i].status));
				return 1;
			}
			if (wc[i].opcode != IBV_WC_RECV)
				continue;
			if (p->last && at - p->last > worst)
				worst = at - p->last;
			if (!p->last && ++first == (unsigned int)count) {
				say("ready");
				worst = 0;
			}
			p->last = at;
			if (!hold)
				post(p, (int)wc[i].wr_id, mr);
		}
		if (hold && first == (unsigned int)count)
			return read(STDIN_FILENO, &byte, 1) > 0;
		if (n == 0 && turn % 1024 == 0 && ended())
			break;
	}
	printf("%.9f\n", worst);
	return 0;
}
