/* Common parts of file_server and file_client: the messages, and a connection with a thread that waits for
 * completions.
 *
 *   client                                        server
 *     connect ───────────────────────────────────▶
 *             ◀───────────────────────── SEND MR    where the buffer is
 *     WRITE WITH IMMEDIATE: the file's name ─────▶  opens it
 *             ◀────────────────────── SEND READY
 *     WRITE WITH IMMEDIATE: 10 MiB of it ────────▶  writes it to the file
 *             ◀────────────────────── SEND READY    …and so on
 *     WRITE WITH IMMEDIATE: nothing ─────────────▶  the end
 *             ◀─────────────────────── SEND DONE
 *     disconnect ────────────────────────────────▶
 *
 * The immediate value is the length. One chunk is in flight at a time: reading the file, sending and writing
 * the file never overlap. */
#ifndef FILE_H
#define FILE_H

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

#define FILE_PORT "12345"

enum { CHUNK = 10 << 20, TIMEOUT_MS = 2000, DEPTH = 10 };

enum file_type { FILE_MR = 1, FILE_READY, FILE_DONE };

struct file_message {
	uint32_t type;
	uint64_t address; /* FILE_MR */
	uint32_t rkey;
};

_Static_assert(sizeof(struct file_message) == 24, "the message has 24 bytes");

/* A link is a connection: buffers and queue pair. */
struct link {
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	pthread_t waiter;
	char *buffer; /* CHUNK bytes */
	struct ibv_mr *buffer_mr;
	struct file_message *message;
	struct ibv_mr *message_mr;
	void (*received)(struct link *, const struct ibv_wc *);
	int fd;
	int named; /* server: the file is open */
	unsigned long bytes;
};

static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

/* wait_for_completions is a thread: it sleeps until there are completions, and passes receives on. */
static void *wait_for_completions(void *of)
{
	struct link *l = of;
	struct ibv_cq *cq;
	void *context;
	for (;;) {
		if (ibv_get_cq_event(l->channel, &cq, &context))
			die("ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		if (ibv_req_notify_cq(cq, 0))
			die("ibv_req_notify_cq");
		struct ibv_wc wc;
		while (ibv_poll_cq(cq, 1, &wc) > 0) {
			if (wc.status == IBV_WC_WR_FLUSH_ERR)
				return NULL; /* the connection has ended */
			if (wc.status != IBV_WC_SUCCESS) {
				fprintf(stderr, "work failed: %s\n", ibv_wc_status_str(wc.status));
				exit(1);
			}
			if (wc.opcode & IBV_WC_RECV)
				l->received(l, &wc);
		}
	}
}

static void *pages(size_t n)
{
	void *p;
	if (posix_memalign(&p, sysconf(_SC_PAGESIZE), n))
		die("posix_memalign");
	memset(p, 0, n);
	return p;
}

/* build creates the resources of a connection, before it is connected. */
static struct link *build(struct rdma_cm_id *id, void (*received)(struct link *, const struct ibv_wc *))
{
	struct link *l = calloc(1, sizeof *l);
	if (!l)
		die("calloc");
	l->id = id;
	l->received = received;
	l->fd = -1;
	l->pd = ibv_alloc_pd(id->verbs);
	l->channel = ibv_create_comp_channel(id->verbs);
	l->cq = ibv_create_cq(id->verbs, 2 * DEPTH, NULL, l->channel, 0);
	if (!l->pd || !l->channel || !l->cq || ibv_req_notify_cq(l->cq, 0))
		die("making the queues");
	struct ibv_qp_init_attr attr = {
		.send_cq = l->cq, .recv_cq = l->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	if (rdma_create_qp(id, l->pd, &attr))
		die("rdma_create_qp");
	l->buffer = pages(CHUNK);
	l->message = pages(sizeof *l->message);
	l->buffer_mr = ibv_reg_mr(l->pd, l->buffer, CHUNK, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	l->message_mr = ibv_reg_mr(l->pd, l->message, sizeof *l->message, IBV_ACCESS_LOCAL_WRITE);
	if (!l->buffer_mr || !l->message_mr)
		die("ibv_reg_mr");
	if (pthread_create(&l->waiter, NULL, wait_for_completions, l))
		die("pthread_create");
	id->context = l;
	return l;
}

/* destroy frees a connection that the peer has ended. Disconnecting flushes the last receive, which ends the
 * thread. */
static void destroy(struct link *l)
{
	rdma_disconnect(l->id);
	pthread_join(l->waiter, NULL);
	rdma_destroy_qp(l->id);
	ibv_destroy_cq(l->cq);
	ibv_destroy_comp_channel(l->channel);
	ibv_dereg_mr(l->buffer_mr);
	ibv_dereg_mr(l->message_mr);
	ibv_dealloc_pd(l->pd);
	rdma_destroy_id(l->id);
	free(l->buffer);
	free(l->message);
	if (l->fd >= 0 && close(l->fd))
		die("close");
	free(l);
}

static const struct rdma_conn_param parameters = {
	.initiator_depth = 1, .responder_resources = 1, .retry_count = 7,
	.rnr_retry_count = 7, /* retry for ever: a receive is posted after the file is written */
};

#endif
