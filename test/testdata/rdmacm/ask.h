/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of rdmacm.c share: how a question is put, how the answer is printed, and
 * the ends of a connection.
 */
#ifndef RDMACM_ASK_H
#define RDMACM_ASK_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *local, *absent, *foreign;
static struct rdma_event_channel *ch;
static struct rdma_cm_id *the_active, *the_passive; /* where it matters who hears */

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static const char *result(int r)
{
	return r == 0 ? "ok" : strerrorname_np(errno);
}

#define TRY(what, call)                                            \
	do {                                                       \
		errno = 0;                                         \
		int r_ = (call);                                   \
		printf("  %s: %s\n", what, result(r_ ? -1 : 0));   \
	} while (0)

static union {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	struct sockaddr_storage all;
} addr;

static struct sockaddr *at(const char *host, int port)
{
	memset(&addr, 0, sizeof addr);
	if (inet_pton(AF_INET, host, &addr.in.sin_addr) == 1) {
		addr.in.sin_family = AF_INET;
		addr.in.sin_port = htons((uint16_t)port);
	} else {
		inet_pton(AF_INET6, host, &addr.in6.sin6_addr);
		addr.in6.sin6_family = AF_INET6;
		addr.in6.sin6_port = htons((uint16_t)port);
	}
	return &addr.sa;
}

static struct rdma_cm_id *make(enum rdma_port_space ps)
{
	struct rdma_cm_id *id = NULL;
	if (rdma_create_id(ch, &id, NULL, ps)) {
		printf("  rdma_create_id %#x: %s\n", ps, result(-1));
		exit(1);
	}
	return id;
}

/* Waits for an event and prints it; NULL if none comes. The caller acknowledges. */
static struct rdma_cm_event *next(struct rdma_event_channel *c, const char *who, int ms)
{
	struct pollfd p = {.fd = c->fd, .events = POLLIN};
	struct rdma_cm_event *e;

	if (poll(&p, 1, ms) != 1) {
		printf("  %s: no event\n", who);
		return NULL;
	}
	if (rdma_get_cm_event(c, &e)) {
		printf("  %s: %s\n", who, result(-1));
		return NULL;
	}
	printf("  %s: %s", who, rdma_event_str(e->event) + strlen("RDMA_CM_EVENT_"));
	if (e->status < 0)
		printf(" -%s", strerrorname_np(-e->status));
	else if (e->status)
		printf(" %d", e->status);
	puts(e->id == the_active ? " (active)" : e->id == the_passive ? " (passive)" : "");
	return e;
}

#define PATIENCE 60000 /* ms; the machine may be busy, or emulated */

static void event(const char *who)
{
	struct rdma_cm_event *e = next(ch, who, PATIENCE);
	if (e)
		rdma_ack_cm_event(e);
}

static void none(const char *who)
{
	struct rdma_cm_event *e = next(ch, who, 300);
	if (e)
		rdma_ack_cm_event(e);
}

static struct rdma_cm_id *listener(enum rdma_port_space ps, int port, int backlog)
{
	struct rdma_cm_id *l = make(ps);
	if (rdma_bind_addr(l, at(local, port)) || rdma_listen(l, backlog))
		printf("  listener: %s\n", result(-1));
	return l;
}

static struct rdma_cm_id *routed(enum rdma_port_space ps, int port)
{
	struct rdma_cm_id *a = make(ps);
	struct rdma_cm_event *e;

	if (rdma_resolve_addr(a, NULL, at(local, port), 5000) || rdma_get_cm_event(ch, &e))
		printf("  resolve: %s\n", result(-1));
	else
		rdma_ack_cm_event(e);
	if (rdma_resolve_route(a, 5000) || rdma_get_cm_event(ch, &e))
		printf("  route: %s\n", result(-1));
	else
		rdma_ack_cm_event(e);
	return a;
}

static char bytes[256];
static uint32_t qpn; /* another for every connection: the old ones linger */

static struct rdma_conn_param params(int len)
{
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (char)(i * 7 + 1);
	return (struct rdma_conn_param){
		.qp_num = ++qpn, .private_data = bytes, .private_data_len = (uint8_t)len, .responder_resources = 3, .initiator_depth = 2,
		.retry_count = 5, .rnr_retry_count = 6, .flow_control = 1,
	};
}

/* Private data: how much came, how much of it is ours, and the parameters. */
static void content(struct rdma_cm_event *e, bool ud)
{
	const char *data = ud ? e->param.ud.private_data : e->param.conn.private_data;
	int len = ud ? e->param.ud.private_data_len : e->param.conn.private_data_len, same = 0;

	while (same < len && data[same] == (char)(same * 7 + 1))
		same++;
	printf("    %d bytes, %d of them ours", len, same);
	if (!ud)
		printf(", resources %d, depth %d, retry %d, rnr %d, flow %d", e->param.conn.responder_resources, e->param.conn.initiator_depth,
		       e->param.conn.retry_count, e->param.conn.rnr_retry_count, e->param.conn.flow_control);
	putchar('\n');
}

static struct rdma_cm_id *request(bool ud)
{
	struct rdma_cm_event *e = next(ch, "passive", PATIENCE);
	struct rdma_cm_id *id = NULL;
	if (!e)
		return NULL;
	if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		id = e->id;
		content(e, ud);
	}
	rdma_ack_cm_event(e);
	return id;
}

#endif
