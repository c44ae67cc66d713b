/* file_server [-p PORT] [-d DIRECTORY] [-1]: receives files from file_clients into a directory.
 * It overwrites no file. With -1 it ends after the first file. */
#include "file.h"

static const char *directory = ".";

/* receive posts a receive without a buffer: a WRITE WITH IMMEDIATE needs it only for its completion. */
static void receive(struct link *l)
{
	struct ibv_recv_wr wr = { 0 }, *bad;
	if (ibv_post_recv(l->id->qp, &wr, &bad))
		die("ibv_post_recv");
}

static void tell(struct link *l, uint32_t type)
{
	l->message->type = type;
	l->message->address = (uintptr_t)l->buffer;
	l->message->rkey = l->buffer_mr->rkey;
	struct ibv_sge sge = { (uintptr_t)l->message, sizeof *l->message, l->message_mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (ibv_post_send(l->id->qp, &wr, &bad))
		die("ibv_post_send");
}

static void open_file(struct link *l, uint32_t length)
{
	l->buffer[length < CHUNK ? length : CHUNK - 1] = 0;
	if (!*l->buffer || strchr(l->buffer, '/') || !strcmp(l->buffer, "..") || strlen(l->buffer) > 255) {
		fprintf(stderr, "refused: a name without / is wanted\n");
		exit(1);
	}
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", directory, l->buffer);
	l->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
	if (l->fd < 0)
		die(path);
	l->named = 1;
	printf("receiving %s\n", path);
}

/* received is called for every WRITE WITH IMMEDIATE. Its immediate value is the length. */
static void received(struct link *l, const struct ibv_wc *wc)
{
	uint32_t length = ntohl(wc->imm_data);
	if (length > CHUNK) {
		fprintf(stderr, "a chunk of %u bytes, more than %d\n", length, CHUNK);
		exit(1);
	}
	if (length == 0) {
		printf("received %lu bytes\n", l->bytes);
		fflush(stdout);
		receive(l); /* not consumed: flushing it ends the thread */
		tell(l, FILE_DONE);
		return;
	}
	if (!l->named) {
		open_file(l, length);
	} else {
		for (uint32_t done = 0; done < length;) {
			ssize_t n = write(l->fd, l->buffer + done, length - done);
			if (n < 0)
				die("write");
			done += n;
		}
		l->bytes += length;
	}
	receive(l);
	tell(l, FILE_READY);
}

int main(int argc, char **argv)
{
	const char *port = FILE_PORT;
	int once = 0;
	for (int option; (option = getopt(argc, argv, "p:d:1")) != -1;) {
		switch (option) {
		case 'p': port = optarg; break;
		case 'd': directory = optarg; break;
		case '1': once = 1; break;
		default: fprintf(stderr, "usage: %s [-p PORT] [-d DIRECTORY] [-1]\n", argv[0]); return 2;
		}
	}
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(atoi(port)) };
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	if (!events || rdma_create_id(events, &listener, NULL, RDMA_PS_TCP))
		die("rdma_create_id");
	if (rdma_bind_addr(listener, (struct sockaddr *)&any) || rdma_listen(listener, 10))
		die("rdma_listen");
	printf("listening at port %s\n", port);
	fflush(stdout);
	struct rdma_cm_event *event;
	while (rdma_get_cm_event(events, &event) == 0) {
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type type = event->event;
		struct rdma_conn_param answer = parameters;
		rdma_ack_cm_event(event);
		switch (type) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			receive(build(id, received));
			if (rdma_accept(id, &answer))
				die("rdma_accept");
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			tell(id->context, FILE_MR);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			destroy(id->context);
			if (once)
				return 0;
			break;
		default:
			break;
		}
	}
	die("rdma_get_cm_event");
}
