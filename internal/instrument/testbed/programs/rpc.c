/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client and a server that sleep while they wait for each other.
 *
 *	rpc serve rdma|tcp IP PORT SIZE
 *	rpc call rdma|read|tcp IP PORT SIZE COUNT
 *
 * rdma: a request and its response, each a SEND of SIZE bytes, through librdmacm's simple
 * calls, which sleep on completion channels: the client posts the request, waits for its
 * completion, waits for the response and posts the receive again; the server waits for a
 * request, posts the response, waits for its completion and posts the receive again.
 * read: the client reads SIZE bytes of the server's memory and waits for the completion.
 * tcp: a request and its response over a TCP connection, with blocking read and write.
 *
 * The client prints the median and the average of COUNT round trips in seconds.
 */
#include "device.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define RECEIVES 16
#define MOST 65536

/* The head of a message. Every response says where to read in the server's memory. */
struct message {
	uint64_t address;
	uint32_t key;
	uint32_t last; /* of a request: no more will come */
};

static unsigned char buffers[RECEIVES + 1][MOST], table[MOST];
static size_t size;

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

/* Times count calls after some to warm up, and prints what they took. */
static void measure(void (*call)(void), int count)
{
	double *times = calloc((size_t)count, sizeof(*times)), sum = 0;

	if (!times)
		fail("memory");
	for (int i = 0; i < count / 10; i++)
		call();
	for (int i = 0; i < count; i++) {
		double begin = now();

		call();
		times[i] = now() - begin;
		sum += times[i];
	}
	qsort(times, (size_t)count, sizeof(*times), compare);
	printf("%.9f %.9f\n", times[count / 2], sum / count);
	free(times);
}

/* RDMA */

static struct rdma_cm_id *id;
static struct ibv_mr *memory, *table_memory;
static struct message where;

static struct rdma_addrinfo *resolve(char *ip, char *port, int flags)
{
	struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *found;

	if (rdma_getaddrinfo(ip, port, &hints, &found))
		fail("rdma_getaddrinfo");
	return found;
}

static struct ibv_qp_init_attr queue_pair(void)
{
	return (struct ibv_qp_init_attr){
		.cap = {.max_send_wr = 4, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
}

static void receive(size_t i)
{
	if (rdma_post_recv(id, (void *)i, buffers[i], size, memory))
		fail("rdma_post_recv");
}

static void check(int count, struct ibv_wc *wc, const char *what)
{
	if (count < 0)
		fail(what);
	if (wc->status) {
		fprintf(stderr, "%s: %s\n", what, ibv_wc_status_str(wc->status));
		exit(1);
	}
}

/* Returns the buffer that the next message came to. */
static size_t received(void)
{
	struct ibv_wc wc;

	check(rdma_get_recv_comp(id, &wc), &wc, "rdma_get_recv_comp");
	return (size_t)wc.wr_id;
}

static void sent(void)
{
	struct ibv_wc wc;

	check(rdma_get_send_comp(id, &wc), &wc, "rdma_get_send_comp");
}

static void prepare(size_t receives)
{
	memory = rdma_reg_msgs(id, buffers, sizeof(buffers));
	table_memory = rdma_reg_read(id, table, sizeof(table));
	if (!memory || !table_memory)
		fail("registering memory");
	for (size_t i = 0; i < receives; i++)
		receive(i);
}

static void serve_rdma(char *ip, char *port)
{
	struct rdma_addrinfo *address = resolve(ip, port, RAI_PASSIVE);
	struct ibv_qp_init_attr qp = queue_pair();
	struct rdma_cm_id *listener;
	struct message answer = {0};

	if (rdma_create_ep(&listener, address, NULL, &qp) || rdma_listen(listener, 1) || rdma_get_request(listener, &id))
		fail("listening");
	prepare(RECEIVES);
	if (rdma_accept(id, NULL))
		fail("rdma_accept");
	answer.address = (uintptr_t)table;
	answer.key = table_memory->rkey;
	while (!answer.last) {
		size_t i = received();

		answer.last = ((struct message *)buffers[i])->last;
		memcpy(buffers[i], &answer, sizeof(answer));
		if (rdma_post_send(id, NULL, buffers[i], size, memory, 0))
			fail("rdma_post_send");
		sent();
		receive(i);
	}
	rdma_disconnect(id);
}

/* The client's requests are in the buffer after those for receiving. */
static void call_rdma(void)
{
	size_t i;

	if (rdma_post_send(id, NULL, buffers[RECEIVES], size, memory, 0))
		fail("rdma_post_send");
	sent();
	i = received();
	memcpy(&where, buffers[i], sizeof(where));
	receive(i);
}

static void call_read(void)
{
	if (rdma_post_read(id, NULL, buffers[RECEIVES], size, memory, 0, where.address, where.key))
		fail("rdma_post_read");
	sent();
}

static void client_rdma(char *ip, char *port, void (*call)(void), int count)
{
	struct rdma_addrinfo *address = resolve(ip, port, 0);
	struct ibv_qp_init_attr qp = queue_pair();
	struct rdma_conn_param connection = {.initiator_depth = 1, .responder_resources = 1, .retry_count = 7, .rnr_retry_count = 7};

	if (rdma_create_ep(&id, address, NULL, &qp))
		fail("rdma_create_ep");
	prepare(1);
	if (rdma_connect(id, &connection))
		fail("rdma_connect");
	call_rdma();
	if (!where.address || !where.key) {
		fprintf(stderr, "rpc: the response does not say where to read\n");
		exit(1);
	}
	measure(call, count);
	memset(buffers[RECEIVES], 0, size);
	((struct message *)buffers[RECEIVES])->last = 1;
	call_rdma();
	rdma_disconnect(id);
}

/* TCP */

static int stream;

static struct sockaddr_in place(const char *ip, const char *port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};

	if (inet_pton(AF_INET, ip, &a.sin_addr) != 1)
		fail("the address");
	return a;
}

static void at_once(void)
{
	int on = 1;

	if (setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)))
		fail("TCP_NODELAY");
}

