/* SPDX-License-Identifier: Apache-2.0 */
/* Part of rdmacm.c: datagrams and groups, event channels, and several listeners. */
#include "ask.h"

static void datagrams(void)
{
	static const int req[] = {0, 180, 181}, rep[] = {0, 136, 137};
	struct rdma_cm_id *l = listener(RDMA_PS_UDP, 7030, 5), *a, *b;
	struct rdma_conn_param param;
	struct rdma_cm_event *e;
	char what[64];

	for (size_t i = 0; i < 3; i++) {
		a = routed(RDMA_PS_UDP, 7030);
		param = params(req[i]);
		snprintf(what, sizeof what, "ask with %d", req[i]);
		TRY(what, rdma_connect(a, &param));
		if (req[i] <= 180) {
			b = request(true);
			param = params(rep[i]);
			snprintf(what, sizeof what, "answer with %d", rep[i]);
			TRY(what, rdma_accept(b, &param));
			if ((e = next(ch, "active", PATIENCE))) {
				content(e, true);
				printf("    queue pair %#x, key %#x, hops %d\n", e->param.ud.qp_num, e->param.ud.qkey, e->param.ud.ah_attr.grh.hop_limit);
				rdma_ack_cm_event(e);
			}
			TRY("accept again", rdma_accept(b, &param));
			TRY("passive disconnects", rdma_disconnect(b));
			rdma_destroy_id(b);
		}
		TRY("active disconnects", rdma_disconnect(a));
		rdma_destroy_id(a);
	}
	a = routed(RDMA_PS_UDP, 7030);
	param = params(0);
	rdma_connect(a, &param);
	b = request(true);
	param = params(137);
	TRY("answer with 137", rdma_accept(b, &param));
	rdma_destroy_id(b);
	event("active");
	rdma_destroy_id(a);
	a = routed(RDMA_PS_UDP, 7030);
	param = params(0);
	rdma_connect(a, &param);
	b = request(true);
	TRY("refuse with 4 bytes", rdma_reject(b, bytes, 4));
	if ((e = next(ch, "active", PATIENCE))) {
		content(e, true);
		rdma_ack_cm_event(e);
	}
	rdma_destroy_id(a);
	rdma_destroy_id(b);
	rdma_destroy_id(l);
	a = routed(RDMA_PS_UDP, 7030);
	TRY("ask where nobody listens", rdma_connect(a, &param));
	event("active");
	rdma_destroy_id(a);
}

static void groups(void)
{
	struct rdma_cm_id *u = make(RDMA_PS_UDP);
	struct rdma_cm_event *e;
	int mark;

	TRY("bind", rdma_bind_addr(u, at(local, 0)));
	TRY("join", rdma_join_multicast(u, at("224.0.5.6", 0), &mark));
	if ((e = next(ch, "member", PATIENCE))) {
		printf("    context %s, queue pair %#x, key %#x, group", e->param.ud.private_data == (void *)&mark ? "ours" : "not ours", e->param.ud.qp_num,
		       e->param.ud.qkey);
		for (int i = 0; i < 16; i++)
			printf("%s%02x", i % 2 ? "" : ":", e->param.ud.ah_attr.grh.dgid.raw[i]);
		printf(", hops %d\n", e->param.ud.ah_attr.grh.hop_limit);
		rdma_ack_cm_event(e);
	}
	TRY("join it again", rdma_join_multicast(u, at("224.0.5.6", 0), &mark));
	none("member");
	TRY("join no group", rdma_join_multicast(u, at(local, 0), &mark));
	none("member");
	TRY("leave", rdma_leave_multicast(u, at("224.0.5.6", 0)));
	TRY("leave what was not joined", rdma_leave_multicast(u, at("224.0.5.9", 0)));
	none("end");
	rdma_destroy_id(u);
}

/* ---- channels ---- */

