/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory MODE ...: measures kinds of memory. It prints one number.
 *
 *   bandwidth FROM TO BYTES   bytes/s of RDMA WRITEs, 16 in flight, between two regions
 *   latency FROM TO           seconds from posting a WRITE of 64 bytes to its completion, median
 *   turn BYTES THREADS        seconds of a registration and a deregistration, median, while
 *                             other threads sleep
 *   first BYTES               seconds of the first registration of memory in use
 *   again BYTES               seconds of a second registration of the same memory
 *
 * FROM and TO: private, anonymous (shared), shm, sysv, file (shared, on a disk).
 */
#include "device.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <time.h>
#include <unistd.h>

enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, DEPTH = 16 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

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

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof *v, compare);
	return v[n / 2];
}

/* ---- memory of a kind ---- */

static void *file_memory(const char *pattern, size_t size)
{
	char name[64];
	int fd;
	void *p;

	snprintf(name, sizeof name, "%s/vrdma-bench-XXXXXX", pattern);
	fd = mkstemp(name);
	if (fd < 0 || unlink(name) || ftruncate(fd, (off_t)size))
		fail(name);
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return p;
}

static void *sysv_memory(size_t size)
{
	int id = shmget(IPC_PRIVATE, size, 0600);
	void *p;

	if (id < 0)
		fail("shmget");
	p = shmat(id, NULL, 0);
	shmctl(id, IPC_RMID, NULL);
	return p;
}

static unsigned char *of_kind(const char *kind, size_t size)
{
	void *p = MAP_FAILED;

	if (!strcmp(kind, "private"))
		p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	else if (!strcmp(kind, "anonymous"))
		p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	else if (!strcmp(kind, "shm"))
		p = file_memory("/dev/shm", size);
	else if (!strcmp(kind, "file"))
		p = file_memory("/var/tmp", size);
	else if (!strcmp(kind, "sysv"))
		p = sysv_memory(size);
	if (p == MAP_FAILED)
		fail(kind);
	memset(p, 0x5a, size);
	return p;
}

static struct ibv_mr *registered(void *p, size_t size)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, p, size, ACCESS);

	if (!mr)
		fail("ibv_reg_mr");
	return mr;
}

/* ---- transfers ---- */

static struct ibv_qp *create(void)
{
	struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
	struct ibv_qp *qp;

	a.cap.max_send_wr = a.cap.max_recv_wr = DEPTH;
	a.cap.max_send_sge = a.cap.max_recv_sge = 1;
	qp = ibv_create_qp(pd, &a);
	if (!qp)
		fail("ibv_create_qp");
	return qp;
}

/* Keeps up to depth WRITEs in flight until *count have completed; count 0: for some seconds. */
static long writes(struct ibv_qp *qp, struct ibv_send_wr *wr, int depth, long count, double seconds)
{
	double until = now() + seconds;
	long posted = 0, done = 0;

	while (count ? done < count : now() < until || done < posted) {
		while (posted - done < depth && (count ? posted < count : now() < until)) {
			struct ibv_send_wr *bad;

			if (ibv_post_send(qp, wr, &bad))
				fail("ibv_post_send");
			posted++;
		}
		struct ibv_wc wc[DEPTH];
		int n = ibv_poll_cq(cq, DEPTH, wc);

		for (int i = 0; i < n; i++)
			if (wc[i].status != IBV_WC_SUCCESS) {
				fprintf(stderr, "a WRITE failed with status %d\n", (int)wc[i].status);
				exit(1);
			}
		done += n;
		if (n == 0)
			sched_yield();
	}
	return done;
}

static double transfer(const char *from, const char *to, size_t size, int latency)
{
	enum { TIMES = 2000 };
	static double times[TIMES];
	unsigned char *a = of_kind(from, size), *b = of_kind(to, size);
	struct ibv_mr *source = registered(a, size), *target = registered(b, size);
	struct ibv_sge sge = {(uintptr_t)a, (uint32_t)size, source->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
	struct ibv_qp *qp, *peer;
	union ibv_gid gid;
	double result, begin;

	cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
	if (!cq || ibv_query_gid(context, 1, 0, &gid))
		fail("ibv_create_cq");
	qp = create();
	peer = create();
	connect_qp(qp, &gid, peer->qp_num);
	connect_qp(peer, &gid, qp->qp_num);
	wr.wr.rdma.remote_addr = (uintptr_t)b;
	wr.wr.rdma.rkey = target->rkey;
	memset(a, 0xa5, size);
	writes(qp, &wr, 1, 50, 0);
	if (memcmp(a, b, size)) {
		fprintf(stderr, "other bytes arrived\n");
		exit(1);
	}
	if (latency) {
		for (int i = 0; i < TIMES; i++) {
			begin = now();
			writes(qp, &wr, 1, 1, 0);
			times[i] = now() - begin;
		}
		return median(times, TIMES);
	}
	begin = now();
	result = (double)writes(qp, &wr, DEPTH, 0, 1) * (double)size;
	return result / (now() - begin);
}

/* ---- registrations ---- */

static void *sleeps(void *arg)
{
	for (;;)
		pause();
	return arg;
}

static double turn(size_t size, int threads)
{
	enum { TURNS = 60 };
	static double times[TURNS];
	unsigned char *p = of_kind("private", size);

	for (int i = 0; i < threads; i++) {
		pthread_attr_t small;
		pthread_t t;

		pthread_attr_init(&small);
		pthread_attr_setstacksize(&small, 64 << 10);
		if (pthread_create(&t, &small, sleeps, NULL))
			fail("pthread_create");
	}
	for (int i = 0; i < TURNS; i++) {
		double begin = now();
		struct ibv_mr *mr = registered(p, size);

		if (ibv_dereg_mr(mr))
			fail("ibv_dereg_mr");
		times[i] = now() - begin;
	}
	return median(times, TURNS);
}

static double once(size_t size, int again)
{
	unsigned char *p = of_kind("private", size);
	double begin = now(), middle;

	registered(p, size);
	middle = now();
	if (!again)
		return middle - begin;
	registered(p, size);
	return now() - middle;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[1] : "";
	double result = -1;

	context = open_device();
	pd = ibv_alloc_pd(context);
	if (!pd)
		fail("ibv_alloc_pd");
	if (!strcmp(mode, "bandwidth") && argc == 5)
		result = transfer(argv[2], argv[3], strtoull(argv[4], NULL, 10), 0);
	else if (!strcmp(mode, "latency") && argc == 4)
		result = transfer(argv[2], argv[3], 64, 1);
	else if (!strcmp(mode, "turn") && argc == 4)
		result = turn(strtoull(argv[2], NULL, 10), atoi(argv[3]));
	else if (!strcmp(mode, "first") || !strcmp(mode, "again"))
		result = once(strtoull(argv[2], NULL, 10), mode[0] == 'a');
	else
		return 2;
	printf("%.9f\n", result);
	return 0;
}
