/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaces private pages by pages of the memfd without losing a byte. Other threads are stopped. Still
 * running are other processes (process_vm_writev), kernel threads, and devices that have pinned pages.
 *
 *   by moving (UFFDIO_MOVE)        by remapping (other kernels, mappings that it refuses)
 *   watch the range                mremap it elsewhere: a hole is left
 *   move its pages to a scratch    find pinned pages: fork, and look at pagemap
 *   area; pinned ones stay         (a fork child gets a copy of a pinned page at once)
 *   copy them to the memfd         copy the others to the memfd
 *   map the memfd there            map the memfd there; move pinned ones back
 *
 * From the second step on the pages have no address: an access from outside finds a missing page
 * or a hole, and fails or waits. So the pages cannot be pinned after the second step, and the copy
 * has all writes. shim/README.md has the complete argument.
 *
 * Any failure puts the pages back.
 */
#include "replace.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/utsname.h>

#include "bare.h"
#include "memory.h"
#include "pages.h"
#include "scratch.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif
#define PAGES (HOLD_CHUNK / PAGE)
#define PAGEMAP_EXISTS (3ull << 62) /* in memory or in swap */
#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_FILE (1ull << 61)
#define PAGEMAP_GUARD (1ull << 58)
#define PAGEMAP_ONCE (1ull << 56) /* mapped by one process only */
#define PATIENCE 64 /* times to look again at a page that seems pinned: process_vm_writev pins for microseconds */

static struct {
	uint64_t start, end;
	unsigned char fate[PAGES];
	uint64_t bits[PAGES]; /* of pagemap */
	unsigned patience;
} piece;

static int memfd(void)
{
	return atomic_load(&process.memory);
}

static size_t index_of(uint64_t at)
{
	return (at - piece.start) / PAGE;
}

enum fate replace_fate(uint64_t at, uint64_t *to)
{
	size_t i = index_of(at), n = index_of(piece.end), j = i;
	while (j < n && piece.fate[j] == piece.fate[i])
		j++;
	*to = piece.start + j * PAGE;
	return (enum fate)piece.fate[i];
}

bool replace_any(void)
{
	uint64_t to;
	for (uint64_t at = piece.start; at < piece.end; at = to)
		if (replace_fate(at, &to) == FATE_OWN)
			return true;
	return false;
}

/* Reads the pagemap entries of [at, at+n) into piece.bits. */
static bool look(uint64_t at, uint64_t n)
{
	int fd = maps_file("pagemap");
	if (fd < 0)
		return false;
	long got = sys(SYS_pread64, fd, piece.bits, n / PAGE * 8, at / PAGE * 8);
	sys(SYS_close, fd);
	return got == (long)(n / PAGE * 8);
}

/* ---- copying ---- */

/* Copies the pages to be replaced, now at from. With existing, only those that the pagemap has. */
static bool copy_out(uint64_t from, bool existing)
{
	size_t n = index_of(piece.end);
	existing = existing && look(from, piece.end - piece.start);
	for (size_t i = 0, j; i < n; i = j) {
		bool take = piece.fate[i] == FATE_OWN && (!existing || (piece.bits[i] & PAGEMAP_EXISTS));
		for (j = i + 1; j < n; j++)
			if ((piece.fate[j] == FATE_OWN && (!existing || (piece.bits[j] & PAGEMAP_EXISTS))) != take)
				break;
		if (take && !pages_write(from + i * PAGE, (j - i) * PAGE, piece.start + i * PAGE))
			return false;
	}
	return true;
}

/* ---- mapping ---- */

void attributes_read(struct attributes *a, uint64_t start, uint64_t end)
{
	memset(a, 0, sizeof *a);
	/* msync(MS_INVALIDATE) fails with EBUSY on a range with VM_LOCKED, for every caller. */
	a->locked = sys(SYS_msync, start, end - start, MS_INVALIDATE) == -EBUSY;
	if (hold_filtered() || sys(SYS_get_mempolicy, &a->mode, a->nodes, sizeof a->nodes * 8, start,
				   2 /* MPOL_F_ADDR */) < 0)
		a->mode = 0;
}