static void put(void)
{
	for (size_t done = 0; done < size;) {
		ssize_t n = write(stream, buffers[0] + done, size - done);

		if (n < 0)
			fail("write");
		done += (size_t)n;
	}
}

/* Returns 0 at the end of the connection. */
static int get(void)
{
	for (size_t done = 0; done < size;) {
		ssize_t n = read(stream, buffers[0] + done, size - done);

		if (n < 0)
			fail("read");
		if (n == 0)
			return 0;
		done += (size_t)n;
	}
	return 1;
}

static void serve_tcp(const char *ip, const char *port)
{
	struct sockaddr_in a = place(ip, port);
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(listener, (struct sockaddr *)&a, sizeof(a)) || listen(listener, 1))
		fail("listening");
	stream = accept(listener, NULL, NULL);
	if (stream < 0)
		fail("accept");
	at_once();
	while (get())
		put();
}

static void call_tcp(void)
{
	put();
	if (!get()) {
		fprintf(stderr, "rpc: the server is gone\n");
		exit(1);
	}
}

static void client_tcp(const char *ip, const char *port, int count)
{
	struct sockaddr_in a = place(ip, port);

	stream = socket(AF_INET, SOCK_STREAM, 0);
	if (stream < 0 || connect(stream, (struct sockaddr *)&a, sizeof(a)))
		fail("connect");
	at_once();
	measure(call_tcp, count);
}

int main(int argc, char **argv)
{
	int serve = argc == 6 && !strcmp(argv[1], "serve"), call = argc == 7 && !strcmp(argv[1], "call");
	int count = call ? atoi(argv[6]) : 0;

	if (serve || call)
		size = (size_t)atol(argv[5]);
	if (size < sizeof(struct message) || size > MOST || (call && count < 1)) {
		fprintf(stderr, "usage: rpc serve rdma|tcp IP PORT SIZE, rpc call rdma|read|tcp IP PORT SIZE COUNT; a size of %zu to %d bytes\n",
			sizeof(struct message), MOST);
		return 2;
	}
	if (!strcmp(argv[2], "tcp"))
		serve ? serve_tcp(argv[3], argv[4]) : client_tcp(argv[3], argv[4], count);
	else if (serve)
		serve_rdma(argv[3], argv[4]);
	else
		client_rdma(argv[3], argv[4], strcmp(argv[2], "read") ? call_rdma : call_read, count);
	return 0;
}
