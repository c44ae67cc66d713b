/* SPDX-License-Identifier: Apache-2.0 */
/*
 * madvise. The application's advice about its memory is recorded, because it is lost each
 * time the memory is replaced. On shared pages, DONTNEED and FREE get the effect that they
 * have on private memory.
 *
 * The records have a lock of their own. An allocator may call madvise while it holds a lock
 * that a thread in fork() waits for, and that thread holds memory_lock.
 */
#include <sys/mman.h>

#include "memory.h"
#include "pages.h"

static struct ranges dontfork, dontdump, huge, nohuge, wipe, mergeable;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool any; /* was anything remembered, ever? */

static void say_again(const struct ranges *where, uint64_t start, uint64_t end, int advice)
{
	struct range r;
	for (; ranges_find(where, start, end, &r); start = r.end)
		sys(SYS_madvise, r.start, r.end - r.start, advice);
}

void advice_lock(void)
{
	pthread_mutex_lock(&lock);
}

void advice_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

void advice_shared(uint64_t start, uint64_t end)
{
	say_again(&dontfork, start, end, MADV_DONTFORK);
	say_again(&dontdump, start, end, MADV_DONTDUMP);
}

void advice_private(uint64_t start, uint64_t end)
{
	advice_shared(start, end);
	say_again(&huge, start, end, MADV_HUGEPAGE);
	say_again(&nohuge, start, end, MADV_NOHUGEPAGE);
	say_again(&wipe, start, end, MADV_WIPEONFORK);
	say_again(&mergeable, start, end, MADV_MERGEABLE);
}

void advice_inherited(uint64_t at, uint64_t start, uint64_t end)
{
	struct range r;
	for (uint64_t from = start; ranges_find(&dontfork, from, end, &r); from = r.end)
		sys(SYS_madvise, at + (r.start - start), r.end - r.start, MADV_DOFORK);
	for (uint64_t from = start; ranges_find(&wipe, from, end, &r); from = r.end)
		sys(SYS_madvise, at + (r.start - start), r.end - r.start, MADV_KEEPONFORK);
}

bool advice_dontfork(uint64_t start, uint64_t end, struct range *out)
{
	pthread_mutex_lock(&lock);
	bool found = ranges_find(&dontfork, start, end, out);
	pthread_mutex_unlock(&lock);
	return found;
}

/* In a fork child: clears memory that the application marked MADV_WIPEONFORK. */
void advice_wipe(uint64_t start, uint64_t end)
{
	struct range r;
	for (; ranges_find(&wipe, start, end, &r); start = r.end) {
		sys(SYS_madvise, r.start, r.end - r.start, MADV_DONTNEED);
		sys(SYS_madvise, r.start, r.end - r.start, MADV_WIPEONFORK);
	}
}

void advice_child(void)
{
	pthread_mutex_init(&lock, NULL);
}

static void remember(int advice, uint64_t start, uint64_t end)
{
	pthread_mutex_lock(&lock);
	switch (advice) {
	case MADV_DONTFORK:
		ranges_add(&dontfork, start, end);
		break;
	case MADV_DOFORK:
		ranges_remove(&dontfork, start, end);
		break;
	case MADV_DONTDUMP:
		ranges_add(&dontdump, start, end);
		break;
	case MADV_DODUMP:
		ranges_remove(&dontdump, start, end);
		break;
	case MADV_HUGEPAGE:
		ranges_remove(&nohuge, start, end);
		ranges_add(&huge, start, end);
		break;
	case MADV_NOHUGEPAGE:
		ranges_remove(&huge, start, end);
		ranges_add(&nohuge, start, end);
		break;
	case MADV_WIPEONFORK:
		ranges_add(&wipe, start, end);
		break;
	case MADV_KEEPONFORK:
		ranges_remove(&wipe, start, end);
		break;
	case MADV_MERGEABLE:
		ranges_add(&mergeable, start, end);
		break;
	case MADV_UNMERGEABLE:
		ranges_remove(&mergeable, start, end);
		break;
	}
	atomic_store(&any, true);
	pthread_mutex_unlock(&lock);
}

int memory_munmap(void *addr, size_t n)
{
	uint64_t start = (uint64_t)(uintptr_t)addr, end = (start + n + PAGE - 1) & ~(PAGE - 1);
	/* Before the call: after it, another thread may have the addresses. */
	if (unlikely(atomic_load_explicit(&any, memory_order_relaxed)) && end > start && !other_process()) {
		sigmask old = signals_block();
		pthread_mutex_lock(&lock);
		ranges_remove(&dontfork, start, end);
		ranges_remove(&dontdump, start, end);
		ranges_remove(&huge, start, end);
		ranges_remove(&nohuge, start, end);
		ranges_remove(&wipe, start, end);
		ranges_remove(&mergeable, start, end);
		pthread_mutex_unlock(&lock);
		signals_restore(old);
	}
	return REAL(munmap)(addr, n);
}

/* DONTNEED on private memory means zeros. Ours are shared pages, which it would leave alone. */
static void forget(uint64_t start, uint64_t end)
{
	struct vma v;
	if (!maps_open(&memory_maps))
		return;
	for (uint64_t at = start; at < end && maps_find(&memory_maps, at, &v); at = v.end) {
		uint64_t from = v.start > at ? v.start : at, to = v.end < end ? v.end : end;
		if (v.kind == VMA_OWN && from < to)
			pages_punch(v.offset + (from - v.start), v.offset + (to - v.start));
	}
	maps_close(&memory_maps);
}

/* May some of it be shared? */
static bool overlaps(uint64_t start, uint64_t end)
{
	struct range r;
	return memory_moved || ranges_find(&swapped, start, end, &r);
}

/*
 * Makes the call, and gives it the same effect on shared pages. Both are under the lock: memory that
 * another thread makes private in between would keep its bytes.
 */
static int discard(void *addr, size_t n, uint64_t end, int advice)
{
	uint64_t start = (uint64_t)(uintptr_t)addr;
	pthread_mutex_lock(&memory_lock);
	int r = REAL(madvise)(addr, n, advice);
	if (advice == MADV_DONTNEED && r == 0 && overlaps(start, end))
		forget(start, end);
	else if (advice == MADV_FREE && r < 0 && errno == EINVAL && overlaps(start, end))
		r = 0; /* may free, need not */
	pthread_mutex_unlock(&memory_lock);
	return r;
}

int memory_madvise(void *addr, size_t n, int advice)
{
	uint64_t start = (uint64_t)(uintptr_t)addr, end = (start + n + PAGE - 1) & ~(PAGE - 1);
	sigmask old;
	int r, e;

	if ((advice == MADV_DONTNEED || advice == MADV_FREE) && memory_swapped() && !memory_forking()) {
		old = signals_block();
		r = discard(addr, n, end, advice);
		e = errno;
		signals_restore(old);
		errno = e;
		return r;
	}
	r = REAL(madvise)(addr, n, advice);
	e = errno;
	switch (advice) {
	case MADV_DONTFORK:
	case MADV_DOFORK:
	case MADV_DONTDUMP:
	case MADV_DODUMP:
	case MADV_HUGEPAGE:
	case MADV_NOHUGEPAGE:
	case MADV_WIPEONFORK:
	case MADV_KEEPONFORK:
	case MADV_MERGEABLE:
	case MADV_UNMERGEABLE:
		if (r < 0)
			return r;
		break;
	default:
		return r;
	}
	old = signals_block();
	remember(advice, start, end);
	signals_restore(old);
	errno = e;
	return r;
}
