/*
 * Threads that poll on the daemon's processor sleep, and are woken. This program is its own daemon: a
 * thread that completes and wakes as protocol.h says.
 *   nap THREADS QUEUES ROUNDS [elsewhere [late]]
 * THREADS poll QUEUES each. The daemon is elsewhere; a yield comes back late. With OWN the program yields, not the library. A wake-up that is lost ends nothing but the test: VRDMA_NAP is a minute.
 */
#include "t.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../protocol.h"
#include "../../verbs.h"

struct context *ibv_open_device(void *);
extern int (*stub_hook)(void *cq, int n, void *wc);

#define MOST 16
static struct queue {
	struct context *context;
	_Atomic int completions;
} queues[MOST];
static int threads, each;
static _Atomic int taken, ended;
static struct context *context;
static _Atomic uint32_t *waiting;

/* The clock that the library sees: each thread's own, without what the machine does besides. */
static _Thread_local long clock_now;
static long step = 100;

int clock_gettime(clockid_t id, struct timespec *t)
{
	(void)id;
	clock_now += step;
	*t = (struct timespec){.tv_sec = clock_now / 1000000000, .tv_nsec = clock_now % 1000000000};
	return 0;
}

#ifndef OWN
static long late;

/* The library calls this function, as if the daemon were in another scheduler group. */
int sched_yield(void)
{
	clock_now += late;
	return 0;
}
#endif

static int hook(void *cq, int n, void *wc)
{
	struct queue *q = cq;
	(void)n;
	(void)wc;
	if (atomic_load(&q->completions) == 0)
		return 0;
	atomic_fetch_sub(&q->completions, 1);
	return 1;
}

static void *poller(void *first)
{
	int (*poll_cq)(void *, int, void *) = (int (*)(void *, int, void *))context->ops[11];
	struct queue *q = first;
	while (!atomic_load(&ended))
		for (int i = 0; i < each; i++)
			if (poll_cq(&q[i], 1, NULL) == 1)
				atomic_fetch_add(&taken, 1);
#ifdef OWN
			else
				sched_yield(); /* of the library */
#endif
	return NULL;
}

/* The daemon's part; returns whether a thread slept. */
static bool wake(void)
{
	static uint32_t round;
	if (!(atomic_load(waiting) & VRDMA_DB_ANNOUNCED))
		return false;
	if (!(atomic_exchange(waiting, round += 4) & VRDMA_DB_ASLEEP))
		return false;
	syscall(SYS_futex, waiting, FUTEX_WAKE, 1);
	return true;
}

int main(int argc, char **argv)
{
	CHECK(argc >= 4);
	threads = atoi(argv[1]);
	each = atoi(argv[2]);
	int rounds = atoi(argv[3]), here = sched_getcpu(), slept = 0, announced = 0;
	bool elsewhere = argc > 4, crowded = argc > 5;
#ifdef OWN
	step = crowded ? 1000000 : step;
#else
	late = crowded ? 1000000 : 0;
#endif
	CHECK(threads * each <= MOST);
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(here, &one);
	CHECK(sched_setaffinity(0, sizeof one, &one) == 0);

	context = ibv_open_device(NULL);
	CHECK(context->cmd_fd >= 0);
	unsigned char *page = mmap(NULL, VRDMA_DB_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, context->cmd_fd, 0);
	CHECK(page != MAP_FAILED);
	waiting = (_Atomic uint32_t *)(page + VRDMA_DB_WAITING);
	atomic_store((_Atomic uint32_t *)(page + VRDMA_DB_ARMED), 0);
	atomic_store((_Atomic uint32_t *)(page + VRDMA_DB_CPU), (uint32_t)here + (elsewhere ? 2 : 1));

	stub_hook = hook;
	pthread_t t[MOST];
	for (int i = 0; i < threads * each; i++)
		queues[i].context = context;
	for (int i = 0; i < threads; i++)
		CHECK(pthread_create(&t[i], NULL, poller, &queues[i * each]) == 0);
	for (int i = 0; i < rounds; i++) {
		struct timespec pause = {.tv_nsec = rand() % 40000};
		nanosleep(&pause, NULL);
		announced += atomic_load(waiting) != 0;
		atomic_fetch_add(&queues[rand() % (threads * each)].completions, 1);
		slept += wake();
		while (atomic_load(&taken) <= i)
			syscall(SYS_sched_yield);
	}
	atomic_store(&ended, 1);
	for (int i = 0; i < threads; i++) { /* one after another: each may be asleep */
		void *none;
		while (pthread_tryjoin_np(t[i], &none) != 0) {
			wake();
			syscall(SYS_sched_yield);
		}
	}
	if (elsewhere && !crowded)
		CHECK(announced == 0);
	printf("slept %d\n", slept);
	return 0;
}
