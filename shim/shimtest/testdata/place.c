/*
 * A thread that polls beside the daemon goes to another processor, and may use all of them
 * afterwards; one that may use only this one stays. This program tells the library that the
 * daemon is here. Where there is a processor only, there is nothing to see: it prints "one".
 *   place [pinned]
 */
#include "t.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

#include "../../protocol.h"
#include "../../verbs.h"

struct context *ibv_open_device(void *);
extern int (*stub_hook)(void *cq, int n, void *wc);

static int here;
static unsigned polls;
static _Atomic bool ended;

static unsigned processor(void)
{
	unsigned cpu;
	CHECK(syscall(SYS_getcpu, &cpu, NULL, NULL) == 0);
	return cpu;
}

/* Something comes after every 40 polls: long enough for two yields. */
static int hook(void *cq, int n, void *wc)
{
	(void)cq;
	(void)n;
	(void)wc;
	return ++polls % 40 == 0;
}

/* Keeps the other processors busy, so that the kernel has no reason to move us there. */
static void *burn(void *others)
{
	CHECK(sched_setaffinity(0, sizeof(cpu_set_t), others) == 0);
	while (!atomic_load(&ended))
		;
	return NULL;
}

int main(int argc, char **argv)
{
	(void)argv;
	bool pinned = argc > 1;
	cpu_set_t may, one, others, after;
	CHECK(sched_getaffinity(0, sizeof may, &may) == 0);
	if (CPU_COUNT(&may) < 2) {
		puts("one");
		return 0;
	}
	here = sched_getcpu();
	others = may;
	CPU_CLR((unsigned)here, &others);
	CPU_ZERO(&one);
	CPU_SET((unsigned)here, &one);
	CHECK(sched_setaffinity(0, sizeof one, &one) == 0);

	struct context *context = ibv_open_device(NULL);
	CHECK(context->cmd_fd >= 0);
	unsigned char *page = mmap(NULL, VRDMA_DB_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, context->cmd_fd, 0);
	CHECK(page != MAP_FAILED);
	atomic_store((_Atomic uint32_t *)(page + VRDMA_DB_ARMED), 0);
	atomic_store((_Atomic uint32_t *)(page + VRDMA_DB_CPU), (uint32_t)here + 1);
	stub_hook = hook;
	struct {
		struct context *context;
	} queue = {context};

	pthread_t burner;
	CHECK(pthread_create(&burner, NULL, burn, &others) == 0);
	if (!pinned)
		CHECK(sched_setaffinity(0, sizeof may, &may) == 0);
	int (*poll_cq)(void *, int, void *) = (int (*)(void *, int, void *))context->ops[11];
	bool moved = false;
	double began = now();
	for (double end = began + (pinned ? 0.05 : 60); now() < end && !moved;) {
		poll_cq(&queue, 1, NULL);
		moved = processor() != (unsigned)here;
	}
	CHECK(sched_getaffinity(0, sizeof after, &after) == 0);
	CHECK(CPU_EQUAL(&after, pinned ? &one : &may));
	CHECK(moved == !pinned);
	atomic_store(&ended, true);
	pthread_join(burner, NULL);
	return 0;
}