static void channels(void)
{
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct rdma_cm_id *l = listener(RDMA_PS_TCP, 7031, 5), *a = routed(RDMA_PS_TCP, 7031), *b;
	struct rdma_conn_param param = params(0);
	struct rdma_cm_event *e;

	fcntl(other->fd, F_SETFL, O_NONBLOCK);
	TRY("no event, not blocking", rdma_get_cm_event(other, &e));
	rdma_connect(a, &param);
	struct pollfd p = {.fd = ch->fd, .events = POLLIN};
	printf("  request pending: %d\n", poll(&p, 1, PATIENCE));
	TRY("migrate the listener with its request", rdma_migrate_id(l, other));
	printf("  here %d, there %d\n", poll(&p, 1, 0), poll(&(struct pollfd){.fd = other->fd, .events = POLLIN}, 1, PATIENCE));
	if (!(e = next(other, "listener", PATIENCE)))
		return;
	b = e->id;
	printf("    new id on %s channel\n", b->channel == other ? "the listener's" : "another");
	rdma_ack_cm_event(e);
	TRY("migrate the new one back", rdma_migrate_id(b, ch));
	param = params(0);
	TRY("accept", rdma_accept(b, &param));
	event("active");
	rdma_establish(a);
	event("passive");
	rdma_disconnect(b);
	event("first");
	rdma_disconnect(a);
	event("second");
	rdma_destroy_id(a);
	rdma_destroy_id(b);
	rdma_destroy_id(l);
	rdma_destroy_event_channel(other);
}

/* Identifiers without a channel wait by themselves. */
static void synchronous(void)
{
	struct rdma_cm_id *a, *l;
	struct rdma_conn_param param = params(0);

	TRY("create", rdma_create_id(NULL, &a, NULL, RDMA_PS_TCP));
	TRY("resolve", rdma_resolve_addr(a, NULL, at(local, 7032), 2000));
	TRY("route", rdma_resolve_route(a, 2000));
	TRY("connect where nobody listens", rdma_connect(a, &param));
	rdma_destroy_id(a);
	TRY("create", rdma_create_id(NULL, &a, NULL, RDMA_PS_TCP));
	TRY("resolve nobody", rdma_resolve_addr(a, NULL, at(absent, 7032), 1500));
	rdma_destroy_id(a);
	TRY("create", rdma_create_id(NULL, &l, NULL, RDMA_PS_TCP));
	TRY("bind", rdma_bind_addr(l, at(local, 7032)));
	TRY("listen", rdma_listen(l, 0));
	rdma_destroy_id(l);
}

/* Two listeners at one port of different spaces; a specific one before a wildcard. */
static void several(void)
{
	struct rdma_cm_id *tcp = listener(RDMA_PS_TCP, 7033, 5), *udp = listener(RDMA_PS_UDP, 7033, 5), *a, *b, *u, *v, *any;
	struct rdma_conn_param param = params(0);
	struct rdma_cm_event *e;

	a = routed(RDMA_PS_TCP, 7033);
	rdma_connect(a, &param);
	e = next(ch, "stream", PATIENCE);
	printf("    at %s\n", e->listen_id == tcp ? "the TCP listener" : "another");
	b = e->id;
	rdma_ack_cm_event(e);
	u = routed(RDMA_PS_UDP, 7033);
	rdma_connect(u, &param);
	e = next(ch, "datagram", PATIENCE);
	printf("    at %s\n", e->listen_id == udp ? "the UDP listener" : "another");
	v = e->id;
	rdma_ack_cm_event(e);
	rdma_destroy_id(a);
	rdma_destroy_id(b);
	rdma_destroy_id(u);
	rdma_destroy_id(v);
	rdma_destroy_id(tcp);
	rdma_destroy_id(udp);
	any = make(RDMA_PS_TCP);
	TRY("wildcard", rdma_bind_addr(any, at("0.0.0.0", 7034)));
	TRY("listen", rdma_listen(any, 5));
	a = routed(RDMA_PS_TCP, 7034);
	param = params(0);
	rdma_connect(a, &param);
	e = next(ch, "stream", PATIENCE);
	b = e->id;
	printf("    device %s\n", b->verbs ? "known" : "unknown");
	rdma_ack_cm_event(e);
	rdma_destroy_id(a);
	rdma_destroy_id(b);
	rdma_destroy_id(any);
}
