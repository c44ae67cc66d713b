/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks librdmacm everything that has an answer, and prints the answers: errnos, events
 * with their status, sizes, order. Nothing is judged here. The same program runs on
 * Linux's rdma_cm with rxe and on vrdma, and both have to print rdmacm.txt.
 *
 *   rdmacm LOCAL ABSENT FOREIGN [CASE]
 *
 * LOCAL is an address of the device, ABSENT one in its network that nobody has, FOREIGN
 * one to which there is no route.
 */
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

/* ---- ids and addresses ---- */

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
	resolve1("our own", NULL, local, 2000);
	resolve1("our own, from it", local, local, 2000);
	resolve1("any", NULL, "0.0.0.0", 2000);
	resolve1("nobody there", NULL, absent, 1500);
	resolve1("nobody there, from ours", local, absent, 1500);
	resolve1("no route", NULL, foreign, 1500);
	resolve1("no route, from ours", local, foreign, 1500);
	resolve1("from elsewhere", absent, local, 1500);
	resolve1("from another family", "::1", local, 1500);
	resolve1("group, from ours", local, "224.0.9.9", 1500);
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

/* ---- connections ---- */

struct pair {
	struct rdma_cm_id *listener, *active, *passive;
};

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
			if (mask & IBV_QP_ACCESS_FLAGS)
				printf(", access %#x", a.qp_access_flags);
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

/* ---- datagrams ---- */

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

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{"spaces", spaces}, {"binding", binding}, {"loopback", loopback}, {"wildcards", wildcards}, {"reuse", reuse}, {"options", options},
	{"disorder", disorder}, {"resolution", resolution}, {"twice", twice}, {"life", life}, {"accepted_twice", accepted_twice}, {"sizes", sizes}, {"refusals", refusals},
	{"refused_reply", refused_reply}, {"backlog", backlog}, {"attributes", attributes}, {"ack_timeout", ack_timeout},
	{"datagrams", datagrams}, {"groups", groups}, {"channels", channels}, {"synchronous", synchronous}, {"several", several},
};

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: %s LOCAL ABSENT FOREIGN [CASE]\n", argv[0]);
		return 2;
	}
	local = argv[1], absent = argv[2], foreign = argv[3];
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (argc > 4 && strcmp(argv[4], cases[i].name))
			continue;
		alarm(300);
		qpn = (uint32_t)(i + 1) << 8;
		printf("%s\n", cases[i].name);
		if (!(ch = rdma_create_event_channel())) {
			perror("rdma_create_event_channel");
			return 1;
		}
		cases[i].run();
		rdma_destroy_event_channel(ch);
	}
	return 0;
}
