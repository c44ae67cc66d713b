/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that polls an empty completion queue burns the core that the daemon
 * or its peer needs: on two cores, spinning is a thousand times slower than
 * yielding. Polling goes through public function pointers: one in struct ibv_context,
 * which we wrap when the device is opened, and for an extended queue one in struct
 * ibv_cq_ex, which we wrap when the queue is made. After every VRDMA_YIELD (16) empty
 * polls in a row the thread yields; now and then it makes sure that the daemon
 * still lives, because a poll cannot find out.
 *
 * The kernel yields within a scheduler group only. If the daemon is of another group and
 * runs on this very processor (it says on which it does), yielding returns at once and the
 * thread uses up its share of the processor, as large as the daemon's, for nothing. So
 * after some such yields it sleeps until the daemon has written a completion, VRDMA_NAP
 * (100) microseconds at most: it may be waiting for something else, or the daemon may be
 * dead. Better still it waits on another processor (place.c).
 *
 * On a crowded machine, where threads work that do not yield, a thread that polls waits for milliseconds:
 * the kernel (EEVDF) charges each yield as a whole time slice, and charges a thread that is alone in its
 * scheduler group for the time that it polls. A sleeping thread is charged nothing, so it runs soon after
 * the daemon has woken it. So after a yield that came back late, a thread sleeps in the same way in each
 * wait that lasts longer than 20 microseconds. Short waits, of programs that talk in turns, stay as they are.
 * A program that yields by itself after an empty poll is treated in the same way.
 */
#include <dlfcn.h>
#include <linux/futex.h>
#include <limits.h>
#include <sched.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "verbs.h"
#include "vrdma.h"

#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
__asm__(".symver dlopen, dlopen@GLIBC_2.17");
#endif

#define LIVENESS (1u << 14)
#define VAIN 4u      /* so many yields in a row that returned at once, and the next is a sleep */
#define AT_ONCE 800u /* nanoseconds; to another thread and back takes longer */

/*
 * Nanoseconds. A yield that takes LATE shows that a thread which does not yield has the processor. The machine counts as
 * crowded for CROWDED_FIRST afterwards, and for twice as long after each further late yield, up to CROWDED_LAST. PATIENCE
 * is about the cost of a wake-up.
 */
#define LATE 100000u
#define PATIENCE 20000u
#define UNTIMED 3u /* yields of a wait before the clock is read, which costs as much as a poll: most waits are shorter */
#define CROWDED_FIRST 1000000ull
#define CROWDED_LAST 32000000ull

typedef int (*poll_fn)(struct cq *, int, void *);

static _Atomic(poll_fn) real_poll; /* of the provider; all our contexts share one */
static __thread unsigned empty __attribute__((tls_model("initial-exec")));

/*
 * Of the wait in progress: yields in a row that returned at once; the queue in whose poll we
 * announced that we will sleep, and the word of the announcement.
 */
static __thread unsigned vain __attribute__((tls_model("initial-exec")));
static __thread struct cq *announced_in __attribute__((tls_model("initial-exec")));
static __thread uint32_t announced __attribute__((tls_model("initial-exec")));
static _Atomic int asleep; /* threads of this process */

static __thread struct {
	uint64_t until;   /* when the machine is no longer crowded */
	uint64_t length;  /* for how long the last late yield counted; 0: a yield came back in time since */
	uint64_t yielded; /* when the last timed yield of the wait ended; 0: none, or the thread has slept since */
	uint64_t began;   /* when the clock was first read in the wait; 0: not yet */
	unsigned untimed; /* yields of the wait that were not timed */
} crowded __attribute__((tls_model("initial-exec")));

/* The queue whose empty poll was the last since the program yielded, and the descriptor of its device. */
static __thread struct cq *empty_in __attribute__((tls_model("initial-exec")));
static __thread int empty_fd __attribute__((tls_model("initial-exec")));
static __thread bool yielding __attribute__((tls_model("initial-exec")));

