/* SPDX-License-Identifier: Apache-2.0 */
/* Part of rdmacm.c: connections, from the request to the end, and their queue pairs. */
#include "ask.h"

struct pair {
	struct rdma_cm_id *listener, *active, *passive;
};

static void life(void)
{
	struct pair p = {.listener = listener(RDMA_PS_TCP, 7020, 5), .active = routed(RDMA_PS_TCP, 7020)};
	struct rdma_conn_param param = params(56);
	struct rdma_cm_event *e;

	TRY("connect with 56 bytes", rdma_connect(p.active, &param));
	TRY("connect again", rdma_connect(p.active, &param));
	p.passive = request(false);
	printf("    ports %s\n", rdma_get_src_port(p.passive) == htons(7020) && rdma_get_dst_port(p.passive) == rdma_get_src_port(p.active) ? "match" : "differ");
	printf("    passive's listener %s\n", p.passive->verbs ? "gave it a device" : "gave it no device");
	param = params(196);
	param.responder_resources = 1;
	param.initiator_depth = 4;
	TRY("accept with 196 bytes", rdma_accept(p.passive, &param));
	if ((e = next(ch, "active", PATIENCE))) {
		content(e, false);
		rdma_ack_cm_event(e);
	}
	TRY("establish", rdma_establish(p.active));
	TRY("establish again", rdma_establish(p.active));
	event("passive");
	TRY("notify", rdma_notify(p.passive, IBV_EVENT_COMM_EST));
	TRY("notify of something else", rdma_notify(p.passive, IBV_EVENT_QP_FATAL));
	TRY("reject an established one", rdma_reject(p.passive, NULL, 0));
	none("nothing happened");
	the_active = p.active, the_passive = p.passive;
	TRY("disconnect", rdma_disconnect(p.active));
	TRY("disconnect again", rdma_disconnect(p.active));
	event("first");
	TRY("the other disconnects", rdma_disconnect(p.passive));
	event("second");
	TRY("connect the old id again", rdma_connect(p.active, &param));
	the_active = the_passive = NULL;
	TRY("destroy active", rdma_destroy_id(p.active));
	TRY("destroy passive", rdma_destroy_id(p.passive));
	none("end");
	TRY("destroy listener", rdma_destroy_id(p.listener));
}

/* Accepting again is not only refused: it ends the connection. */
static void accepted_twice(void)
{
	struct rdma_cm_id *l = listener(RDMA_PS_TCP, 7035, 5), *a = routed(RDMA_PS_TCP, 7035), *b;
	struct rdma_conn_param param = params(0);

	rdma_connect(a, &param);
	if (!(b = request(false)))
		return;
	param = params(0);
	TRY("accept", rdma_accept(b, &param));
	event("active");
	TRY("accept again", rdma_accept(b, &param));
	event("active");
	TRY("establish", rdma_establish(a));
	none("end");
	rdma_destroy_id(a);
	rdma_destroy_id(b);
	rdma_destroy_id(l);
}

static void sizes(void)
{
	static const int req[] = {0, 1, 56, 57, 92, 255}, rep[] = {0, 196, 197}, rej[] = {0, 148, 149};
	struct rdma_cm_id *l = listener(RDMA_PS_TCP, 7021, 50), *a, *b;
	struct rdma_conn_param param;
	struct rdma_cm_event *e;
	char what[64];

	for (size_t i = 0; i < sizeof req / sizeof *req; i++) {
		a = routed(RDMA_PS_TCP, 7021);
		param = params(req[i]);
		snprintf(what, sizeof what, "connect with %d", req[i]);
		TRY(what, rdma_connect(a, &param));
		if (req[i] <= 56) {
			b = request(false);
			rdma_reject(b, NULL, 0);
			event("active");
			rdma_destroy_id(b);
		}
		rdma_destroy_id(a);
	}
	for (size_t i = 0; i < sizeof rep / sizeof *rep; i++) {
		a = routed(RDMA_PS_TCP, 7021);
		param = params(0);
		rdma_connect(a, &param);
		b = request(false);
		param = params(rep[i]);
		snprintf(what, sizeof what, "accept with %d", rep[i]);
		TRY(what, rdma_accept(b, &param));
		event("active");
		rdma_destroy_id(a);
		rdma_destroy_id(b);
	}
	for (size_t i = 0; i < sizeof rej / sizeof *rej; i++) {
		a = routed(RDMA_PS_TCP, 7021);
		param = params(0);
		rdma_connect(a, &param);
		b = request(false);
		snprintf(what, sizeof what, "reject with %d", rej[i]);
		params(0);
		TRY(what, rdma_reject(b, bytes, (uint8_t)rej[i]));
		if (rej[i] <= 148 && (e = next(ch, "active", PATIENCE))) {
			content(e, false);
			rdma_ack_cm_event(e);
		}
		TRY("reject again", rdma_reject(b, NULL, 0));
		rdma_destroy_id(a);
		rdma_destroy_id(b);
	}
	rdma_destroy_id(l);
}

