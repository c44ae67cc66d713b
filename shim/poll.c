/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that polls an empty completion queue burns the core that the daemon
 * or its peer needs: on two cores, spinning is a thousand times slower than
 * yielding. Polling goes through a public function pointer in struct ibv_context,
 * which we wrap when the device is opened. After every VRDMA_YIELD (16) empty
 * polls in a row the thread yields; now and then it makes sure that the daemon
 * still lives, because a poll cannot find out.
 */
#include <dlfcn.h>
#include <sched.h>

#include "vrdma.h"

#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
__asm__(".symver dlopen, dlopen@GLIBC_2.17");
#endif

#define LIVENESS (1u << 14)

/* The head of struct ibv_context, which has not changed since libibverbs 1.1. */
struct context {
	void *device;
	void *ops[32];
	int cmd_fd;
};
enum { OP_POLL_CQ = 11 };
struct cq {
	struct context *context;
};
typedef int (*poll_fn)(struct cq *, int, void *);

static _Atomic(poll_fn) real_poll; /* of the provider; all our contexts share one */
static __thread unsigned empty __attribute__((tls_model("initial-exec")));

static int idle(struct cq *cq)
{
	unsigned yield = settings()->yield;
	if (yield && empty % yield == 0)
		sched_yield();
	if (empty % LIVENESS == 0) {
		struct file *f = file_get(cq->context->cmd_fd);
		if (f) {
			bool alive = door_alive(f);
			file_put(f);
			return alive ? 0 : -1;
		}
	}
	return 0;
}

static int poll_cq(struct cq *cq, int n, void *wc)
{
	int got = atomic_load_explicit(&real_poll, memory_order_relaxed)(cq, n, wc);
	if (likely(got != 0)) {
		empty = 0;
		return got;
	}
	empty++;
	return idle(cq);
}

static void wrap(struct context *c)
{
	struct file *f = file_at(c->cmd_fd);
	poll_fn now = (poll_fn)c->ops[OP_POLL_CQ], none = NULL;
	if (!f || !now || now == poll_cq)
		return;
	if (atomic_compare_exchange_strong(&real_poll, &none, now) || none == now)
		c->ops[OP_POLL_CQ] = (void *)poll_cq;
}

struct context *ibv_open_device(void *device);
EXPORT struct context *ibv_open_device(void *device)
{
	static _Atomic(void *) slot;
	void *real = atomic_load(&slot);
	if (!real)
		real = real_resolve(&slot, "ibv_open_device");
	if (!real) { /* loaded with RTLD_LOCAL: not among the libraries after us */
		void *lib = dlopen("libibverbs.so.1", RTLD_NOLOAD | RTLD_LAZY);
		real = lib ? dlsym(lib, "ibv_open_device") : NULL;
		atomic_store(&slot, real);
	}
	if (!real || real == (void *)ibv_open_device)
		return errno = ENOSYS, NULL;
	struct context *c = ((struct context * (*)(void *)) real)(device);
	if (c)
		wrap(c);
	return c;
}
