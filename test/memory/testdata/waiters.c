/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that wait on a lock while the page of the lock is registered or deregistered.
 * The kernel finds waiters by a key. For a futex without FUTEX_PRIVATE_FLAG the key is made
 * of the page: (address space, address) for private memory, (inode, offset) for shared memory.
 * A waiter whose key is out of date is never woken. std::future, static guards, robust and
 * process-shared locks of glibc use such futexes.
 */
#include "mem.h"

#include <limits.h>
#include <linux/futex.h>
#include <semaphore.h>

enum { WAITERS = 8 };

struct shared {
	_Atomic uint32_t word[WAITERS];
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	sem_t sem;
	int ready;
	char buffer[1024]; /* what is registered */
};

struct kind {
	void (*init)(struct shared *);
	void (*hold)(struct shared *);	      /* before the waiters come */
	void (*wait)(struct shared *, int i); /* returns when woken */
	void (*wake)(struct shared *);
	int waiters;
};

static struct shared *page;
static const struct kind *kind;
static _Atomic int woken;
static _Atomic pid_t tids[WAITERS];

/* ---- a word, as in std::future ---- */

static void word_wait(struct shared *s, int i)
{
	while (!atomic_load(&s->word[i]))
		syscall(SYS_futex, &s->word[i], FUTEX_WAIT, 0, NULL, NULL, 0);
}

