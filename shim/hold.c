/* SPDX-License-Identifier: Apache-2.0 */
/*
 * While pages are replaced no other thread of the process runs: there is none, or all are stopped
 * (halt.c). A stopped thread is between two instructions or two system calls, so it neither
 * writes to the pages nor has the kernel write there for it, and a futex that it waits on is
 * looked up again when it goes on.
 */
#include "hold.h"

#include <sched.h>
#include <sys/prctl.h>

#include "async.h"
#include "clock.h"
#include "halt.h"
#include "memory.h"
#include "tasks.h"

#define PATIENCE (2000 * MS)

enum company {
	ALONE,
	THREADS,
	STRANGER, /* a process that shares our memory and is no thread of ours */
};

/*
 * unshare(CLONE_VM) changes nothing. It succeeds only if no other task shares the address space. A
 * seccomp filter may kill the process for it, so under a filter the threads are counted instead.
 */
static enum company company(void)
{
	long r = hold_filtered() ? -EPERM : sys(SYS_unshare, CLONE_VM);
	if (r == 0)
		return ALONE;
	if (tasks_count() != 1)
		return THREADS;
	return r == -EINVAL || halt_shared() ? STRANGER : ALONE;
}

bool hold_filtered(void)
{
	return sys(SYS_prctl, PR_GET_SECCOMP, 0, 0, 0, 0) != 0;
}

/*
 * On a busy machine threads do not stop in time, but will a little later; memory that is copied is
 * slow for as long as it is registered. So it is tried for a while; not soon again if that was in vain,
 * nor where the answer came at once, which is a refusal.
 */
static bool halt(void)
{
	static uint64_t in_vain;
	uint64_t begin = clock_now(), last = begin, now;
	while (!halt_begin()) {
		now = clock_now();
		if (now - last < 3 * MS || now - begin > PATIENCE || now < in_vain) {
			in_vain = now + 5 * PATIENCE;
			return false;
		}
		clock_sleep(5 * MS);
		last = clock_now();
	}
	return true;
}

/* Stops the threads. 0, or why that must not be, or cannot. */
static enum vrdma_why stop(struct hold *h, enum async what)
{
	if (under_valgrind())
		return VRDMA_WHY_KERNEL;
	if (async_any(what))
		return VRDMA_WHY_ASYNC;
	enum company c = company();
	h->halted = c == THREADS && halt();
	if (c != ALONE && !h->halted)
		return VRDMA_WHY_RUNNING;
	if (!h->halted || !async_any(what)) /* again: until now they could make an io_uring */
		return 0;
	halt_end();
	return VRDMA_WHY_ASYNC;
}

bool hold_begin(struct hold *h, struct maps *m, enum hold_what what)
{
	static struct ranges untouchable;
	if (h->ready || h->refused)
		return h->ready;
	advice_lock(); /* no thread that is stopped may have it */
	h->refused = stop(h, what == HOLD_PRIVATE ? ASYNC_OPERATIONS : ASYNC_PINS);
	if (h->refused) {
		advice_unlock();
		return false;
	}
	h->ready = true;
	h->since = clock_now();
	h->memory = -1;
	mover_open(&h->mover);
	h->untouchable = &untouchable;
	/*
	 * On the way back only shared memory of threads matters. A thread whose descriptor does
	 * not lie in swapped memory has none, so the kernel need not be asked what is mapped there.
	 */
	h->complete = what == HOLD_PRIVATE || memory_moved || !m->query;
	/* The first thread's memory was never made shared, unless it runs on a stack of its own making. */
	if (what != HOLD_PRIVATE && !h->halted && sys(SYS_gettid) == sys(SYS_getpid)) {
		tasks_here(m, &untouchable);
		h->complete = true;
	} else {
		tasks_ranges(m, &untouchable, h->complete ? NULL : &swapped);
	}
	return true;
}

void hold_complete(struct hold *h, struct maps *m)
{
	if (!h->complete && m->query)
		tasks_ranges(m, h->untouchable, NULL);
	h->complete = true;
}

void hold_end(struct hold *h)
{
	if (!h->ready)
		return;
	h->ready = false;
	mover_close(&h->mover);
	if (h->memory >= 0)
		sys(SYS_close, h->memory);
	if (h->halted)
		halt_end();
	advice_unlock();
}

int hold_memory(struct hold *h)
{
	if (h->memory < 0)
		h->memory = maps_memory();
	return h->memory;
}

bool hold_long(const struct hold *h)
{
	return h->ready && h->halted && clock_now() - h->since > HOLD_TIME;
}

uint64_t hold_chunk(uint64_t start, uint64_t end)
{
	uint64_t stop = (start / HOLD_CHUNK + 1) * HOLD_CHUNK;
	return stop < end ? stop : end;
}
