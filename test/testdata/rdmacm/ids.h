/* SPDX-License-Identifier: Apache-2.0 */
/* Part of rdmacm.c: identifiers, their addresses and options, and the resolution of others. */
#include "ask.h"

static void spaces(void)
{
	static const struct {
		const char *name;
		int ps;
	} all[] = {{"TCP", RDMA_PS_TCP}, {"UDP", RDMA_PS_UDP}, {"IB", RDMA_PS_IB}, {"IPOIB", RDMA_PS_IPOIB}, {"0", 0}, {"0x107", 0x107}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		struct rdma_cm_id *id = NULL;
		char what[64];
		snprintf(what, sizeof what, "create %s", all[i].name);
		TRY(what, rdma_create_id(ch, &id, NULL, (enum rdma_port_space)all[i].ps));
		if (!id)
			continue;
		snprintf(what, sizeof what, "bind %s", all[i].name);
		TRY(what, rdma_bind_addr(id, at(local, 0)));
		printf("  qp type %d, port %s\n", id->qp_type, ntohs(rdma_get_src_port(id)) ? "some" : "none");
		snprintf(what, sizeof what, "listen %s", all[i].name);
		TRY(what, rdma_listen(id, 1));
		rdma_destroy_id(id);
	}
}

static void binding(void)
{
	struct rdma_cm_id *a = make(RDMA_PS_TCP), *b = make(RDMA_PS_TCP), *c = make(RDMA_PS_UDP);

	TRY("specific", rdma_bind_addr(a, at(local, 7011)));
	printf("  port %d, device %s\n", ntohs(rdma_get_src_port(a)), a->verbs ? "known" : "unknown");
	TRY("twice", rdma_bind_addr(a, at(local, 7012)));
	TRY("same address and port", rdma_bind_addr(b, at(local, 7011)));
	TRY("wildcard, same port", rdma_bind_addr(b, at("0.0.0.0", 7011)));
	TRY("IPv6 wildcard, same port", rdma_bind_addr(b, at("::", 7011)));
	TRY("same port, another space", rdma_bind_addr(c, at(local, 7011)));
	TRY("not ours", rdma_bind_addr(b, at(absent, 0)));
	TRY("not ours, no route", rdma_bind_addr(b, at(foreign, 0)));
	TRY("family 0", rdma_bind_addr(b, (memset(&addr, 0, sizeof addr), &addr.sa)));
	TRY("after all that", rdma_bind_addr(b, at("0.0.0.0", 0)));
	int port = ntohs(rdma_get_src_port(b));
	printf("  ephemeral %s, device %s\n", port >= 32768 && port <= 60999 ? "in range" : "out of range", b->verbs ? "known" : "unknown");
	rdma_destroy_id(a);
	rdma_destroy_id(b);
	b = make(RDMA_PS_TCP);
	TRY("port that was given back", rdma_bind_addr(b, at(local, 7011)));
	rdma_destroy_id(b);
	rdma_destroy_id(c);
}

static void loopback(void)
{
	struct rdma_cm_id *a = make(RDMA_PS_TCP);

	TRY("bind 127.0.0.1", rdma_bind_addr(a, at("127.0.0.1", 7013)));
	rdma_destroy_id(a);
}

static void wildcards(void)
{
	struct rdma_cm_id *a = make(RDMA_PS_TCP), *b = make(RDMA_PS_TCP), *c = make(RDMA_PS_TCP);
	int one = 1;

	TRY("IPv4 wildcard", rdma_bind_addr(a, at("0.0.0.0", 7014)));
	TRY("IPv6 wildcard beside it", rdma_bind_addr(b, at("::", 7014)));
	TRY("afonly", rdma_set_option(c, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof one));
	TRY("IPv6 wildcard with afonly", rdma_bind_addr(c, at("::", 7014)));
	TRY("listen IPv4", rdma_listen(a, 1));
	TRY("listen IPv6", rdma_listen(c, 1));
	rdma_destroy_id(a);
	rdma_destroy_id(b);
	rdma_destroy_id(c);
}

static void reuse(void)
{
	struct rdma_cm_id *a = make(RDMA_PS_TCP), *b = make(RDMA_PS_TCP), *c = make(RDMA_PS_TCP);
	int one = 1, zero = 0;

	TRY("reuse a", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one));
	TRY("reuse b", rdma_set_option(b, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one));
	TRY("bind a", rdma_bind_addr(a, at(local, 7015)));
	TRY("bind b", rdma_bind_addr(b, at(local, 7015)));
	TRY("bind c without", rdma_bind_addr(c, at(local, 7015)));
	TRY("listen a", rdma_listen(a, 1));
	TRY("listen b", rdma_listen(b, 1));
	TRY("reuse after listening", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &zero, sizeof zero));
	TRY("reuse late, c", rdma_set_option(c, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one));
	TRY("bind c with", rdma_bind_addr(c, at(local, 7015)));
	rdma_destroy_id(a);
	rdma_destroy_id(b);
	rdma_destroy_id(c);
	a = make(RDMA_PS_TCP);
	TRY("bind", rdma_bind_addr(a, at(local, 7015)));
	TRY("reuse when bound", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one));
	TRY("afonly when bound", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof one));
	TRY("listen", rdma_listen(a, 1));
	TRY("afonly when listening", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof one));
	rdma_destroy_id(a);
}

