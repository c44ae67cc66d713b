/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roam serve QPS BYTES ADDRESS: registers BYTES, accepts QPS connections with rdma_cm, and answers every message of 64 bytes.
 * roam ping QPS ADDRESS: makes the connections and sends a message over each some time after the answer to the one before it.
 *     It prints "ready" when all are answered. For each line of standard input it prints the longest gap since the line
 *     before: when the message was sent whose answer was the latest, and when that answer came. After the line "pause" it
 *     sends nothing, until the line "go". It ends with its standard input.
 * roam alone BYTES: uses that much memory and looks at the clock all the time. It prints each gap of more than 10 ms
 *     between two looks.
 *
 * A gap is a line with its begin and its end, in seconds of CLOCK_REALTIME: CRIU makes other clocks continue where they
 * were. All programs sleep most of the time, so that they do not slow down what moves others.
 */
#include "device.h"
#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 64, PORT = 7471, PER_MS = 20 /* messages */ };

struct connection {
	struct rdma_cm_id *id;
	double sent;
	int under_way;
};

static struct rdma_event_channel *events;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct connection *all;
static int count;

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* CRIU and vrdma end it early. */
static void nap(void)
{
	struct timespec t = {.tv_nsec = 100000};

	nanosleep(&t, NULL);
}

/* Takes an event, which must be the wanted one. */
static struct rdma_cm_id *await(enum rdma_cm_event_type want)
{
	struct rdma_cm_event *e;
	struct rdma_cm_id *id;

	if (rdma_get_cm_event(events, &e))
		fail("rdma_get_cm_event");
	if (e->event != want) {
		fprintf(stderr, "roam: %s, status %d, want %s\n", rdma_event_str(e->event), e->status, rdma_event_str(want));
		exit(1);
	}
	id = e->id;
	rdma_ack_cm_event(e);
	return id;
}

static void prepare(struct ibv_context *context, size_t bytes)
{
	char *memory = aligned_alloc(4096, bytes);

	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 4 * count + 16, NULL, NULL, 0);
	if (!memory || !pd || !cq)
		fail("memory, ibv_alloc_pd or ibv_create_cq");
	memset(memory, 1, bytes);
	mr = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		fail("ibv_reg_mr");
}

static void receive(int i)
{
	struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = SIZE, .lkey = mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1}, *bad;

	if (ibv_post_recv(all[i].id->qp, &wr, &bad))
		fail("ibv_post_recv");
}

static void post(int i)
{
	struct ibv_sge sge = {.addr = (uintptr_t)mr->addr + SIZE, .length = SIZE, .lkey = mr->lkey};
	struct ibv_send_wr wr = {.wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;

	if (ibv_post_send(all[i].id->qp, &wr, &bad))
		fail("ibv_post_send");
}

static void add(int i, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	};

	all[i].id = id;
	if (rdma_create_qp(id, pd, &init))
		fail("rdma_create_qp");
	receive(i);
}

static struct sockaddr_in address(const char *text)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(PORT)};

	if (!inet_aton(text, &a.sin_addr))
		fail("the address");
	return a;
}

/* A peer waits without a limit while this side is not there. */
static struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};

static struct rdma_cm_id *new_id(void)
{
	struct rdma_cm_id *id;