void attributes_say(const struct attributes *a, uint64_t start, uint64_t end)
{
	if (a->mode)
		sys(SYS_mbind, start, end - start, a->mode, a->nodes, sizeof a->nodes * 8, 0);
}

/* Locks the pages that exist, and each other page at its first access. After mlock, all pages existed. */
void attributes_lock(uint64_t start, uint64_t end)
{
	sys(SYS_mlock2, start, end - start, MLOCK_ONFAULT);
}

/* Marks pages that were to be replaced as kept. */
static void keep(uint64_t at, uint64_t to)
{
	for (; at < to; at += PAGE)
		if (piece.fate[index_of(at)] == FATE_OWN)
			piece.fate[index_of(at)] = FATE_KEPT;
}

/* Maps the memfd over the pages to be replaced. */
static void map_over(const struct vma *v, const struct attributes *a)
{
	uint64_t to;
	for (uint64_t at = piece.start; at < piece.end; at = to) {
		if (replace_fate(at, &to) != FATE_OWN)
			continue;
		if (failed(sys(SYS_mmap, at, to - at, v->prot, MAP_SHARED | MAP_FIXED, memfd(), at))) {
			keep(at, to);
			continue;
		}
		attributes_say(a, at, to);
		advice_shared(at, to);
	}
}

static void lock_again(void)
{
	uint64_t to;
	for (uint64_t at = piece.start; at < piece.end; at = to)
		if (replace_fate(at, &to) == FATE_OWN)
			attributes_lock(at, to);
}

/* Pages can be neither replaced nor restored. To continue would corrupt memory silently. */
static void give_up(void)
{
	complain("registered memory can be neither replaced nor put back: the program ends");
	abort();
}

/* ---- by moving ---- */

/*
 * After a fork, even when the child is gone, and where pages were merged, a page is moved only
 * when it has been written again. Only pages that exist: a missing one would wait for us.
 */
static void unshare_run(uint64_t at, uint64_t *upto)
{
	size_t n = (piece.end - at) / PAGE, i = 0;
	if (look(at, piece.end - at))
		while (i < n && (piece.bits[i] & PAGEMAP_EXISTS) && !(piece.bits[i] & PAGEMAP_GUARD))
			i++;
	*upto = at + (i ? i : 1) * PAGE;
	if (i)
		sys(SYS_madvise, at, i * PAGE, MADV_POPULATE_WRITE);
}

/* Moves the piece to scratch. 0 or -errno; where at least is how far it came. */
static long move_out(struct mover *m, uint64_t scratch, uint64_t *at)
{
	uint64_t unshared = 0, done;
	unsigned tries = 0;
	while (*at < piece.end) {
		long e = mover_move(m, scratch + (*at - piece.start), *at, piece.end - *at, &done);
		*at += done;
		if (done)
			tries = 0;
		if (e == 0 || done)
			continue;
		if (e == -EFAULT) {
			piece.fate[index_of(*at)] = FATE_GUARD;
		} else if (e == -EBUSY || e == -EAGAIN) {
			if (*at >= unshared) {
				unshare_run(*at, &unshared);
				continue;
			}
			if (tries++ < PATIENCE && piece.patience++ < 8 * PATIENCE) {
				sys(SYS_sched_yield);
				continue;
			}
			piece.fate[index_of(*at)] = FATE_PINNED;
		} else if (e != -ENOENT) {
			return e;
		}
		tries = 0;
		*at += PAGE;
	}
	return 0;
}

