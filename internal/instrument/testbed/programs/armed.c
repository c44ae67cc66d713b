/* SPDX-License-Identifier: Apache-2.0 */
/*
 * armed CHANNELS: opens the device and makes CHANNELS completion channels, each with a
 * completion queue and a queue pair that is connected to itself. Each is used once (armed, a
 * message, its event, acknowledged) and armed again. Then it prints "ready" and sleeps on all
 * of them until its standard input ends. An unexpected event is an error.
 */
#include "device.h"
#include <poll.h>
#include <unistd.h>

struct sleeper {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static void arm(struct ibv_cq *cq)
{
	if (ibv_req_notify_cq(cq, 0))
		fail("ibv_req_notify_cq");
}

static struct sleeper create(struct ibv_context *context, struct ibv_pd *pd, const union ibv_gid *gid)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct sleeper s;

	s.channel = ibv_create_comp_channel(context);
	s.cq = s.channel ? ibv_create_cq(context, 16, NULL, s.channel, 0) : NULL;
	if (!s.cq)
		fail("ibv_create_comp_channel or ibv_create_cq");
	init.send_cq = init.recv_cq = s.cq;
	s.qp = ibv_create_qp(pd, &init);
	if (!s.qp)
		fail("ibv_create_qp");
	connect_qp(s.qp, gid, s.qp->qp_num);
	return s;
}

/* An empty RDMA write to itself, whose completion it sleeps for. */
static void use(struct sleeper *s)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *tag;

	arm(s->cq);
	if (ibv_post_send(s->qp, &wr, &bad))
		fail("ibv_post_send");
	if (ibv_get_cq_event(s->channel, &cq, &tag))
		fail("ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
	if (ibv_poll_cq(s->cq, 1, &wc) != 1 || wc.status) {
		fprintf(stderr, "armed: an event without a good completion\n");
		exit(1);
	}
	arm(s->cq);
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 1;
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct pollfd *files = calloc((size_t)count + 1, sizeof(*files));
	union ibv_gid gid;
	char byte;

	if (!pd || !files || ibv_query_gid(context, 1, 0, &gid))
		fail("ibv_alloc_pd or ibv_query_gid");
	for (int i = 0; i < count; i++) {
		struct sleeper s = create(context, pd, &gid);

		use(&s);
		files[i] = (struct pollfd){ .fd = s.channel->fd, .events = POLLIN };
	}
	files[count] = (struct pollfd){ .fd = STDIN_FILENO, .events = POLLIN };
	say("ready");
	for (;;) {
		if (poll(files, (nfds_t)count + 1, -1) < 0)
			fail("poll");
		if (files[count].revents && read(STDIN_FILENO, &byte, 1) <= 0)
			return 0;
		for (int i = 0; i < count; i++) {
			if (!files[i].revents)
				continue;
			fprintf(stderr, "armed: channel %d has an event and nothing happened\n", i);
			return 1;
		}
	}
}