static void refusals(void)
{
	struct rdma_cm_id *a = routed(RDMA_PS_TCP, 7022), *l, *b;
	struct rdma_conn_param param = params(4);

	TRY("connect where nobody listens", rdma_connect(a, &param));
	event("active");
	TRY("connect again", rdma_connect(a, &param));
	none("again");
	TRY("disconnect", rdma_disconnect(a));
	rdma_destroy_id(a);

	l = make(RDMA_PS_TCP);
	TRY("bind only", rdma_bind_addr(l, at(local, 7022)));
	a = routed(RDMA_PS_TCP, 7022);
	param = params(4);
	TRY("connect to who is bound", rdma_connect(a, &param));
	event("active");
	rdma_destroy_id(a);
	rdma_destroy_id(l);

	l = listener(RDMA_PS_TCP, 7022, 5);
	a = routed(RDMA_PS_TCP, 7022);
	param = params(4);
	TRY("connect, then destroy the request", rdma_connect(a, &param));
	b = request(false);
	rdma_destroy_id(b);
	event("active");
	rdma_destroy_id(a);

	a = routed(RDMA_PS_TCP, 7022);
	param = params(4);
	TRY("connect, then destroy the caller", rdma_connect(a, &param));
	b = request(false);
	rdma_destroy_id(a);
	TRY("accept who is gone", rdma_accept(b, &param));
	none("passive");
	rdma_destroy_id(b);

	a = routed(RDMA_PS_TCP, 7022);
	param = params(4);
	TRY("connect, then destroy the listener", rdma_connect(a, &param));
	struct pollfd p = {.fd = ch->fd, .events = POLLIN};
	poll(&p, 1, PATIENCE);
	rdma_destroy_id(l);
	event("active");
	rdma_destroy_id(a);
}

/* A REP that the active side refuses. */
static void refused_reply(void)
{
	struct rdma_cm_id *l = listener(RDMA_PS_TCP, 7023, 5), *a = routed(RDMA_PS_TCP, 7023), *b;
	struct rdma_conn_param param = params(0);

	rdma_connect(a, &param);
	b = request(false);
	param = params(0);
	TRY("accept", rdma_accept(b, &param));
	event("active");
	TRY("reject the reply", rdma_reject(a, NULL, 0));
	event("passive");
	rdma_destroy_id(a);
	rdma_destroy_id(b);

	a = routed(RDMA_PS_TCP, 7023);
	param = params(0);
	rdma_connect(a, &param);
	b = request(false);
	param = params(0);
	TRY("accept", rdma_accept(b, &param));
	event("active");
	TRY("destroy instead", rdma_destroy_id(a));
	event("passive");
	rdma_destroy_id(b);
	rdma_destroy_id(l);
}