static void options(void)
{
	struct rdma_cm_id *a = make(RDMA_PS_TCP);
	uint8_t byte = 12;
	int number = 1;
	char much[300] = {0};

	TRY("tos", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1));
	TRY("tos of four bytes", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &number, 4));
	TRY("reuse of one byte", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &byte, 1));
	TRY("ack timeout", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1));
	byte = 32;
	TRY("ack timeout 32", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1));
	TRY("ack timeout of four bytes", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &number, 4));
	TRY("unknown", rdma_set_option(a, RDMA_OPTION_ID, 77, &number, 4));
	TRY("unknown level", rdma_set_option(a, 9, 1, &number, 4));
	TRY("path too short", rdma_set_option(a, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, much, 5));
	TRY("path", rdma_set_option(a, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, much, sizeof(struct ibv_path_data)));
	((struct ibv_path_data *)much)->flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
	TRY("path too early", rdma_set_option(a, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, much, sizeof(struct ibv_path_data)));
	TRY("IB, unknown", rdma_set_option(a, RDMA_OPTION_IB, 5, much, 4));
	TRY("nothing", rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, much, 0));
	rdma_destroy_id(a);
}

/* What cannot be done in a state. */
static void disorder(void)
{
	struct rdma_cm_id *a = make(RDMA_PS_TCP), *b = make(RDMA_PS_TCP), *u = make(RDMA_PS_UDP);
	struct rdma_conn_param p = {.qp_num = 5};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	int mask;

	/* The library crashes where an id has no device. */
	TRY("bind b", rdma_bind_addr(b, at(local, 0)));
	TRY("resolve route, bound", rdma_resolve_route(b, 100));
	TRY("connect, bound", rdma_connect(b, &p));
	TRY("accept, bound", rdma_accept(b, &p));
	TRY("reject, bound", rdma_reject(b, NULL, 0));
	TRY("disconnect, bound", rdma_disconnect(b));
	TRY("establish, bound", rdma_establish(b));
	TRY("notify, bound", rdma_notify(b, IBV_EVENT_COMM_EST));
	TRY("reject", rdma_reject(a, NULL, 0));
	TRY("notify", rdma_notify(a, IBV_EVENT_COMM_EST));
	TRY("init qp attr", rdma_init_qp_attr(a, &attr, &mask));
	TRY("join, unbound", rdma_join_multicast(u, at("224.0.5.5", 0), NULL));
	TRY("listen, unbound", rdma_listen(a, 1));
	TRY("listen again", rdma_listen(a, 5));
	TRY("resolve, listening", rdma_resolve_addr(a, NULL, at(local, 7016), 500));
	TRY("bind, listening", rdma_bind_addr(a, at(local, 7016)));
	TRY("join, not datagrams", rdma_join_multicast(a, at("224.0.5.5", 0), NULL));
	none("after all that");
	rdma_destroy_id(a);
	rdma_destroy_id(b);
	rdma_destroy_id(u);
}

/* ---- resolution ---- */

static void took(double start, int timeout)
{
	double t = now() - start;
	printf("  %s\n", t * 1000 < timeout * 0.7 ? "at once" : t * 1000 < timeout * 5 + 5000 ? "after its patience" : "late");
}

static void resolve1(const char *what, const char *src, const char *dst, int timeout)
{
	struct rdma_cm_id *a = make(RDMA_PS_TCP);
	struct sockaddr_storage from;
	double start = now();
	int r;

	if (src)
		memcpy(&from, at(src, 0), sizeof from);
	errno = 0;
	r = rdma_resolve_addr(a, src ? (struct sockaddr *)&from : NULL, at(dst, 7017), timeout);
	printf("  %s: %s\n", what, result(r));
	if (!r) {
		event(what);
		took(start, timeout);
	}
	if (a->verbs) {
		char text[64];
		struct sockaddr_in *in = (struct sockaddr_in *)rdma_get_local_addr(a);
		inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
		printf("  from %s, device known\n", in->sin_family == AF_INET ? (strcmp(text, local) ? text : "LOCAL") : "no IPv4");
	}
	rdma_destroy_id(a);
}

static void resolution(void)
{
	resolve1("our own", NULL, local, 20000);
	resolve1("our own, from it", local, local, 20000);
	resolve1("any", NULL, "0.0.0.0", 20000);
	resolve1("nobody there", NULL, absent, 1500);
	resolve1("nobody there, from ours", local, absent, 1500);
	resolve1("no route", NULL, foreign, 1500);
	resolve1("no route, from ours", local, foreign, 1500);
	resolve1("from elsewhere", absent, local, 1500);
	resolve1("from another family", "::1", local, 1500);
	resolve1("group, from ours", local, "224.0.9.9", 20000);
}

static void twice(void)
{
	struct rdma_cm_id *a = make(RDMA_PS_TCP);

	TRY("resolve", rdma_resolve_addr(a, NULL, at(absent, 7018), 1500));
	TRY("again at once", rdma_resolve_addr(a, NULL, at(local, 7018), 1500));
	event("the first");
	TRY("again after it failed", rdma_resolve_addr(a, NULL, at(local, 7018), 1500));
	event("the second");
	TRY("again after it worked", rdma_resolve_addr(a, NULL, at(local, 7018), 1500));
	TRY("route", rdma_resolve_route(a, 500));
	event("route");
	TRY("route again", rdma_resolve_route(a, 500));
	none("end");
	rdma_destroy_id(a);
	a = make(RDMA_PS_TCP);
	TRY("resolve, then destroy", rdma_resolve_addr(a, NULL, at(absent, 7018), 400));
	TRY("destroy", rdma_destroy_id(a));
	none("afterwards");
}
