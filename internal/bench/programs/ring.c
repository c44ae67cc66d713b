/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring COUNT: how fast two processes hand 8-byte messages through a bare ring in
 * shared memory, with nothing else done to them: the ceiling for any queue pair.
 * One producer, one consumer, an index each on its own cache line; whoever finds
 * nothing to do yields, as everybody has to on a small machine. Each has a processor
 * of its own, if there are two: on one, the ring would be filled and emptied in
 * turns from one cache, and nothing handed over.
 *
 * Prints messages a second.
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

#define SLOTS 128u /* perftest's default depth of a send queue */
#define SPINS 64

struct ring {
	_Alignas(64) _Atomic uint32_t producer;
	_Alignas(64) _Atomic uint32_t consumer;
	_Alignas(64) uint64_t slot[SLOTS];
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

static void produce(struct ring *r, uint32_t count)
{
	int spins = 0;

	for (uint32_t i = 0; i < count; i++) {
		while (i - atomic_load_explicit(&r->consumer, memory_order_acquire) == SLOTS)
			idle(&spins);
		r->slot[i % SLOTS] = i;
		atomic_store_explicit(&r->producer, i + 1, memory_order_release);
	}
}

static int consume(struct ring *r, uint32_t count)
{
	int spins = 0;

	for (uint32_t i = 0; i < count; i++) {
		while (atomic_load_explicit(&r->producer, memory_order_acquire) == i)
			idle(&spins);
		if (r->slot[i % SLOTS] != i) {
			fprintf(stderr, "ring: message %u was lost\n", i);
			return 1;
		}
		atomic_store_explicit(&r->consumer, i + 1, memory_order_release);
	}
	return 0;
}

int main(int argc, char **argv)
{
	uint32_t count = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1000000;
	struct ring *r = mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double begin;
	pid_t child;
	int status;

	if (r == MAP_FAILED) {
		perror("ring: mmap");
		return 1;
	}
	begin = now();
	child = fork();
	if (child < 0) {
		perror("ring: fork");
		return 1;
	}
	if (child == 0) {
		settle(1);
		_exit(consume(r, count));
	}
	settle(0);
	produce(r, count);
	if (waitpid(child, &status, 0) < 0 || status != 0) {
		fprintf(stderr, "ring: the consumer failed\n");
		return 1;
	}
	printf("%.0f\n", (double)count / (now() - begin));
	return 0;
}
