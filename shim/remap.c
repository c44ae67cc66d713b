/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mremap on memory that is registered. A real NIC has the pages pinned: they move with the
 * mapping, and what is appended to it is new. Ours are pages of a file, and the kernel
 * would append the file's next pages, which are those of another buffer.
 *
 * The application's own calls come here: each piece moves by itself, and private memory is
 * appended. But realloc calls mremap inside libc. So a region that is large enough to be a
 * block of its own there gets a seam: a border between two mappings, by an advice to its
 * first page that means nothing for memory. The kernel does not let two mappings grow as one
 * (EFAULT), and realloc then copies.
 */
#include <sys/mman.h>

#include "memory.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#define BLOCK (128ul << 10) /* malloc's smallest block with a mapping of its own, unless told otherwise */
#define SEAMS_MAX 4096      /* each is two mappings, of which a process may have only so many */

static struct ranges seams; /* a page each */

void seams_add(uint64_t start, uint64_t end)
{
	struct range r;
	if (end - start >= BLOCK && seams.n < SEAMS_MAX && ranges_find(&swapped, start, start + PAGE, &r) &&
	    ranges_add(&seams, start, start + PAGE))
		seams_again(start, start + PAGE);
}

void seams_remove(uint64_t start, uint64_t end)
{
	if (seams.n)
		ranges_remove(&seams, start, end);
}

void seams_again(uint64_t start, uint64_t end)
{
	struct range r;
	for (; ranges_find(&seams, start, end, &r); start = r.end)
		sys(SYS_madvise, r.start, r.end - r.start, MADV_RANDOM);
}

void seams_forget(void)
{
	seams.n = 0;
}

/* ---- mremap ---- */

struct move {
	uint64_t from, size, new_size, to;
	int flags;
	int prot; /* of the last page */
};

static long map(uint64_t at, uint64_t n, int prot, int flags)
{
	return sys(SYS_mmap, at, n, prot, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

/* Is all of it mapped? */
static bool whole(struct move *m)
{
	struct vma v;
	uint64_t at = m->from, end = m->from + m->size;
	bool ok = maps_open(&memory_maps);
	if (!ok)
		return false;
	while (ok && at < end) {
		ok = maps_find(&memory_maps, at, &v) && v.start <= at;
		if (ok) {
			m->prot = v.prot;
			at = v.end;
		}
	}
	maps_close(&memory_maps);
	return ok;
}

/* Moves what is mapped of [from, from+n) to another place, mapping by mapping. */
static bool carry(uint64_t from, uint64_t n, uint64_t to)
{
	struct vma v;
	uint64_t end = from + n;
	bool ok = maps_open(&memory_maps);
	if (!ok)
		return false;
	memory_moved = true;
	for (uint64_t at = from; ok && at < end && maps_find(&memory_maps, at, &v) && v.start < end;
	     at = v.end) {
		uint64_t start = v.start > at ? v.start : at, size = (v.end < end ? v.end : end) - start;
		ok = !failed(sys(SYS_mremap, start, size, size, MREMAP_MAYMOVE | MREMAP_FIXED,
				 to + (start - from)));
	}
	maps_close(&memory_maps);
	return ok;
}

/* Grows where it stands. */
static bool append(const struct move *m)
{
	uint64_t end = m->from + m->size, n = m->new_size - m->size;
	long r = map(end, n, m->prot, MAP_FIXED_NOREPLACE);
	if (failed(r))
		return false;
	if ((uint64_t)r == end)
		return true;
	sys(SYS_munmap, r, n); /* an old kernel takes the address as a hint */
	return false;
}

static long move(struct move *m)
{
	uint64_t kept = m->size < m->new_size ? m->size : m->new_size;
	long r = m->flags & MREMAP_FIXED ? (long)m->to : map(0, m->new_size, PROT_NONE, MAP_NORESERVE);
	if (failed(r))
		return r;
	m->to = (uint64_t)r;
	if (m->new_size > m->size) {
		r = map(m->to + m->size, m->new_size - m->size, m->prot, MAP_FIXED);
		if (failed(r))
			return r;
	}
	if (!carry(m->from, kept, m->to)) {
		carry(m->to, kept, m->from);
		return -ENOMEM;
	}
	if (m->flags & MREMAP_DONTUNMAP)
		map(m->from, m->size, m->prot, MAP_FIXED);
	else if (m->size > kept)
		sys(SYS_munmap, m->from + kept, m->size - kept);
	return (long)m->to;
}

static bool valid(const struct move *m)
{
	bool fixed = m->flags & MREMAP_FIXED;
	if (m->flags & ~(MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP) ||
	    (fixed && !(m->flags & MREMAP_MAYMOVE)) || m->size == 0 || m->new_size == 0 ||
	    m->from % PAGE || (fixed && m->to % PAGE))
		return false;
	if (m->flags & MREMAP_DONTUNMAP && (m->size != m->new_size || !(m->flags & MREMAP_MAYMOVE)))
		return false;
	return !fixed || m->to >= m->from + m->size || m->from >= m->to + m->new_size;
}

/* Under memory_lock. The new address or -errno. */
static long remap(struct move *m)
{
	if (!valid(m))
		return -EINVAL;
	if (!whole(m))
		return -EFAULT;
	if (m->flags & (MREMAP_FIXED | MREMAP_DONTUNMAP))
		return move(m);
	if (m->new_size < m->size)
		sys(SYS_munmap, m->from + m->new_size, m->size - m->new_size);
	if (m->new_size <= m->size || append(m))
		return (long)m->from;
	return m->flags & MREMAP_MAYMOVE ? move(m) : -ENOMEM;
}

/* Is some of it ours? Not only where we put it: a mapping that was moved before is elsewhere. */
static bool overlaps(const struct move *m)
{
	struct range r;
	struct vma v = {.kind = VMA_SPECIAL};
	uint64_t end = m->from + (m->size ? m->size : PAGE);
	if (ranges_find(&swapped, m->from, end, &r))
		return true;
	if (!maps_open(&memory_maps))
		return false;
	for (uint64_t at = m->from; at < end && v.kind != VMA_OWN; at = v.end)
		if (!maps_find(&memory_maps, at, &v) || v.start >= end)
			break;
	maps_close(&memory_maps);
	return v.kind == VMA_OWN && v.start < end;
}

void *memory_mremap(void *old, size_t size, size_t new_size, int flags, void *to)
{
	struct move m = {(uint64_t)(uintptr_t)old, (size + PAGE - 1) & ~(PAGE - 1),
			 (new_size + PAGE - 1) & ~(PAGE - 1), (uint64_t)(uintptr_t)to, flags, 0};
	long r = -ENOSYS; /* not ours */

	if (memory_swapped() && !memory_forking()) {
		sigmask mask = signals_block();
		pthread_mutex_lock(&memory_lock);
		if (overlaps(&m))
			r = remap(&m);
		pthread_mutex_unlock(&memory_lock);
		signals_restore(mask);
	}
	if (r == -ENOSYS)
		return REAL(mremap)(old, size, new_size, flags, to);
	return failed(r) ? (errno = (int)-r, MAP_FAILED) : (void *)r;
}
