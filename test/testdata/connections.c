/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many connections through synchronous identifiers (rdma_create_ep), each with one
 * message there and one back, which are compared.
 *
 *   connections PORT                     serve until the client says it was the last
 *   connections PORT ADDR ROW            ROW connections, one after the other
 *   connections PORT ADDR ROW OPEN       and OPEN at once besides
 */
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>

#define SIZE 64
#define MOST 4096
#define CHECK(x)                                                                       \
	({                                                                             \
		errno = 0;                                                             \
		__auto_type r_ = (x);                                                  \
		if ((long)r_ < 0) {                                                    \
			fprintf(stderr, "%d: %s: %s\n", __LINE__, #x, strerror(errno)); \
			exit(1);                                                       \
		}                                                                      \
		r_;                                                                    \
	})

struct end {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	char buf[2 * SIZE];
};

static void caps(struct ibv_qp_init_attr *a)
{
	memset(a, 0, sizeof *a);
	a->cap.max_send_wr = a->cap.max_recv_wr = 4;
	a->cap.max_send_sge = a->cap.max_recv_sge = 1;
	a->sq_sig_all = 1;
}

static struct rdma_addrinfo *address(const char *host, const char *port)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *res;
	if (!host)
		hints.ai_flags = RAI_PASSIVE;
	if (rdma_getaddrinfo((char *)(host ? host : "0.0.0.0"), (char *)port, &hints, &res)) {
		perror("rdma_getaddrinfo");
		exit(1);
	}
	return res;
}

static void prepare(struct end *e)
{
	e->mr = rdma_reg_msgs(e->id, e->buf, sizeof e->buf);
	CHECK(e->mr ? 0 : -1);
	CHECK(rdma_post_recv(e->id, NULL, e->buf + SIZE, SIZE, e->mr));
}

static void expect(struct end *e)
{
	struct ibv_wc wc;
	CHECK(rdma_get_recv_comp(e->id, &wc));
	if (wc.status != IBV_WC_SUCCESS || wc.byte_len != SIZE) {
		fprintf(stderr, "receive: status %d, %u bytes\n", wc.status, wc.byte_len);
		exit(1);
	}
}

static void say(struct end *e)
{
	struct ibv_wc wc;
	CHECK(rdma_post_send(e->id, NULL, e->buf, SIZE, e->mr, 0));
	CHECK(rdma_get_send_comp(e->id, &wc));
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "send: status %d\n", wc.status);
		exit(1);
	}
}

static int descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static struct end *ends[MOST];
static int alive;

static void finish(struct end *e)
{
	rdma_disconnect(e->id);
	rdma_dereg_mr(e->mr);
	rdma_destroy_ep(e->id);
	free(e);
}

static int serve(const char *port)
{
	struct rdma_addrinfo *res = address(NULL, port);
	struct ibv_qp_init_attr attr;
	struct rdma_cm_id *listener;
	int served = 0, last = 0;

	caps(&attr);
	CHECK(rdma_create_ep(&listener, res, NULL, &attr));
	CHECK(rdma_listen(listener, 0));
	while (!last) {
		struct end *e = calloc(1, sizeof *e);
		CHECK(rdma_get_request(listener, &e->id));
		prepare(e);
		CHECK(rdma_accept(e->id, NULL));
		expect(e);
		memcpy(e->buf, e->buf + SIZE, SIZE);
		char what = e->buf[0]; /* k: keep open; o: one after the other; c: close all kept; l: the last */
		say(e);
		served++;
		if (what == 'k') {
			ends[alive++] = e;
			continue;
		}
		finish(e);
		if (what == 'c') { /* in the client's order: each waits for the other */
			for (int i = 0; i < alive; i++)
				finish(ends[i]);
			alive = 0;
		}
		last = what == 'l';
	}
	rdma_destroy_ep(listener);
	rdma_freeaddrinfo(res);
	printf("served %d\n", served);
	return 0;
}

static struct end *meet(struct rdma_addrinfo *res, char what, int n)
{
	struct ibv_qp_init_attr attr;
	struct end *e = calloc(1, sizeof *e);
	caps(&attr);
	CHECK(rdma_create_ep(&e->id, res, NULL, &attr));
	prepare(e);
	CHECK(rdma_connect(e->id, NULL));
	snprintf(e->buf, SIZE, "%c message %d", what, n);
	say(e);
	expect(e);
	if (memcmp(e->buf, e->buf + SIZE, SIZE)) {
		fprintf(stderr, "connection %d: got \"%.64s\"\n", n, e->buf + SIZE);
		exit(1);
	}
	return e;
}

int main(int argc, char **argv)
{
	if (argc == 2)
		return serve(argv[1]);
	if (argc < 4)
		return 2;
	struct rdma_addrinfo *res = address(argv[2], argv[1]);
	int row = atoi(argv[3]), open = argc > 4 ? atoi(argv[4]) : 0;
	for (int i = 0; i < 3; i++)
		finish(meet(res, 'o', i)); /* whatever is made once is made now */
	int before = descriptors();
	for (int i = 0; i < row; i++)
		finish(meet(res, 'o', i));
	for (int i = 0; i < open; i++)
		ends[i] = meet(res, 'k', i);
	finish(meet(res, 'c', 0));
	for (int i = 0; i < open; i++)
		finish(ends[i]);
	int after = descriptors();
	if (after > before) {
		fprintf(stderr, "%d descriptors before, %d after\n", before, after);
		return 1;
	}
	finish(meet(res, 'l', 0));
	rdma_freeaddrinfo(res);
	printf("made %d\n", row + open + 5);
	return 0;
}
