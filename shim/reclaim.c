/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way back: shared pages become private memory again, when the daemon that they
 * were shared with is gone and the process is about to meet another one. Writers are
 * held back as at registration.
 */
#include <sys/mman.h>

#include "memory.h"
#include "tasks.h"

struct reclaim {
	struct guard guard;
	struct vma found;
	bool any, failed;
};

static bool first(const struct vma *v, void *arg)
{
	struct reclaim *r = arg;
	r->found = *v;
	r->any = true;
	return false;
}

static bool copy(uint64_t to, const struct vma *v)
{
	uint64_t n = v->end - v->start, done = 0;
	while (done < n) {
		long got = sys(SYS_pread64, atomic_load(&process.memory), to + done, n - done,
			       v->offset + done);
		if (got <= 0)
			return false;
		done += (uint64_t)got;
	}
	return true;
}

static bool make_private(struct guard *g, const struct vma *v)
{
	uint64_t n = v->end - v->start;
	bool held = false, ok = false;
	long at = sys(SYS_mmap, NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (failed(at))
		return false;
	swap_begin();
	if (g->fd >= 0)
		held = guard_hold(g, v->start, v->end);
	if (copy((uint64_t)at, v) && sys(SYS_mprotect, at, n, v->prot) == 0)
		ok = !failed(sys(SYS_mremap, at, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, v->start));
	if (held && ok)
		guard_wake(g, v->start, v->end);
	else if (held)
		guard_undo(g, v->start, v->end);
	swap_end();
	if (!ok)
		sys(SYS_munmap, at, n);
	return ok;
}

bool memory_reclaim(void)
{
	struct reclaim r = {.guard = {.fd = -1}};
	pthread_mutex_lock(&memory_lock);
	if (memory_swapped() && tasks_count() != 1)
		guard_open(&r.guard, false);
	while (memory_swapped() && !r.failed) {
		r.any = false;
		own_mappings(first, &r);
		if (!r.any)
			break;
		r.failed = !make_private(&r.guard, &r.found);
	}
	guard_close(&r.guard);
	if (!r.failed)
		memory_forget();
	pthread_mutex_unlock(&memory_lock);
	return !r.failed;
}