	if (rdma_create_id(events, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	return id;
}

/* Takes completions, and calls answered for each message that has come. */
static int take(void (*answered)(int i))
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(cq, 16, wc);

	for (int i = 0; i < n; i++) {
		if (wc[i].status) {
			fprintf(stderr, "roam: %s\n", ibv_wc_status_str(wc[i].status));
			exit(1);
		}
		if (wc[i].opcode & IBV_WC_RECV)
			answered((int)wc[i].wr_id);
	}
	return n;
}

static void answer(int i)
{
	receive(i);
	post(i);
}

static void serve(size_t bytes, const char *at)
{
	struct sockaddr_in a = address(at);
	struct rdma_cm_id *listener = new_id();

	if (rdma_bind_addr(listener, (struct sockaddr *)&a) || rdma_listen(listener, 1024))
		fail("rdma_listen");
	for (int i = 0; i < count; i++) {
		struct rdma_cm_id *id = await(RDMA_CM_EVENT_CONNECT_REQUEST);

		if (!pd)
			prepare(id->verbs, bytes);
		add(i, id);
		if (rdma_accept(id, &param))
			fail("rdma_accept");
		await(RDMA_CM_EVENT_ESTABLISHED);
	}
	for (;;)
		if (!take(answer))
			nap();
}

static double worst, worst_end; /* the longest gap and its end, by CLOCK_MONOTONIC */
static double pause_;           /* between an answer and the next message */
static int silent;              /* nothing is sent */
static int first, *waiting, head, tail; /* connections that pause, in order */
static double *until;

static void late(int i, double at)
{
	if (all[i].under_way && at - all[i].sent > worst) {
		worst = at - all[i].sent;
		worst_end = at;
	}
}

static void print_gap(double from, double to)
{
	printf("%.9f %.9f\n", from, to);
	fflush(stdout);
}

static void pong(int i)
{
	double at = now(CLOCK_MONOTONIC);

	late(i, at);
	all[i].under_way = 0;
	if (first < count && ++first == count) {
		say("ready");
		worst = 0;
	}
	receive(i);
	waiting[tail] = i;
	until[tail] = at + pause_;
	tail = (tail + 1) % (count + 1);
}

static void send_at(int i, double at)
{
	all[i].sent = at;
	all[i].under_way = 1;
	post(i);
}

static void ping(const char *to)
{
	struct sockaddr_in a = address(to);
	struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
	char line[64];

	for (int i = 0; i < count; i++) {
		struct rdma_cm_id *id = new_id();

		if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&a, 10000))
			fail("rdma_resolve_addr");
		await(RDMA_CM_EVENT_ADDR_RESOLVED);
		if (rdma_resolve_route(id, 10000))
			fail("rdma_resolve_route");
		await(RDMA_CM_EVENT_ROUTE_RESOLVED);
		if (!pd)
			prepare(id->verbs, 4096);
		add(i, id);
		if (rdma_connect(id, &param))
			fail("rdma_connect");
		await(RDMA_CM_EVENT_ESTABLISHED);
	}
	waiting = calloc((size_t)count + 1, sizeof *waiting);
	until = calloc((size_t)count + 1, sizeof *until);
	if (!waiting || !until)
		fail("calloc");
	pause_ = (count + PER_MS - 1) / PER_MS * 0.001;
	for (int i = 0; i < count; i++)
		send_at(i, now(CLOCK_MONOTONIC));
	for (;;) {
		int busy = take(pong);
		double at = now(CLOCK_MONOTONIC);

		for (; !silent && head != tail && until[head] <= at; head = (head + 1) % (count + 1), busy = 1)
			send_at(waiting[head], at);
		if (busy)
			continue;
		nap();
		if (poll(&in, 1, 0) <= 0)
			continue;
		if (!fgets(line, sizeof line, stdin))
			return;
		silent = !strcmp(line, "pause\n") || (silent && strcmp(line, "go\n"));
		for (int i = 0; i < count; i++)
			late(i, at);
		worst_end += now(CLOCK_REALTIME) - now(CLOCK_MONOTONIC);
		print_gap(worst_end - worst, worst_end);
		worst = 0;
	}
}

static void alone(size_t bytes)
{
	char *memory = aligned_alloc(4096, bytes);

	if (!memory)
		fail("memory");
	memset(memory, 1, bytes);
	for (double last = now(CLOCK_REALTIME);;) {
		double at = now(CLOCK_REALTIME);

		if (at - last > 0.010) {
			print_gap(last, at);
			at = now(CLOCK_REALTIME);
		}
		last = at;
		__asm__ volatile("" ::"r"(memory) : "memory");
		nap();
	}
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "alone")) {
		alone(strtoull(argv[2], NULL, 10));
	} else if (argc == 5 && !strcmp(argv[1], "serve")) {
		count = atoi(argv[2]);
	} else if (argc == 4 && !strcmp(argv[1], "ping")) {
		count = atoi(argv[2]);
	} else {
		fprintf(stderr, "usage: roam serve QPS BYTES ADDRESS | ping QPS ADDRESS | alone BYTES\n");
		return 2;
	}
	events = rdma_create_event_channel();
	all = calloc((size_t)count, sizeof *all);
	if (!events || !all)
		fail("rdma_create_event_channel");
	if (argc == 5)
		serve(strtoull(argv[3], NULL, 10), argv[4]);
	ping(argv[3]);
	return 0;
}
