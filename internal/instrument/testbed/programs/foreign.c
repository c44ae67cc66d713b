/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign ROUNDS: how long a send of 64 bytes takes between two queue pairs of one process, from
 * posting to the receiver's completion: with buffers that the daemon maps, and with foreign
 * ones that it cannot map (a shared mapping of a file).
 *
 * It prints the two medians in seconds.
 */
#include "device.h"
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#define BYTES 64u

static struct ibv_cq *cq;
static struct ibv_qp *from, *to;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct ibv_qp *create(struct ibv_pd *pd)
{
	struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
	struct ibv_qp *qp;

	a.cap.max_send_wr = a.cap.max_recv_wr = 4;
	a.cap.max_send_sge = a.cap.max_recv_sge = 1;
	qp = ibv_create_qp(pd, &a);
	if (!qp)
		fail("ibv_create_qp");
	return qp;
}

/* One message. Returns when it had arrived. */
static double message(struct ibv_sge *source, struct ibv_sge *target)
{
	struct ibv_recv_wr r = {.sg_list = target, .num_sge = 1}, *bad_recv;
	struct ibv_send_wr s = {.sg_list = source, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
	double arrived = 0;

	if (ibv_post_recv(to, &r, &bad_recv) || ibv_post_send(from, &s, &bad_send))
		fail("posting");
	for (int left = 2; left > 0;) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);

		if (n == 0) {
			sched_yield();
			continue;
		}
		if (n < 0 || wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "a message failed with status %d\n", n < 0 ? -1 : (int)wc.status);
			exit(1);
		}
		if (wc.opcode == IBV_WC_RECV)
			arrived = now();
		left--;
	}
	return arrived;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(struct ibv_pd *pd, int flags, int rounds)
{
	unsigned char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
	double *times = calloc((size_t)rounds, sizeof(*times));
	struct ibv_sge source, target;
	struct ibv_mr *mr;
	double middle;

	if (memory == MAP_FAILED || !times)
		fail("memory");
	memset(memory, 1, 8192);
	mr = ibv_reg_mr(pd, memory, 8192, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		fail("ibv_reg_mr");
	source = (struct ibv_sge){(uintptr_t)memory, BYTES, mr->lkey};
	target = (struct ibv_sge){(uintptr_t)memory + 4096, BYTES, mr->lkey};
	for (int i = 0; i < rounds / 10; i++)
		message(&source, &target);
	for (int i = 0; i < rounds; i++) {
		double begin = now();

		times[i] = message(&source, &target) - begin;
	}
	qsort(times, (size_t)rounds, sizeof(*times), compare);
	middle = times[rounds / 2];
	free(times);
	if (ibv_dereg_mr(mr))
		fail("ibv_dereg_mr");
	munmap(memory, 8192);
	return middle;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 2000;
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	union ibv_gid gid;

	if (!pd)
		fail("ibv_alloc_pd");
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	if (!cq || ibv_query_gid(context, 1, 0, &gid))
		fail("ibv_create_cq");
	from = create(pd);
	to = create(pd);
	connect_qp(from, &gid, to->qp_num);
	connect_qp(to, &gid, from->qp_num);
	double mapped = median(pd, MAP_PRIVATE, rounds);
	double foreign = median(pd, MAP_SHARED, rounds);

	printf("%.9f %.9f\n", mapped, foreign);
	if (ibv_destroy_qp(from) || ibv_destroy_qp(to) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) || ibv_close_device(context))
		fail("cleaning up");
	return 0;
}
