/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cycle BYTES ROUNDS [THREADS]: a buffer that is registered, used and deregistered, over and
 * over, beside memory in use that is registered for the first time. Other threads sleep.
 *
 * Prints three medians, in seconds: a first registration, a registration and a
 * deregistration of the loop together, and that deregistration alone.
 */
#include "device.h"
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

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

static unsigned char *in_use(size_t size)
{
	unsigned char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		fail("mmap");
	memset(p, 0x5a, size);
	return p;
}

/* Registers and deregisters; the times go to reg and dereg. */
static void turn(struct ibv_pd *pd, unsigned char *p, size_t size, double *reg, double *dereg)
{
	double begin = now(), middle, end;
	struct ibv_mr *mr = ibv_reg_mr(pd, p, size, ACCESS);

	if (!mr)
		fail("ibv_reg_mr");
	middle = now();
	for (size_t i = 0; i < size; i += 4096)
		p[i]++;
	end = now();
	if (ibv_dereg_mr(mr))
		fail("ibv_dereg_mr");
	*reg = middle - begin;
	*dereg = now() - end;
}

static void *sleeps(void *arg)
{
	pause();
	return arg;
}

int main(int argc, char **argv)
{
	size_t size = argc > 1 ? strtoull(argv[1], NULL, 10) : 4096;
	int rounds = argc > 2 ? atoi(argv[2]) : 100, threads = argc > 3 ? atoi(argv[3]) : 0;
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	double *first = calloc((size_t)rounds, sizeof *first), *both = calloc((size_t)rounds, sizeof *both);
	double *back = calloc((size_t)rounds, sizeof *back);
	unsigned char *loop = in_use(size), value = 0x5a;

	if (!pd || !first || !both || !back)
		fail("ibv_alloc_pd");
	for (int i = 0; i < threads; i++) {
		pthread_t t;

		if (pthread_create(&t, NULL, sleeps, NULL))
			fail("pthread_create");
	}
	for (int i = 0; i < rounds; i++) {
		unsigned char *p = in_use(size);
		double reg, dereg;

		turn(pd, p, size, &first[i], &dereg);
		munmap(p, size);
		turn(pd, loop, size, &reg, &back[i]);
		both[i] = reg + back[i];
		value++;
		for (size_t at = 0; at < size; at += 4096)
			if (loop[at] != value) {
				fprintf(stderr, "the byte at %zu changed\n", at);
				return 1;
			}
	}
	printf("%.9f %.9f %.9f\n", median(first, rounds), median(both, rounds), median(back, rounds));
	if (ibv_dealloc_pd(pd) || ibv_close_device(context))
		fail("cleaning up");
	return 0;
}
