/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring WINDOWS SLOTS: how fast two processes pass 8-byte messages through a ring in shared
 * memory: the upper limit for any queue pair. There is one producer and one consumer, each with
 * an index on its own cache line. A process that finds no work for some time yields. Each has a
 * processor of its own, if there are two: on one processor the ring would be filled and emptied
 * in turns from one cache.
 *
 * With one slot each message moves between processors separately. With many slots messages
 * share cache lines.
 *
 * It prints messages/s: the median of WINDOWS windows of 100000 messages, so that preemption
 * does not count.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_SLOTS 4096u
#define SPINS 10000
#define WINDOW 100000u

struct ring {
	_Alignas(64) _Atomic uint32_t producer;
	_Alignas(64) _Atomic uint32_t consumer;
	_Alignas(64) uint64_t slot[MAX_SLOTS];
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Moves the caller to the n-th processor that it may use, if there is one. */
static void settle(int n)
{
	cpu_set_t may, one;

	if (sched_getaffinity(0, sizeof(may), &may))
		return;
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &may) || n-- > 0)
			continue;
		CPU_SET(cpu, &one);
		sched_setaffinity(0, sizeof(one), &one);
		return;
	}
}

static void idle(int *spins)
{
	if (++*spins < SPINS)
		return;
	*spins = 0;
	sched_yield();
}

/* Sends every message and notes the rate of each window. */
static void produce(struct ring *r, uint32_t slots, uint32_t windows, double *rate)
{
	uint32_t i = 0;
	int spins = 0;

	for (uint32_t w = 0; w < windows; w++) {
		double begin = now();

		for (uint32_t end = i + WINDOW; i != end; i++) {
			while (i - atomic_load_explicit(&r->consumer, memory_order_acquire) == slots)
				idle(&spins);
			r->slot[i & (slots - 1)] = i;
			atomic_store_explicit(&r->producer, i + 1, memory_order_release);
		}
		rate[w] = WINDOW / (now() - begin);
	}
}

static int consume(struct ring *r, uint32_t slots, uint32_t count)
{
	int spins = 0;

	for (uint32_t i = 0; i < count; i++) {
		while (atomic_load_explicit(&r->producer, memory_order_acquire) == i)
			idle(&spins);
		if (r->slot[i & (slots - 1)] != i) {
			fprintf(stderr, "ring: message %u was lost\n", i);
			return 1;
		}
		atomic_store_explicit(&r->consumer, i + 1, memory_order_release);
	}
	return 0;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	uint32_t windows = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 50;
	uint32_t slots = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 128;
	struct ring *r = mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double *rate = calloc(windows, sizeof(*rate));
	pid_t child;
	int status;

	if (windows == 0 || slots == 0 || slots > MAX_SLOTS || (slots & (slots - 1))) {
		fprintf(stderr, "usage: ring WINDOWS SLOTS, the slots a power of two\n");
		return 2;
	}
	if (r == MAP_FAILED || !rate) {
		fprintf(stderr, "ring: no memory\n");
		return 1;
	}
	child = fork();
	if (child < 0) {
		perror("ring: fork");
		return 1;
	}
	if (child == 0) {
		settle(1);
		_exit(consume(r, slots, windows * WINDOW));
	}
	settle(0);
	produce(r, slots, windows, rate);
	if (waitpid(child, &status, 0) < 0 || status != 0) {
		fprintf(stderr, "ring: the consumer failed\n");
		return 1;
	}
	qsort(rate, windows, sizeof(*rate), compare);
	printf("%.0f\n", rate[windows / 2]);
	return 0;
}
