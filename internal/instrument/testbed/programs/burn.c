/* SPDX-License-Identifier: Apache-2.0 */
/*
 * burn idle: keeps all its processors out of idle states, with a busy thread on each. The
 * threads are SCHED_IDLE: any other task preempts them.
 * burn one: uses one processor, the last of its affinity mask, as any busy program does.
 *
 * It prints "ready" when the threads run, and ends with its standard input.
 */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sem_t running;
static int policy = SCHED_OTHER;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void *spin(void *argument)
{
	const struct sched_param priority = {.sched_priority = 0};
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET((size_t)(intptr_t)argument, &one);
	if (sched_setaffinity(0, sizeof(one), &one) || sched_setscheduler(0, policy, &priority))
		fail("burn: a busy thread");
	sem_post(&running);
	/* Without the pause instruction: a hypervisor preempts a virtual processor that repeats it. */
	for (;;)
		__asm__ volatile("" ::: "memory");
	return NULL;
}

int main(int argc, char **argv)
{
	int all = argc == 2 && !strcmp(argv[1], "idle"), threads = 0, last = -1;
	cpu_set_t may;
	char byte;

	if (argc != 2 || (!all && strcmp(argv[1], "one"))) {
		fprintf(stderr, "usage: burn idle|one\n");
		return 2;
	}
	if (all)
		policy = SCHED_IDLE;
	if (sched_getaffinity(0, sizeof(may), &may) || sem_init(&running, 0, 0))
		fail("burn");
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &may))
			last = cpu;
	for (int cpu = all ? 0 : last; cpu <= last; cpu++) {
		pthread_t thread;

		if (!CPU_ISSET(cpu, &may))
			continue;
		if (pthread_create(&thread, NULL, spin, (void *)(intptr_t)cpu))
			fail("burn: pthread_create");
		threads++;
	}
	while (threads-- > 0)
		sem_wait(&running);
	if (puts("ready") < 0 || fflush(stdout))
		fail("burn: stdout");
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	return 0;
}