static void move_run_back(struct mover *m, uint64_t scratch, uint64_t at, uint64_t end)
{
	uint64_t done;
	for (unsigned tries = 0; at < end;) {
		uint64_t from = scratch + (at - piece.start);
		long e = mover_move(m, at, from, end - at, &done);
		at += done;
		if (e == 0 || done) {
			tries = 0;
		} else if (tries++ > PATIENCE) {
			if (failed(sys(SYS_mremap, from, end - at, end - at, MREMAP_MAYMOVE | MREMAP_FIXED, at)))
				give_up();
			return;
		} else {
			sys(SYS_sched_yield);
		}
	}
}

/* What was moved and is not replaced returns. */
static void move_back(struct mover *m, uint64_t scratch, uint64_t moved)
{
	uint64_t to;
	for (uint64_t at = piece.start; at < moved; at = to) {
		enum fate f = replace_fate(at, &to);
		if (to > moved)
			to = moved;
		if (f == FATE_KEPT)
			move_run_back(m, scratch, at, to);
	}
}

static enum vrdma_why why_of(long e)
{
	switch (-e) {
	case EINVAL: /* not such a mapping: a protection key */
	case EBUSY:  /* the program's own userfaultfd */
		return VRDMA_WHY_SPECIAL;
	case ENOTTY:
		return VRDMA_WHY_KERNEL;
	default:
		return VRDMA_WHY_MEMORY;
	}
}

static enum vrdma_why by_moving(struct mover *m, const struct vma *v, const struct attributes *a)
{
	uint64_t n = piece.end - piece.start, at = piece.start;
	struct scratch s;
	if (scratch_map(&s, piece.start, n) < 0)
		return VRDMA_WHY_MEMORY;
	uint64_t to = s.at;
	long e = mover_watch(m, to, to + n);
	if (e == 0)
		e = mover_watch(m, piece.start, piece.end);
	if (e < 0) {
		scratch_unmap(&s);
		return why_of(e);
	}
	e = move_out(m, to, &at);
	/*
	 * This waits for all readers of our mappings: a write through /proc/PID/mem that found its
	 * page before it moved has then ended.
	 */
	mover_unwatch(m, to, to + n);
	if (e == 0 && !copy_out(to, true))
		e = -ENOMEM;
	if (e < 0)
		keep(piece.start, piece.end);
	map_over(v, a);
	move_back(m, to, at);
	mover_unwatch(m, piece.start, piece.end);
	mover_wake(m, piece.start, piece.end);
	scratch_unmap(&s);
	return e < 0 ? why_of(e) : 0;
}

/* ---- by remapping ---- */

static _Atomic int witness; /* the child: the kernel writes its number there */

