/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serial PORT: accepts connections until it is killed.
 * serial PORT ADDRESS COUNT: opens and closes COUNT connections, one after the other, each with
 * a queue pair.
 *
 * The client prints connections/s, and the median duration of ibv_query_port in seconds, as an
 * example of a short command.
 */
#include "device.h"
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <time.h>

enum { QUERIES = 1001, TIMEOUT_MS = 5000 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr a = {
		.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	static struct ibv_pd *pd;
	static struct ibv_cq *cq;

	if (!pd && !(pd = ibv_alloc_pd(id->verbs)))
		fail("ibv_alloc_pd");
	if (!cq && !(cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0)))
		fail("ibv_create_cq");
	a.send_cq = a.recv_cq = cq;
	if (rdma_create_qp(id, pd, &a))
		fail("rdma_create_qp");
}

static void await(struct rdma_event_channel *ch, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *e;

	if (rdma_get_cm_event(ch, &e))
		fail("rdma_get_cm_event");
	if (e->event != want) {
		fprintf(stderr, "got %s (%d), want %s\n", rdma_event_str(e->event), e->status, rdma_event_str(want));
		exit(1);
	}
	rdma_ack_cm_event(e);
}

static void serve(struct rdma_event_channel *ch, struct rdma_cm_id *id, struct sockaddr *addr)
{
	struct rdma_conn_param p = {.responder_resources = 1, .initiator_depth = 1};

	if (rdma_bind_addr(id, addr) || rdma_listen(id, 16))
		fail("rdma_listen");
	for (;;) {
		struct rdma_cm_event *e, copy;
		if (rdma_get_cm_event(ch, &e))
			fail("rdma_get_cm_event");
		copy = *e;
		rdma_ack_cm_event(e);
		if (copy.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			make_qp(copy.id);
			if (rdma_accept(copy.id, &p))
				fail("rdma_accept");
		} else if (copy.event == RDMA_CM_EVENT_DISCONNECTED) {
			rdma_disconnect(copy.id);
			rdma_destroy_qp(copy.id);
			rdma_destroy_id(copy.id);
		}
	}
}

static void call(struct rdma_event_channel *ch, struct rdma_cm_id *id, struct sockaddr *addr)
{
	struct rdma_conn_param p = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7};

	if (rdma_resolve_addr(id, NULL, addr, TIMEOUT_MS))
		fail("rdma_resolve_addr");
	await(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(id, TIMEOUT_MS))
		fail("rdma_resolve_route");
	await(ch, RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_qp(id);
	if (rdma_connect(id, &p))
		fail("rdma_connect");
	await(ch, RDMA_CM_EVENT_ESTABLISHED);
	if (rdma_disconnect(id))
		fail("rdma_disconnect");
	await(ch, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(id);
}

static double query(struct ibv_context *context)
{
	static double times[QUERIES];
	struct ibv_port_attr a;

	for (int i = 0; i < QUERIES; i++) {
		double begin = now();
		if (ibv_query_port(context, 1, &a))
			fail("ibv_query_port");
		times[i] = now() - begin;
	}
	qsort(times, QUERIES, sizeof times[0], compare);
	return times[QUERIES / 2];
}

int main(int argc, char **argv)
{
	struct addrinfo hints = {.ai_family = AF_INET, .ai_flags = AI_PASSIVE}, *a;
	struct rdma_event_channel *ch;
	struct rdma_cm_id *id;
	struct ibv_context *verbs = NULL;
	double begin;
	int count;

	if (argc != 2 && argc != 4) {
		fprintf(stderr, "usage: serial PORT [ADDRESS COUNT]\n");
		return 2;
	}
	if (getaddrinfo(argc > 2 ? argv[2] : NULL, argv[1], &hints, &a)) {
		fprintf(stderr, "no such address\n");
		return 1;
	}
	if (!(ch = rdma_create_event_channel()))
		fail("rdma_create_event_channel");
	if (argc == 2) {
		if (rdma_create_id(ch, &id, NULL, RDMA_PS_TCP))
			fail("rdma_create_id");
		serve(ch, id, a->ai_addr);
	}
	count = atoi(argv[3]);
	begin = now();
	for (int i = 0; i < count; i++) {
		if (rdma_create_id(ch, &id, NULL, RDMA_PS_TCP))
			fail("rdma_create_id");
		call(ch, id, a->ai_addr);
		verbs = id->verbs;
		rdma_destroy_id(id);
	}
	printf("%.1f\n", count / (now() - begin));
	if (verbs)
		printf("%.9f\n", query(verbs));
	return 0;
}