/* The processor of the daemon, plus one; 0: it would not wake us. */
static uint32_t daemon_cpu(struct file *f)
{
	if (!f || atomic_load_explicit(&f->kind, memory_order_relaxed) != FILE_DEVICE ||
	    atomic_load_explicit(&f->dead, memory_order_relaxed))
		return 0;
	return atomic_load_explicit((_Atomic uint32_t *)(f->page + VRDMA_DB_CPU), memory_order_relaxed);
}

/* Reports whether the daemon is awake and on our processor. */
static bool daemon_here(struct file *f, uint32_t cpu)
{
	uint32_t armed = atomic_load_explicit((_Atomic uint32_t *)(f->page + VRDMA_DB_ARMED), memory_order_relaxed);
	return !armed && (int)(cpu - 1) == sched_getcpu();
}

/*
 * The first call announces. A later one, in a poll of the same queue, sleeps: a thread that
 * polls several queues has polled all of them in between. protocol.h has the rules.
 */
static void rest(struct file *f, struct cq *cq)
{
	_Atomic uint32_t *waiting = (_Atomic uint32_t *)(f->page + VRDMA_DB_WAITING);
	unsigned us = settings()->nap;
	if (!announced_in) {
		announced_in = cq;
		announced = atomic_fetch_or(waiting, VRDMA_DB_ANNOUNCED) | VRDMA_DB_ANNOUNCED;
		/* The poll that follows loads the producer index with an acquire. On arm64 it could pass the store
		 * of the line above. */
		atomic_thread_fence(memory_order_seq_cst);
		return;
	}
	if (announced_in != cq)
		return;
	announced_in = NULL;
	uint32_t word = announced, sleeps = announced | VRDMA_DB_ASLEEP;
	if (!atomic_compare_exchange_strong(waiting, &word, sleeps) && word != sleeps)
		return; /* something was completed since */
	struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000l};
	atomic_fetch_add(&asleep, 1);
	long r = sys(SYS_futex, waiting, FUTEX_WAIT, sleeps, &t);
	if (atomic_fetch_sub(&asleep, 1) > 1 && r == 0)
		sys(SYS_futex, waiting, FUTEX_WAKE, INT_MAX); /* the daemon wakes only one */
}

static uint64_t nanoseconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Yields, also where the program has a sched_yield of its own, as tests do. */
static void yield_now(void)
{
	yielding = true;
	sched_yield();
	yielding = false;
}

/* Judges a yield that ended now. The thread has only polled and yielded since from: what took long was the work of others. */
static void judge(uint64_t from, uint64_t now)
{
	crowded.yielded = now;
	if (now - from < LATE) {
		crowded.length = 0;
		return;
	}
	crowded.length = crowded.length ? crowded.length * 2 : CROWDED_FIRST;
	if (crowded.length > CROWDED_LAST)
		crowded.length = CROWDED_LAST;
	crowded.until = now + crowded.length;
}

/* Yields the processor, or sleeps. first: it is the first time in this wait. */
static void give_way(struct file *f, struct cq *cq, bool first)
{
	uint32_t cpu = settings()->nap ? daemon_cpu(f) : 0;
	if (first) {
		vain = crowded.untimed = 0;
		announced_in = NULL;
		crowded.yielded = crowded.began = 0;
	}
	bool here = cpu && daemon_here(f, cpu);
	if (!cpu || (!here && !crowded.length && crowded.untimed < UNTIMED)) {
		crowded.untimed++;
		yield_now();
		return;
	}
	/* Some polls ago is precise enough for all but vain. */
	uint64_t before = crowded.yielded && !here ? crowded.yielded : nanoseconds();
	if (!crowded.began)
		crowded.began = before;
	if ((here && vain >= VAIN) || (before < crowded.until && before - crowded.began >= PATIENCE)) {
		rest(f, cq);
		crowded.yielded = 0;
		return;
	}
	yield_now();
	uint64_t after = nanoseconds();
	judge(crowded.yielded ? crowded.yielded : before, after);
	if (here) {
		vain = after - before < AT_ONCE ? vain + 1 : 0;
		place_shared(after);
	}
}