static void backlog(void)
{
	struct rdma_cm_id *l = listener(RDMA_PS_TCP, 7024, 2), *a[5];
	struct rdma_event_channel *own = rdma_create_event_channel();
	struct rdma_conn_param param = params(0);
	struct rdma_cm_event *e;

	for (int i = 0; i < 5; i++)
		a[i] = routed(RDMA_PS_TCP, 7024);
	for (int i = 0; i < 5; i++)
		rdma_migrate_id(a[i], own);
	for (int i = 0; i < 5; i++) {
		param = params(0);
		if (rdma_connect(a[i], &param))
			printf("  connect: %s\n", result(-1));
	}
	/* Those who find no room hear nothing: their requests are repeated. */
	if ((e = next(own, "active", 1000)))
		rdma_ack_cm_event(e);
	for (int i = 0; i < 2 && (e = next(ch, "passive", PATIENCE)); i++) {
		struct rdma_cm_id *id = e->id;
		rdma_ack_cm_event(e);
		rdma_destroy_id(id);
	}
	for (int i = 0; i < 2; i++)
		if ((e = next(own, "active", PATIENCE)))
			rdma_ack_cm_event(e);
	for (int i = 0; i < 5; i++)
		rdma_destroy_id(a[i]);
	rdma_destroy_event_channel(own);
	rdma_destroy_id(l);
}

/* The attributes that a queue pair gets in each state. */
static void attributes1(const char *who, struct rdma_cm_id *id)
{
	static const enum ibv_qp_state states[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR};
	for (size_t i = 0; i < 4; i++) {
		struct ibv_qp_attr a = {.qp_state = states[i]};
		int mask = 0, r = rdma_init_qp_attr(id, &a, &mask);
		printf("  %s, state %d: %s", who, states[i], result(r));
		if (!r) {
			printf(", mask %#x", mask);
			if (mask & IBV_QP_ACCESS_FLAGS) /* without FLUSH, which Linux grants since 6.2 */
				printf(", access %#x", a.qp_access_flags & ~0x300u);
			if (mask & IBV_QP_PATH_MTU)
				printf(", path mtu %s", a.path_mtu ? "set" : "unset");
			if (mask & IBV_QP_DEST_QPN)
				printf(", to %#x", a.dest_qp_num);
			if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
				printf(", resources %d", a.max_dest_rd_atomic);
			if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
				printf(", depth %d", a.max_rd_atomic);
			if (mask & IBV_QP_TIMEOUT)
				printf(", timeout %d, retry %d, rnr %d", a.timeout, a.retry_cnt, a.rnr_retry);
			if (mask & IBV_QP_AV)
				printf(", global %d, hops %d, port %d", a.ah_attr.is_global, a.ah_attr.grh.hop_limit, a.ah_attr.port_num);
			if (mask & IBV_QP_QKEY)
				printf(", qkey %#x", a.qkey);
		}
		putchar('\n');
	}
}

static void attributes(void)
{
	struct rdma_cm_id *l = listener(RDMA_PS_TCP, 7025, 5), *a = make(RDMA_PS_TCP), *b, *u;
	struct rdma_conn_param param = params(0);

	rdma_bind_addr(a, at(local, 0));
	attributes1("bound", a);
	rdma_destroy_id(a);
	a = routed(RDMA_PS_TCP, 7025);
	attributes1("routed", a);
	rdma_connect(a, &param);
	attributes1("connecting", a);
	b = request(false);
	attributes1("asked", b);
	param = params(0);
	param.responder_resources = 0;
	rdma_accept(b, &param);
	event("active");
	attributes1("accepted", a);
	rdma_establish(a);
	event("passive");
	attributes1("passive", b);
	rdma_disconnect(a);
	event("first");
	rdma_disconnect(b);
	event("second");
	attributes1("disconnected", a);
	rdma_destroy_id(a);
	rdma_destroy_id(b);
	rdma_destroy_id(l);
	u = make(RDMA_PS_UDP);
	rdma_bind_addr(u, at(local, 0));
	attributes1("datagrams", u);
	rdma_destroy_id(u);
}

static void ack_timeout(void)
{
	struct rdma_cm_id *l = listener(RDMA_PS_TCP, 7026, 5), *a = routed(RDMA_PS_TCP, 7026), *b;
	struct rdma_conn_param param = params(0);
	uint8_t code = 14;

	TRY("ack timeout", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &code, 1));
	rdma_connect(a, &param);
	b = request(false);
	param = params(0);
	rdma_accept(b, &param);
	event("active");
	attributes1("active", a);
	attributes1("passive", b);
	rdma_destroy_id(a);
	rdma_destroy_id(b);
	rdma_destroy_id(l);
}