static void word_wake(struct shared *s)
{
	for (int i = 0; i < WAITERS; i++) {
		atomic_store(&s->word[i], 1);
		syscall(SYS_futex, &s->word[i], FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	}
}

static const struct kind word = {.wait = word_wait, .wake = word_wake, .waiters = WAITERS};

static void timed_wait(struct shared *s, int i)
{
	struct timespec far = {.tv_sec = 3600};

	while (!atomic_load(&s->word[i]))
		CHECK(!syscall(SYS_futex, &s->word[i], FUTEX_WAIT, 0, &far, NULL, 0) || errno == EAGAIN, "a futex with a time limit: %s", strerror(errno));
}

static const struct kind timed_word = {.wait = timed_wait, .wake = word_wake, .waiters = WAITERS};

/* ---- mutexes ---- */

static void mutex_init(struct shared *s, int robust, int shared, int protocol)
{
	pthread_mutexattr_t a;

	pthread_mutexattr_init(&a);
	ZERO(pthread_mutexattr_setrobust(&a, robust));
	ZERO(pthread_mutexattr_setpshared(&a, shared));
	ZERO(pthread_mutexattr_setprotocol(&a, protocol));
	ZERO(pthread_mutex_init(&s->mutex, &a));
}

static void robust_init(struct shared *s)
{
	mutex_init(s, PTHREAD_MUTEX_ROBUST, PTHREAD_PROCESS_PRIVATE, PTHREAD_PRIO_NONE);
}

static void shared_init(struct shared *s)
{
	mutex_init(s, PTHREAD_MUTEX_STALLED, PTHREAD_PROCESS_SHARED, PTHREAD_PRIO_NONE);
}

static void inherit_init(struct shared *s)
{
	mutex_init(s, PTHREAD_MUTEX_STALLED, PTHREAD_PROCESS_PRIVATE, PTHREAD_PRIO_INHERIT);
}

static void inherit_robust_init(struct shared *s)
{
	mutex_init(s, PTHREAD_MUTEX_ROBUST, PTHREAD_PROCESS_SHARED, PTHREAD_PRIO_INHERIT);
}

static void mutex_hold(struct shared *s)
{
	ZERO(pthread_mutex_lock(&s->mutex));
}

static void mutex_wait(struct shared *s, int i)
{
	(void)i;
	ZERO(pthread_mutex_lock(&s->mutex));
	ZERO(pthread_mutex_unlock(&s->mutex));
}

static void mutex_wake(struct shared *s)
{
	ZERO(pthread_mutex_unlock(&s->mutex));
}

static const struct kind robust = {robust_init, mutex_hold, mutex_wait, mutex_wake, WAITERS};
static const struct kind shared_mutex = {shared_init, mutex_hold, mutex_wait, mutex_wake, WAITERS};
static const struct kind inherit = {inherit_init, mutex_hold, mutex_wait, mutex_wake, WAITERS};
static const struct kind inherit_robust = {inherit_robust_init, mutex_hold, mutex_wait, mutex_wake, WAITERS};

/* ---- a semaphore and a condition variable of kind PROCESS_SHARED ---- */

static void sem_start(struct shared *s)
{
	ZERO(sem_init(&s->sem, 1, 0));
}

static void sem_sleep(struct shared *s, int i)
{
	(void)i;
	ZERO(sem_wait(&s->sem));
}

static void sem_wake(struct shared *s)
{
	for (int i = 0; i < WAITERS; i++)
		ZERO(sem_post(&s->sem));
}

static const struct kind semaphore = {.init = sem_start, .wait = sem_sleep, .wake = sem_wake, .waiters = WAITERS};

static void cond_start(struct shared *s)
{
	pthread_condattr_t a;

	shared_init(s);
	pthread_condattr_init(&a);
	ZERO(pthread_condattr_setpshared(&a, PTHREAD_PROCESS_SHARED));
	ZERO(pthread_cond_init(&s->cond, &a));
}

static void cond_sleep(struct shared *s, int i)
{
	(void)i;
	ZERO(pthread_mutex_lock(&s->mutex));
	while (!s->ready)
		ZERO(pthread_cond_wait(&s->cond, &s->mutex));
	ZERO(pthread_mutex_unlock(&s->mutex));
}

static void cond_wake(struct shared *s)
{
	ZERO(pthread_mutex_lock(&s->mutex));
	s->ready = 1;
	ZERO(pthread_cond_broadcast(&s->cond));
	ZERO(pthread_mutex_unlock(&s->mutex));
}

static const struct kind condition = {.init = cond_start, .wait = cond_sleep, .wake = cond_wake, .waiters = WAITERS};

/* ---- waiting across a registration, a deregistration, or both ---- */

enum { AT_REG = 1, AT_DEREG = 2 };

static void *waiter(void *arg)
{
	int i = (int)(intptr_t)arg;

	tids[i] = my_tid();
	kind->wait(page, i);
	atomic_fetch_add(&woken, 1);
	return NULL;
}

static void across(const struct kind *k, int when)
{
	struct loop l = loop_open();
	struct buf b = {.mr = NULL};
	pthread_t threads[WAITERS];

	page = (struct shared *)anonymous(PAGE, 0);
	kind = k;
	if (k->init)
		k->init(page);
	if (k->hold)
		k->hold(page);
	if (!(when & AT_REG))
		b = reg(&l, page->buffer, sizeof(page->buffer));
	for (int i = 0; i < k->waiters; i++)
		threads[i] = thread_new(waiter, (void *)(intptr_t)i);
	for (int i = 0; i < k->waiters; i++)
		until_asleep(&tids[i]);
	if (when & AT_REG) {
		b = reg(&l, page->buffer, sizeof(page->buffer));
		prove(&l, &b, "registered beside the lock");
	}
	if (when & AT_DEREG)
		unreg(&b);
	k->wake(page);
	until_true(&woken, k->waiters, "woken");
	for (int i = 0; i < k->waiters; i++)
		pthread_join(threads[i], NULL);
	if (b.mr) {
		prove(&l, &b, "after they woke");
		unreg(&b);
	}
	loop_close(&l);
}

#define ACROSS(name, k)                                                                                                \
	static void name##_reg(void)                                                                                   \
	{                                                                                                              \
		across(&k, AT_REG);                                                                                    \
	}                                                                                                              \
	static void name##_dereg(void)                                                                                 \
	{                                                                                                              \
		across(&k, AT_DEREG);                                                                                  \
	}                                                                                                              \
	static void name##_both(void)                                                                                  \
	{                                                                                                              \
		across(&k, AT_REG | AT_DEREG);                                                                         \
	}

ACROSS(word, word)
ACROSS(timed_word, timed_word)
ACROSS(robust, robust)
ACROSS(shared_mutex, shared_mutex)
ACROSS(inherit, inherit)
ACROSS(inherit_robust, inherit_robust)
ACROSS(semaphore, semaphore)
ACROSS(condition, condition)

/* ---- a lock in use all the time ---- */

static _Atomic int stop;
static long counter;

static void *locker(void *arg)
{
	while (!atomic_load(&stop)) {
		ZERO(pthread_mutex_lock(&page->mutex));
		counter++;
		ZERO(pthread_mutex_unlock(&page->mutex));
		++*(long *)arg;
	}
	return NULL;
}

static void contended(void (*init)(struct shared *))
{
	struct loop l = loop_open();
	pthread_t t[3];
	long took[3] = {0};

	page = (struct shared *)anonymous(PAGE, 0);
	init(page);
	for (int i = 0; i < 3; i++)
		t[i] = thread_new(locker, &took[i]);
	for (long n = rounds(30); n > 0; n--) {
		struct buf b = reg(&l, page->buffer, sizeof(page->buffer));

		if (n % 8 == 0)
			prove(&l, &b, "beside a lock in use");
		unreg(&b);
		usleep(50);
	}
	atomic_store(&stop, 1);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	CHECK(counter == took[0] + took[1] + took[2], "%ld increments under a lock, want %ld", counter, took[0] + took[1] + took[2]);
	loop_close(&l);
}

static void inherit_contended(void)
{
	contended(inherit_init);
}

static void robust_contended(void)
{
	contended(robust_init);
}

static const struct vt_case cases[] = {
	{"word_reg", word_reg},
	{"word_dereg", word_dereg},
	{"word_both", word_both},
	{"timed_word_reg", timed_word_reg},
	{"timed_word_dereg", timed_word_dereg},
	{"timed_word_both", timed_word_both},
	{"robust_reg", robust_reg},
	{"robust_dereg", robust_dereg},
	{"robust_both", robust_both},
	{"shared_mutex_reg", shared_mutex_reg},
	{"shared_mutex_dereg", shared_mutex_dereg},
	{"shared_mutex_both", shared_mutex_both},
	{"inherit_reg", inherit_reg},
	{"inherit_dereg", inherit_dereg},
	{"inherit_both", inherit_both},
	{"inherit_robust_reg", inherit_robust_reg},
	{"inherit_robust_dereg", inherit_robust_dereg},
	{"inherit_robust_both", inherit_robust_both},
	{"semaphore_reg", semaphore_reg},
	{"semaphore_dereg", semaphore_dereg},
	{"semaphore_both", semaphore_both},
	{"condition_reg", condition_reg},
	{"condition_dereg", condition_dereg},
	{"condition_both", condition_both},
	{"inherit_contended", inherit_contended},
	{"robust_contended", robust_contended},
};

MAIN(cases)