/* A program that yields after an empty poll waits for a completion. One that yields for another reason just yields. */
EXPORT int sched_yield(void)
{
	struct cq *cq = empty_in;
	struct file *f = yielding || !cq || !empty || !settings()->yield ? NULL : file_get(empty_fd);
	empty_in = NULL;
	if (!f)
		return (int)sys(SYS_sched_yield);
	give_way(f, cq, empty == 1);
	file_put(f);
	return 0;
}

static int idle(struct cq *cq)
{
	unsigned yield = settings()->yield;
	if (yield && empty % yield == 0)
		give_way(file_at(cq->context->cmd_fd), cq, empty == yield);
	if (empty_in != cq) {
		empty_in = cq;
		empty_fd = cq->context->cmd_fd;
	}
	if (empty % LIVENESS == 0) {
		struct file *f = file_get(cq->context->cmd_fd);
		if (f) {
			bool alive = device_alive(f);
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

/* ---- extended queues ---- */

typedef int (*start_fn)(struct cq_ex *, void *);
typedef struct cq_ex *(*create_fn)(struct context *, void *);
static _Atomic(start_fn) real_start;
static _Atomic(create_fn) real_create;

static int start_poll(struct cq_ex *cq, void *attr)
{
	int e = atomic_load_explicit(&real_start, memory_order_relaxed)(cq, attr);
	if (likely(e != ENOENT)) {
		empty = 0;
		return e;
	}
	empty++;
	return idle(&cq->cq) ? EIO : ENOENT;
}

static struct cq_ex *create_cq_ex(struct context *c, void *attr)
{
	struct cq_ex *cq = atomic_load(&real_create)(c, attr);
	start_fn none = NULL;
	if (cq && cq->start_poll && cq->start_poll != start_poll && file_at(c->cmd_fd) &&
	    (atomic_compare_exchange_strong(&real_start, &none, cq->start_poll) || none == cq->start_poll))
		cq->start_poll = start_poll;
	return cq;
}

static void wrap_extended(struct context *c)
{
	struct before_context *b = (struct before_context *)(void *)c - 1;
	create_fn none = NULL;
	if (c->abi_compat != ABI_EXTENDED || b->sz < sizeof *b + sizeof *c || !b->create_cq_ex ||
	    b->create_cq_ex == create_cq_ex)
		return;
	if (atomic_compare_exchange_strong(&real_create, &none, b->create_cq_ex) || none == b->create_cq_ex)
		b->create_cq_ex = create_cq_ex;
}

static void wrap(struct context *c)
{
	struct file *f = file_at(c->cmd_fd);
	poll_fn now = (poll_fn)c->ops[OP_POLL_CQ], none = NULL;
	if (!f || !now || now == poll_cq)
		return;
	if (atomic_compare_exchange_strong(&real_poll, &none, now) || none == now)
		c->ops[OP_POLL_CQ] = (void *)poll_cq;
	wrap_extended(c);
}

static bool copy_in(void *to, uint64_t from, size_t n)
{
	struct iovec here = {to, n}, there = {(void *)(uintptr_t)from, n};
	return sys(SYS_process_vm_readv, getpid(), &here, 1, &there, 1, 0) == (long)n;
}

/*
 * A program that has loaded libibverbs itself (dlopen: NCCL, TensorPipe) does not find our ibv_open_device. Its context is found
 * by its first completion queue, whose address is in the command. A program that makes commands by hand may send anything, so the
 * kernel reads the memory.
 */
void poll_found(int fd, uint64_t cq)
{
	struct context *c, copy;
	if (copy_in(&c, cq, sizeof c) && copy_in(&copy, (uintptr_t)c, sizeof copy) && copy.cmd_fd == fd &&
	    copy.abi_compat == ABI_EXTENDED && copy.ops[OP_POLL_CQ])
		wrap(c);
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