/* The child lives until it is killed; its copies of page tables are all that matters. */
static void bear_witness(void)
{
	sys(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	for (;;)
		sys(SYS_ppoll, NULL, 0, NULL, NULL, 8);
}

/* Since Linux 5.9 a fork copies pinned pages at once. */
static bool forks_copy(void)
{
	struct utsname u;
	int major = 0, minor = 0;
	if (sys(SYS_uname, &u) < 0)
		return false;
	const char *c = u.release;
	for (; *c >= '0' && *c <= '9'; c++)
		major = major * 10 + (*c - '0');
	if (*c == '.')
		for (c++; *c >= '0' && *c <= '9'; c++)
			minor = minor * 10 + (*c - '0');
	return major > 5 || (major == 5 && minor >= 10);
}

/* Finds the pinned pages of the piece, which is at area now. 0, or why that is not known. */
static enum vrdma_why find_pinned(uint64_t area, bool anonymous)
{
	static unsigned char stack[4096] __attribute__((aligned(16)));
	uint64_t n = piece.end - piece.start;
	if (!look(area, n))
		return VRDMA_WHY_KERNEL;
	size_t i = 0;
	while (i < n / PAGE && !(piece.bits[i] & PAGEMAP_PRESENT))
		i++;
	if (i == n / PAGE && anonymous)
		return 0; /* what does not exist is not pinned */
	if (!forks_copy())
		return VRDMA_WHY_KERNEL;
	sys(SYS_madvise, area, n, MADV_DOFORK); /* see forkable in rejoin.c */
	advice_inherited(area, piece.start, piece.end);
	/* No signal tells of its end, and wait() does not see it. */
	long pid = clone_bare(bear_witness, stack + sizeof stack,
			      CLONE_FILES | CLONE_FS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID, &witness);
	if (pid < 0)
		return VRDMA_WHY_MEMORY;
	bool known = look(area, n);
	sys(SYS_kill, pid, SIGKILL);
	sys(SYS_wait4, pid, NULL, 0x40000000 /* __WALL */, NULL);
	for (i = 0; known && i < n / PAGE; i++) {
		if (piece.bits[i] & PAGEMAP_GUARD)
			piece.fate[i] = FATE_GUARD;
		else if ((piece.bits[i] & (PAGEMAP_PRESENT | PAGEMAP_ONCE)) == (PAGEMAP_PRESENT | PAGEMAP_ONCE) &&
			 !(piece.bits[i] & PAGEMAP_FILE))
			piece.fate[i] = FATE_PINNED;
	}
	return known ? 0 : VRDMA_WHY_KERNEL;
}

/* Moves the pages that are not replaced back to their addresses. */
static void remap_back(uint64_t area)
{
	uint64_t to;
	for (uint64_t at = piece.start; at < piece.end; at = to) {
		if (replace_fate(at, &to) == FATE_OWN)
			continue;
		if (failed(sys(SYS_mremap, area + (at - piece.start), to - at, to - at,
			       MREMAP_MAYMOVE | MREMAP_FIXED, at)))
			give_up();
		advice_private(at, to);
	}
}

/* Does the program use protection keys? A mapping of ours would not have them. */
static bool keys_used(void)
{
	long key = hold_filtered() ? -1 : sys(SYS_pkey_alloc, 0, 0);
	if (key > 0)
		sys(SYS_pkey_free, key);
	return key > 1; /* 0 is everybody's */
}

static enum vrdma_why by_remapping(const struct vma *v, const struct attributes *a)
{
	uint64_t n = piece.end - piece.start;
	if (keys_used())
		return VRDMA_WHY_SPECIAL;
	long r = sys(SYS_mmap, NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (failed(r))
		return VRDMA_WHY_MEMORY;
	uint64_t area = (uint64_t)r;
	if (failed(sys(SYS_mremap, piece.start, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, area))) {
		sys(SYS_munmap, area, n);
		return VRDMA_WHY_MEMORY;
	}
	/* A hole: but nothing of ours may get its address. */
	enum vrdma_why why = VRDMA_WHY_MEMORY;
	if (!failed(sys(SYS_mmap, piece.start, n, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0)))
		why = find_pinned(area, v->kind == VMA_ANONYMOUS);
	if (!why && !copy_out(area, v->kind == VMA_ANONYMOUS))
		why = VRDMA_WHY_MEMORY;
	if (why)
		keep(piece.start, piece.end);
	map_over(v, a);
	remap_back(area);
	sys(SYS_munmap, area, n);
	if (a->locked)
		lock_again();
	return why;
}

/* ---- one piece ---- */

enum vrdma_why replace_pages(struct hold *h, uint64_t start, uint64_t end, const struct vma *v)
{
	struct attributes a;
	piece.start = start;
	piece.end = end;
	piece.patience = 0;
	memset(piece.fate, FATE_OWN, sizeof piece.fate);
	attributes_read(&a, start, end);
	if (h->mover.fd >= 0 && v->kind == VMA_ANONYMOUS && (v->prot & PROT_WRITE) && !a.locked) {
		enum vrdma_why why = by_moving(&h->mover, v, &a);
		if (why != VRDMA_WHY_KERNEL)
			return why;
		mover_close(&h->mover);
		memset(piece.fate, FATE_OWN, sizeof piece.fate);
	}
	return by_remapping(v, &a);
}
