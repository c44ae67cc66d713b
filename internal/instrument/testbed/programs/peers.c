/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers COUNT: connects COUNT queue pairs to those of the same program on another host, sends
 * one empty message in each direction, and is idle until its standard input ends. Its output
 * is the input of the other program:
 *
 *	GID NUMBER NUMBER ...   its address and queue pair numbers
 *	connected               after it has read those of the other
 *	ready                   after every queue pair has carried a message
 */
#include "device.h"
#include <arpa/inet.h>
#include <unistd.h>

static struct ibv_qp **create(struct ibv_context *context, struct ibv_cq *cq, int count)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_qp **qps = calloc(count, sizeof(*qps));
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	if (!pd || !qps)
		fail("ibv_alloc_pd");
	for (int i = 0; i < count; i++) {
		qps[i] = ibv_create_qp(pd, &init);
		if (!qps[i])
			fail("ibv_create_qp");
	}
	return qps;
}

static void introduce(struct ibv_context *context, struct ibv_qp **qps, int count)
{
	union ibv_gid gid;
	char text[INET6_ADDRSTRLEN];

	if (ibv_query_gid(context, 1, 0, &gid))
		fail("ibv_query_gid");
	printf("%s", inet_ntop(AF_INET6, gid.raw, text, sizeof(text)));
	for (int i = 0; i < count; i++)
		printf(" %u", qps[i]->qp_num);
	say("");
}

static void meet(struct ibv_qp **qps, int count)
{
	char text[64];
	union ibv_gid gid;

	if (scanf("%63s", text) != 1 || inet_pton(AF_INET6, text, gid.raw) != 1)
		fail("the other's GID");
	for (int i = 0; i < count; i++) {
		unsigned int number;

		if (scanf("%u", &number) != 1)
			fail("the other's numbers");
		connect_qp(qps[i], &gid, number);
	}
}

/* An empty RDMA write needs no memory at either end. */
static void work(struct ibv_qp **qps, struct ibv_cq *cq, int count)
{
	for (int i = 0; i < count; i++) {
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
		struct ibv_send_wr *bad;
		struct ibv_wc wc;
		int n;

		if (ibv_post_send(qps[i], &wr, &bad))
			fail("ibv_post_send");
		while (!(n = ibv_poll_cq(cq, 1, &wc)))
			;
		if (n < 0 || wc.status) {
			fprintf(stderr, "queue pair %d of %d: %s\n", i + 1, count, ibv_wc_status_str(wc.status));
			exit(1);
		}
	}
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 1;
	struct ibv_context *context = open_device();
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp **qps;
	char word[16];

	if (!cq)
		fail("ibv_create_cq");
	qps = create(context, cq, count);
	introduce(context, qps, count);
	meet(qps, count);
	say("connected");
	if (scanf("%15s", word) != 1)
		fail("the other is gone");
	work(qps, cq, count);
	say("ready");
	while (read(STDIN_FILENO, word, sizeof(word)) > 0)
		;
	return 0;
}
