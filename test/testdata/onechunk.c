/*
 * The published file transfer over rdma_cm, with one chunk under way: a stand-in for the sample programs of
 * 2010, with their calls, messages and blocking, written from a description of the protocol.
 *
 *   onechunk server ADDRESS PORT DIRECTORY      takes one file
 *   onechunk client ADDRESS PORT FILE
 */
#include <arpa/inet.h>
#include <err.h>
#include <fcntl.h>
#include <libgen.h>
#include <netdb.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER = 10 * 1024 * 1024, QUEUE = 10, NAME = 256 };
enum { MR = 1, READY, DONE };

struct message {
	int id;
	struct {
		uint64_t addr;
		uint32_t rkey;
	} mr;
};
_Static_assert(sizeof(struct message) == 24, "messages have 24 bytes");

static struct rdma_cm_id *id;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *buffer_mr, *message_mr;
static char *buffer;
static struct message *message; /* a client's is received, a server's is sent */
static char name[NAME];
static const char *directory;
static int fd = -1, server, over;
static uint64_t peer_addr;
static uint32_t peer_rkey;

static void receive(void)
{
	struct ibv_sge sge = { (uintptr_t)message, sizeof(*message), message_mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = server ? NULL : &sge, .num_sge = server ? 0 : 1 }, *bad;

	if (ibv_post_recv(id->qp, &wr, &bad))
		err(1, "ibv_post_recv");
}

static void tell(int what)
{
	struct ibv_sge sge = { (uintptr_t)message, sizeof(*message), message_mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;

	message->id = what;
	if (ibv_post_send(id->qp, &wr, &bad))
		err(1, "ibv_post_send");
}

static void write_remote(uint32_t n)
{
	struct ibv_sge sge = { (uintptr_t)buffer, n, buffer_mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(n) }, *bad;

	wr.wr.rdma.remote_addr = peer_addr;
	wr.wr.rdma.rkey = peer_rkey;
	if (n) {
		wr.sg_list = &sge;
		wr.num_sge = 1;
	}
	if (ibv_post_send(id->qp, &wr, &bad))
		err(1, "ibv_post_send");
}

static void create(void)
{
	char path[4096];

	memcpy(name, buffer, NAME - 1);
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	if ((fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644)) < 0)
		err(1, "%s", path);
}

static void serve(uint32_t n)
{
	if (n == 0) {
		close(fd);
		tell(DONE);
		return;
	}
	if (fd < 0)
		create();
	else if (write(fd, buffer, n) != (ssize_t)n)
		err(1, "write");
	receive();
	tell(READY);
}

static void answer(void)
{
	ssize_t n;

	switch (message->id) {
	case MR:
		peer_addr = message->mr.addr;
		peer_rkey = message->mr.rkey;
		receive();
		strcpy(buffer, name);
		write_remote(strlen(name) + 1);
		return;
	case READY:
		if ((n = read(fd, buffer, BUFFER)) < 0)
			err(1, "read");
		receive();
		write_remote(n);
		return;
	case DONE:
		over = 1;
		rdma_disconnect(id);
		return;
	}
	errx(1, "message %d", message->id);
}

/* The thread that sleeps on the completion channel. */
static void *completions(void *unused)
{
	struct ibv_wc wc;
	struct ibv_cq *which;
	void *context;

	for (;;) {
		if (ibv_get_cq_event(channel, &which, &context))
			err(1, "ibv_get_cq_event");
		ibv_ack_cq_events(which, 1);
		if (ibv_req_notify_cq(which, 0))
			err(1, "ibv_req_notify_cq");
		while (ibv_poll_cq(which, 1, &wc)) {
			if (wc.status == IBV_WC_WR_FLUSH_ERR)
				continue; /* the end */
			if (wc.status)
				errx(1, "completion: %s", ibv_wc_status_str(wc.status));
			if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM)
				serve(ntohl(wc.imm_data));
			else if (wc.opcode & IBV_WC_RECV)
				answer();
		}
	}
	return unused;
}

static void build(void)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { QUEUE, QUEUE, 1, 1, 0 } };
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
	pthread_t thread;

	channel = ibv_create_comp_channel(id->verbs);
	cq = ibv_create_cq(id->verbs, QUEUE, NULL, channel, 0);
	if (!pd || !channel || !cq || ibv_req_notify_cq(cq, 0))
		err(1, "no queues");
	attr.send_cq = attr.recv_cq = cq;
	if (rdma_create_qp(id, pd, &attr))
		err(1, "rdma_create_qp");
	if (posix_memalign((void **)&buffer, sysconf(_SC_PAGESIZE), BUFFER) || posix_memalign((void **)&message, sysconf(_SC_PAGESIZE), sizeof(*message)))
		errx(1, "no memory");
	buffer_mr = ibv_reg_mr(pd, buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	message_mr = ibv_reg_mr(pd, message, sizeof(*message), IBV_ACCESS_LOCAL_WRITE);
	if (!buffer_mr || !message_mr)
		err(1, "ibv_reg_mr");
	if (pthread_create(&thread, NULL, completions, NULL))
		errx(1, "no thread");
	receive();
}

int main(int argc, char **argv)
{
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1, .rnr_retry_count = 7 };
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_id *first;
	struct rdma_cm_event *e;
	struct addrinfo *at;

	if (argc != 5 || !events)
		errx(2, "onechunk server|client ADDRESS PORT DIRECTORY|FILE");
	server = !strcmp(argv[1], "server");
	directory = argv[4];
	if (getaddrinfo(argv[2], argv[3], NULL, &at) || rdma_create_id(events, &first, NULL, RDMA_PS_TCP))
		err(1, "%s %s", argv[2], argv[3]);
	if (server && (rdma_bind_addr(first, at->ai_addr) || rdma_listen(first, 10)))
		err(1, "rdma_listen");
	if (!server) {
		if ((fd = open(argv[4], O_RDONLY)) < 0)
			err(1, "%s", argv[4]);
		snprintf(name, sizeof(name), "%s", basename(argv[4]));
		if (rdma_resolve_addr(first, NULL, at->ai_addr, 500))
			err(1, "rdma_resolve_addr");
	}
	while (!rdma_get_cm_event(events, &e)) {
		enum rdma_cm_event_type type = e->event;

		id = e->id;
		rdma_ack_cm_event(e);
		switch (type) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			build();
			if (rdma_resolve_route(id, 500))
				err(1, "rdma_resolve_route");
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			if (rdma_connect(id, &param))
				err(1, "rdma_connect");
			break;
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			build();
			if (rdma_accept(id, &param))
				err(1, "rdma_accept");
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			if (server) {
				message->mr.addr = (uintptr_t)buffer;
				message->mr.rkey = buffer_mr->rkey;
				tell(MR);
			}
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			return server || over ? 0 : 1;
		default:
			errx(1, "%s", rdma_event_str(type));
		}
	}
	err(1, "rdma_get_cm_event");
}
