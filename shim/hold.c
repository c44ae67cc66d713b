/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writers are held back by userfaultfd if it is there and can protect shared pages too
 * (protect.c), else all threads are stopped (halt.c), else nothing helps and chunks are small.
 */
#include "hold.h"

#include "halt.h"
#include "memory.h"
#include "tasks.h"

void hold_begin(struct hold *h, struct maps *m, enum hold_what what)
{
	static struct ranges untouchable;
	if (h->ready)
		return;
	h->ready = true;
	advice_lock(); /* nobody who is stopped may have it */
	h->halted = false;
	h->guard.fd = -1;
	h->untouchable = &untouchable;
	h->alone = tasks_count() == 1;
	if (!h->alone && what == HOLD_ALL)
		h->alone = h->halted = halt_begin();
	if (!h->alone && guard_open(&h->guard, false) && what != HOLD_PRIVATE && !h->guard.shmem)
		guard_close(&h->guard);
	if (!h->alone && h->guard.fd < 0 && what != HOLD_ALL)
		h->alone = h->halted = halt_begin();
	/*
	 * On the way back only shared memory of threads matters. A thread whose descriptor does
	 * not lie in swapped memory has none, so the kernel need not be asked what is mapped there.
	 */
	h->complete = what == HOLD_PRIVATE || memory_moved || !m->query;
	/* The first thread's memory was never made shared, unless it runs on a stack of its own making. */
	if (what != HOLD_PRIVATE && h->alone && !h->halted && sys(SYS_gettid) == sys(SYS_getpid)) {
		tasks_here(m, &untouchable);
		h->complete = true;
	} else {
		tasks_ranges(m, &untouchable, h->complete ? NULL : &swapped);
	}
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
	guard_close(&h->guard);
	if (h->halted)
		halt_end();
	advice_unlock();
}

uint64_t hold_chunk(const struct hold *h, uint64_t start, uint64_t end)
{
	uint64_t size = h->alone || h->guard.fd >= 0 ? HOLD_CHUNK : HOLD_CHUNK_UNGUARDED;
	uint64_t stop = (start / size + 1) * size;
	return stop < end ? stop : end;
}
