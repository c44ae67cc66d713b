/* kv_server [-p PORT] [-i] [-q]: a table of 32768 numbers, for one client.
 *
 * Updates and queries are messages, and each wakes this process twice: when it arrives, and when the reply
 * has left. The table is registered, so that the client can also read it by RDMA READ, which this process
 * does not notice. At its end it prints the number of messages and its processor time. */
#include <sys/resource.h>
#include <unistd.h>

#include "kv.h"

enum { BUFFERS = 16 };

static int32_t table[KV_KEYS];
static struct kv_message buffers[BUFFERS];
static struct ibv_mr *buffers_mr, *table_mr;
static int send_flags, quiet;
static unsigned long handled;

/* listen_for_one waits for a client and returns its endpoint before accepting it. */
static struct rdma_cm_id *listen_for_one(const char *port)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *where;
	if (rdma_getaddrinfo(NULL, port, &hints, &where))
		die("rdma_getaddrinfo");
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = BUFFERS, .max_recv_wr = BUFFERS, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = sizeof(struct kv_message) },
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *listener, *id;
	if (rdma_create_ep(&listener, where, NULL, &attr))
		die("rdma_create_ep");
	rdma_freeaddrinfo(where);
	if (rdma_listen(listener, 0))
		die("rdma_listen");
	if (!quiet)
		printf("listening at port %s\n", port);
	fflush(stdout);
	if (rdma_get_request(listener, &id))
		die("rdma_get_request");
	return id;
}

static void receive(struct rdma_cm_id *id, uintptr_t i)
{
	if (rdma_post_recv(id, (void *)i, &buffers[i], sizeof buffers[i], buffers_mr))
		die("rdma_post_recv");
}

/* prepare registers the memory and posts the receives, before the client can send. */
static void prepare(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	if (ibv_query_qp(id->qp, &attr, IBV_QP_CAP, &init))
		die("ibv_query_qp");
	if ((send_flags & IBV_SEND_INLINE) && init.cap.max_inline_data < sizeof(struct kv_message)) {
		fprintf(stderr, "-i: the device takes %u bytes inline\n", init.cap.max_inline_data);
		exit(1);
	}
	buffers_mr = rdma_reg_msgs(id, buffers, sizeof buffers);
	if (!buffers_mr)
		die("rdma_reg_msgs");
	for (uintptr_t i = 0; i < BUFFERS; i++)
		receive(id, i);
	table_mr = ibv_reg_mr(id->pd, table, sizeof table,
			      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	if (!table_mr)
		die("ibv_reg_mr");
	if (rdma_accept(id, NULL))
		die("rdma_accept");
}

/* answer replaces a message by its reply. It returns 0 if the client disconnects. */
static int answer(struct kv_message *m)
{
	int known = m->key >= 0 && m->key < KV_KEYS;
	handled++;
	switch (m->type) {
	case KV_DISCONNECT:
		return 0;
	case KV_SET:
		if (known)
			table[m->key] = m->value;
		m->type = KV_SET_REPLY;
		return 1;
	case KV_QUERY:
		m->value = known ? table[m->key] : -1;
		m->type = KV_QUERY_REPLY;
		return 1;
	case KV_INFO:
		m->info.rkey = table_mr->rkey;
		m->info.keys = KV_KEYS;
		m->info.address = (uintptr_t)table;
		return 1;
	default:
		fprintf(stderr, "a message of type %u\n", m->type);
		return 0;
	}
}

static void serve(struct rdma_cm_id *id)
{
	struct ibv_wc wc;
	for (;;) {
		check("waiting for a message", rdma_get_recv_comp(id, &wc), &wc); /* sleeps */
		struct kv_message *m = &buffers[wc.wr_id];
		if (wc.byte_len != sizeof *m) {
			fprintf(stderr, "a message of %u bytes\n", wc.byte_len);
			return;
		}
		if (!answer(m))
			return;
		if (rdma_post_send(id, (void *)(uintptr_t)wc.wr_id, m, sizeof *m, buffers_mr, send_flags))
			die("rdma_post_send");
		check("waiting for the reply to leave", rdma_get_send_comp(id, &wc), &wc); /* sleeps */
		receive(id, wc.wr_id);
	}
}

int main(int argc, char **argv)
{
	const char *port = KV_PORT;
	for (int option; (option = getopt(argc, argv, "p:iq")) != -1;) {
		switch (option) {
		case 'p': port = optarg; break;
		case 'i': send_flags = IBV_SEND_INLINE; break;
		case 'q': quiet = 1; break;
		default: fprintf(stderr, "usage: %s [-p PORT] [-i] [-q]\n", argv[0]); return 2;
		}
	}
	struct rdma_cm_id *id = listen_for_one(port);
	prepare(id);
	serve(id);
	rdma_disconnect(id);
	rdma_dereg_mr(table_mr);
	rdma_dereg_mr(buffers_mr);
	rdma_destroy_ep(id);
	struct rusage used;
	getrusage(RUSAGE_SELF, &used);
	printf("handled %lu messages, used %.3f s of processor time\n", handled,
	       used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
	return 0;
}
