/* kv_client [-s ADDRESS] [-p PORT] [-n OPERATIONS] [-i]: updates and reads the table of a kv_server, -n
 * times: by messages, and then by RDMA READ without the server process. It checks every value that it
 * reads, and prints the time of each kind. */
#include <time.h>
#include <unistd.h>

#include "kv.h"

static struct rdma_cm_id *id;
static struct kv_message request, reply;
static struct ibv_mr *request_mr, *reply_mr;
static int send_flags;
static uint64_t table_address;
static uint32_t table_rkey, table_keys;

static void receive(void)
{
	if (rdma_post_recv(id, NULL, &reply, sizeof reply, reply_mr))
		die("rdma_post_recv");
}

static void connect_to(const char *address, const char *port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *where;
	if (rdma_getaddrinfo(address, port, &hints, &where))
		die("rdma_getaddrinfo");
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = sizeof(struct kv_message) },
		.sq_sig_all = 1,
	};
	if (rdma_create_ep(&id, where, NULL, &attr))
		die("rdma_create_ep");
	rdma_freeaddrinfo(where);
	reply_mr = rdma_reg_msgs(id, &reply, sizeof reply);
	request_mr = rdma_reg_msgs(id, &request, sizeof request);
	if (!reply_mr || !request_mr)
		die("rdma_reg_msgs");
	receive();
	if (rdma_connect(id, NULL))
		die("rdma_connect");
}

static void transmit(void)
{
	struct ibv_wc wc;
	if (rdma_post_send(id, NULL, &request, sizeof request, request_mr, send_flags))
		die("rdma_post_send");
	check("sending", rdma_get_send_comp(id, &wc), &wc); /* sleeps */
}

/* rpc sends the request, waits for its reply, and returns a copy of it. */
static struct kv_message rpc(uint32_t type, int32_t key, int32_t value)
{
	struct ibv_wc wc;
	request = (struct kv_message){ .type = type };
	request.key = key;
	request.value = value;
	transmit();
	check("waiting for the reply", rdma_get_recv_comp(id, &wc), &wc); /* sleeps */
	struct kv_message got = reply;
	receive();
	return got;
}

/* one_sided reads a number from the server's table. The server process does nothing. */
static int32_t one_sided(int32_t key)
{
	/* Solution. */
	struct ibv_wc wc;
	int32_t *to = &reply.value; /* registered; no reply is due now */
	if (rdma_post_read(id, NULL, to, sizeof *to, reply_mr, 0, table_address + sizeof *to * (uint32_t)key, table_rkey))
		die("rdma_post_read");
	check("reading", rdma_get_send_comp(id, &wc), &wc); /* sleeps */
	return *to;
	/* End of the solution. */
}

static int32_t value_of(int32_t key)
{
	return key * 7 + 1;
}

static void update(int32_t key)
{
	if (rpc(KV_SET, key, value_of(key)).type != KV_SET_REPLY) {
		fprintf(stderr, "key %d: not a reply to an update\n", key);
		exit(1);
	}
}

static void expect(const char *how, int32_t key, int32_t got)
{
	if (got != value_of(key)) {
		fprintf(stderr, "%s of key %d: %d, want %d\n", how, key, got, value_of(key));
		exit(1);
	}
}

static void query(int32_t key)
{
	struct kv_message m = rpc(KV_QUERY, key, 0);
	if (m.type != KV_QUERY_REPLY || m.key != key) {
		fprintf(stderr, "key %d: not a reply to a query\n", key);
		exit(1);
	}
	expect("query", key, m.value);
}

static void read_it(int32_t key)
{
	expect("read", key, one_sided(key));
}

static void measure(const char *what, long operations, void (*operation)(int32_t key))
{
	struct timespec begin, end;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (long i = 0; i < operations; i++)
		operation(i % table_keys);
	clock_gettime(CLOCK_MONOTONIC, &end);
	double seconds = end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9;
	printf("%ld %s: %.3f s, %.1f us each\n", operations, what, seconds, seconds * 1e6 / operations);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	const char *address = "127.0.0.1", *port = KV_PORT;
	long operations = 100000;
	for (int option; (option = getopt(argc, argv, "s:p:n:i")) != -1;) {
		switch (option) {
		case 's': address = optarg; break;
		case 'p': port = optarg; break;
		case 'n': operations = atol(optarg); break;
		case 'i': send_flags = IBV_SEND_INLINE; break;
		default: fprintf(stderr, "usage: %s [-s ADDRESS] [-p PORT] [-n OPERATIONS] [-i]\n", argv[0]); return 2;
		}
	}
	if (operations < 1) {
		fprintf(stderr, "-n: want at least 1\n");
		return 2;
	}
	connect_to(address, port);
	struct kv_message where = rpc(KV_INFO, 0, 0);
	table_address = where.info.address;
	table_rkey = where.info.rkey;
	table_keys = where.info.keys;
	if (where.type != KV_INFO || table_keys == 0) {
		fprintf(stderr, "the server does not say where its table is\n");
		return 1;
	}
	measure("updates by RPC", operations, update);
	measure("reads by RPC", operations, query);
	measure("one-sided reads", operations, read_it);
	request = (struct kv_message){ .type = KV_DISCONNECT };
	transmit();
	rdma_disconnect(id);
	rdma_dereg_mr(reply_mr);
	rdma_dereg_mr(request_mr);
	rdma_destroy_ep(id);
	return 0;
}
