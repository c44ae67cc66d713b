/* file_client [-p PORT] ADDRESS FILE: sends a file to a file_server, a chunk at a time, and prints the rate. */
#include <libgen.h>
#include <time.h>

#include "file.h"

static const char *name;
static uint64_t peer_address;
static uint32_t peer_rkey;
static int done;

static void receive(struct link *l)
{
	struct ibv_sge sge = { (uintptr_t)l->message, sizeof *l->message, l->message_mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	if (ibv_post_recv(l->id->qp, &wr, &bad))
		die("ibv_post_recv");
}

/* put writes the buffer's first bytes into the server's buffer. The immediate value is their number. */
static void put(struct link *l, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)l->buffer, length, l->buffer_mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = length > 0, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED,
		.imm_data = htonl(length), .wr.rdma = { .remote_addr = peer_address, .rkey = peer_rkey },
	}, *bad;
	if (ibv_post_send(l->id->qp, &wr, &bad))
		die("ibv_post_send");
}

static void received(struct link *l, const struct ibv_wc *wc)
{
	struct file_message m = *l->message;
	if (wc->byte_len < sizeof m) {
		fprintf(stderr, "a message of %u bytes\n", wc->byte_len);
		exit(1);
	}
	receive(l);
	switch (m.type) {
	case FILE_MR:
		peer_address = m.address;
		peer_rkey = m.rkey;
		strcpy(l->buffer, name);
		put(l, strlen(name) + 1);
		break;
	case FILE_READY: {
		ssize_t n = read(l->fd, l->buffer, CHUNK);
		if (n < 0)
			die("read");
		l->bytes += n;
		put(l, n);
		break;
	}
	case FILE_DONE:
		done = 1;
		rdma_disconnect(l->id);
		break;
	default:
		fprintf(stderr, "a message of type %u\n", m.type);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	const char *port = FILE_PORT;
	for (int option; (option = getopt(argc, argv, "p:")) != -1;) {
		if (option != 'p')
			return 2;
		port = optarg;
	}
	if (argc - optind != 2) {
		fprintf(stderr, "usage: %s [-p PORT] ADDRESS FILE\n", argv[0]);
		return 2;
	}
	int fd = open(argv[optind + 1], O_RDONLY);
	if (fd < 0)
		die(argv[optind + 1]);
	name = basename(argv[optind + 1]);
	struct addrinfo *where;
	int wrong = getaddrinfo(argv[optind], port, NULL, &where);
	if (wrong) {
		fprintf(stderr, "%s: %s\n", argv[optind], gai_strerror(wrong));
		return 1;
	}
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_id *id;
	if (!events || rdma_create_id(events, &id, NULL, RDMA_PS_TCP))
		die("rdma_create_id");
	if (rdma_resolve_addr(id, NULL, where->ai_addr, TIMEOUT_MS))
		die("rdma_resolve_addr");
	freeaddrinfo(where);
	struct timespec begin, end;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	unsigned long bytes = 0;
	struct rdma_cm_event *event;
	for (int open = 1; open;) {
		if (rdma_get_cm_event(events, &event))
			die("rdma_get_cm_event");
		enum rdma_cm_event_type type = event->event;
		struct rdma_conn_param ask = parameters;
		rdma_ack_cm_event(event);
		switch (type) {
		case RDMA_CM_EVENT_ADDR_RESOLVED: {
			struct link *l = build(id, received);
			l->fd = fd;
			receive(l);
			if (rdma_resolve_route(id, TIMEOUT_MS))
				die("rdma_resolve_route");
			break;
		}
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			if (rdma_connect(id, &ask))
				die("rdma_connect");
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			break; /* the server speaks first */
		case RDMA_CM_EVENT_DISCONNECTED:
			bytes = ((struct link *)id->context)->bytes;
			destroy(id->context);
			open = 0;
			break;
		default:
			fprintf(stderr, "no connection: %s\n", rdma_event_str(type));
			return 1;
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	if (!done) {
		fprintf(stderr, "the server has gone before the end\n");
		return 1;
	}
	double seconds = end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9;
	printf("sent %lu bytes in %.3f s, %.0f MiB/s\n", bytes, seconds, bytes / seconds / (1 << 20));
	return 0;
}
