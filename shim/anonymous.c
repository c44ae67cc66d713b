/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared anonymous memory: mmap with MAP_SHARED and MAP_ANONYMOUS. The kernel makes a file of tmpfs for
 * each such mapping, which only root can open. An ordinary user's daemon needs a descriptor. So libc's
 * mmap comes here: it maps a piece of a memfd of this process instead, an area. Both are the same kind of
 * memory to the kernel. Only mappings of 64 KiB or more for reading and writing become areas, and only
 * where the daemon needs descriptors. The kernel's own mapping is made first, so the kernel
 * decides about addresses, limits and errors. It stays if anything fails.
 *
 *   generation   a memfd, 4 EiB long and sparse. A process has one, until it forks.
 *   area         one mmap: a range of the file that is never used again, 64 GiB or more from
 *                the next one. So mremap can lengthen it.
 *
 * The kernel frees the pages of a shared mapping when no process maps any of them. Here sweep punches
 * the area out of the file, after two checks:
 *
 *   No part of it is mapped in this process, by /proc/self/maps. The addresses that are kept here are
 *   hints: a direct system call may have moved or removed a mapping.
 *
 *   No other process maps it. A process can get it only by fork. Each generation has a private page, its
 *   mark, which is not written. A child of fork or of a direct clone shares that page until it ends or
 *   execs. Bit 56 of pagemap says whether the page is shared. maps is read first: if a child was forked
 *   while the area was mapped, the mark is shared afterwards.
 *
 * While a generation is shared, new areas go to a new one. So a fork child can reach no memory that
 * its parent maps later, and no two processes give out the same offsets. A process closes a
 * generation of which it maps nothing any more, and writes its mark: then the other process is alone with
 * it, and frees memory itself. Where GENERATIONS are in use, memory is the kernel's own.
 *
 * A process that confines itself (seccomp) keeps its areas until it ends, and makes no new ones.
 *
 * The lock is taken before memory_lock, and not held while fork runs: an area counts from one store
 * on, which a child sees or does not.
 */
#include "anonymous.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "filters.h"
#include "memory.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MAP_32BIT
#define MAP_32BIT 0
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define NAME "shared-anonymous"
#define SMALLEST (64ul << 10)
#define FILE_SIZE (1ul << 62)
#define APART (64ul << 30) /* room to grow; a multiple of every huge page, for the file is aligned as the kernel's own */
#define AREAS 4096
#define GENERATIONS 16
/* A sweep reads all mappings, so it waits until this much is to be freed. */
#define SWEEP_BYTES (1ul << 20)
#define SWEEP_AREAS 32
#define AUDIT_EVERY 256 /* new areas: a bare system call may have unmapped others */
#define PAGEMAP_ONLY_OURS (1ull << 63 | 1ull << 56) /* in memory, and mapped once */
#define PAGEMAP_MASK (PAGEMAP_ONLY_OURS | 3ull << 61)

typedef void *mapper(void *, size_t, int, int, int, off_t);

struct generation {
	_Atomic int fd; /* hidden; -1: none */
	bool mine;      /* this process made it, its parent did not */
	bool seen;      /* a mapping of it, in a sweep */
	uint64_t device, inode;
	uint64_t next; /* the offset of the next area */
};

enum state { FREE, MAPPED, UNMAPPED };

struct area {
	_Atomic int state; /* enum state */
	unsigned generation;
	_Atomic uint64_t start, end; /* where it is mapped, as far as is known */
	uint64_t offset, limit;      /* in the file */
};

static struct generation generations[GENERATIONS] = {[0 ... GENERATIONS - 1] = {.fd = -1}};
static struct area areas[AREAS];
static _Atomic unsigned used;     /* areas from here on never were */
static volatile char *marks;      /* a page for each generation */
static unsigned unmapped;         /* areas since the last sweep, and their bytes */
static uint64_t unmapped_bytes;
static unsigned waiting;          /* areas that are unmapped here, and that another process may have */
static unsigned made;             /* areas, ever */
static struct maps maps;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all of these */
static _Atomic bool confined;
static _Atomic(mapper *) next_mmap, next_mmap64;

/* ---- whether ---- */

/* In a child, under the filters of the program: every call that is made below. */
static int try_calls(void)
{
	char text[64];
	struct rlimit limit;
	long fd = sys(SYS_memfd_create, NAME, MFD_CLOEXEC);
	if (fd < 0 || sys(SYS_ftruncate, fd, FILE_SIZE) || sys(SYS_fstat, fd, &(struct stat){0}) ||
	    sys(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) ||
	    sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 10) < 0 || sys(SYS_prlimit64, 0, RLIMIT_FSIZE, NULL, &limit))
		return 1;
	long at = sys(SYS_mmap, NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	if (failed(at) || sys(SYS_madvise, at, PAGE, MADV_NOHUGEPAGE) == -EPERM || sys(SYS_mprotect, at, PAGE, PROT_NONE))
		return 2;
	fd = maps_file("maps");
	if (fd < 0 || sys(SYS_read, fd, text, sizeof text) <= 0 || sys(SYS_lseek, fd, 0, SEEK_SET) != 0)
		return 3;
	sys(SYS_ioctl, fd, 0, text);
	fd = maps_file("pagemap");
	return fd < 0 || sys(SYS_pread64, fd, text, 8, 0) < 0;
}

enum answer { UNKNOWN, YES, NO };

/* Is memory accounted strictly? That counts the kernel's own mappings when they are made, and a memfd's pages later. */
static enum answer accounted_strictly(void)
{
	char mode = 0;
	long fd = sys(SYS_openat, AT_FDCWD, "/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return UNKNOWN;
	sys(SYS_read, fd, &mode, 1);
	sys(SYS_close, fd);
	return mode == '0' || mode == '1' ? NO : YES;
}

/* May a process with our rights open files behind mappings? The daemon tries the same. */
static enum answer opens_files(void)
{
	char link[64];
	long at = sys(SYS_mmap, NULL, PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (failed(at))
		return UNKNOWN;
	snprintf(link, sizeof link, "/proc/self/map_files/%lx-%lx", at, at + (long)PAGE);
	long fd = sys(SYS_openat, AT_FDCWD, link, O_PATH | O_CLOEXEC);
	if (fd >= 0)
		sys(SYS_close, fd);
	sys(SYS_munmap, at, PAGE);
	if (fd >= 0 || fd == -ENOENT)
		return YES;
	return fd == -EPERM || fd == -EACCES ? NO : UNKNOWN;
}

static enum answer opposite(enum answer a)
{
	return a == YES ? NO : a == NO ? YES : UNKNOWN;
}

/* Will the daemon need descriptors? Before the process has connected, the owner of the socket decides. */
static enum answer foreseen(void)
{
	struct stat st;
	if (sys(SYS_newfstatat, AT_FDCWD, settings()->socket, &st, 0) < 0)
		return UNKNOWN;
	return st.st_uid == (uid_t)sys(SYS_geteuid) ? opposite(opens_files()) : NO;
}

static enum answer permitted(void)
{
	if (sys(SYS_prctl, PR_GET_SECCOMP, 0, 0, 0, 0) != 0 && !filters_survive(try_calls))
		return NO;
	return opposite(accounted_strictly());
}

/* An answer that is asked for until it is known. */
static bool once(_Atomic int *answer, enum answer (*ask)(void))
{
	if (atomic_load(answer) == UNKNOWN)
		atomic_store(answer, (int)ask());
	return atomic_load(answer) == YES;
}

static bool wanted(void)
{
	static _Atomic int foresight, permission;
	const uint32_t needs = VRDMA_MAPS_SHARED | VRDMA_MAPS_DESCRIPTORS;
	bool needed = atomic_load(&process.socket) >= 0 ? (atomic_load(&process.maps) & needs) == needs
							 : once(&foresight, foreseen);
	return needed && once(&permission, permitted);
}

/* ---- generations ---- */

/* Is the descriptor still that of the file? A bare system call can close it. */
static bool intact(const struct generation *g)
{
	struct stat st;
	int fd = atomic_load(&g->fd);
	return fd >= 0 && sys(SYS_fstat, fd, &st) == 0 && st.st_dev == g->device && st.st_ino == g->inode;
}

int anonymous_file(const struct vma *v)
{
	for (struct generation *g = generations; g < generations + GENERATIONS; g++)
		if (v->inode == g->inode && v->device == g->device && intact(g))
			return atomic_load(&g->fd);
	return -1;
}

_Atomic int *anonymous_holder(int fd)
{
	for (struct generation *g = generations; g < generations + GENERATIONS; g++)
		if (atomic_load(&g->fd) == fd)
			return &g->fd;
	return NULL;
}

/* Reads which generations no other process shares, a bit each. */
static unsigned alone(void)
{
	uint64_t bits[GENERATIONS] = {0};
	unsigned set = 0;
	int fd = maps_file("pagemap");
	if (fd < 0)
		return 0;
	sys(SYS_pread64, fd, bits, sizeof bits, (uintptr_t)marks / PAGE * 8);
	sys(SYS_close, fd);
	for (unsigned i = 0; i < GENERATIONS; i++)
		if ((bits[i] & PAGEMAP_MASK) == PAGEMAP_ONLY_OURS)
			set |= 1u << i;
	return set;
}

/*
 * Gives the generation a mark of its own. The page has no access rights: if it was swapped out, and an
 * access in one of two processes swapped it in, the kernel would count it as mapped once.
 */
static void make_mark(unsigned i)
{
	if (sys(SYS_mprotect, marks + i * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0)
		marks[i * PAGE]++;
	sys(SYS_mprotect, marks + i * PAGE, PAGE, PROT_NONE);
}

static bool make_marks(void)
{
	long r = sys(SYS_mmap, NULL, GENERATIONS * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (failed(r))
		return false;
	sys(SYS_madvise, r, GENERATIONS * PAGE, MADV_NOHUGEPAGE); /* each must be a page that is counted by itself */
	marks = (volatile char *)r;
	return true;
}

/* A sparse file. A limit on the size of files would end the program with SIGXFSZ. */
static int make_file(void)
{
	struct rlimit limit = {0};
	if (sys(SYS_prlimit64, 0, RLIMIT_FSIZE, NULL, &limit) < 0 || limit.rlim_cur != RLIM_INFINITY)
		return -1;
	int fd = (int)sys(SYS_memfd_create, NAME, MFD_CLOEXEC | MFD_NOEXEC_SEAL);
	if (fd == -EINVAL) /* before Linux 6.3 */
		fd = (int)sys(SYS_memfd_create, NAME, MFD_CLOEXEC);
	if (fd < 0)
		return -1;
	if (sys(SYS_ftruncate, fd, FILE_SIZE) == 0 && fd_hide(&fd))
		return fd;
	sys(SYS_close, fd);
	return -1;
}

static bool generation_new(unsigned i)
{
	struct generation *g = &generations[i];
	struct stat st;
	if (!marks && !make_marks())
		return false;
	make_mark(i);
	if (!(alone() >> i & 1))
		return false; /* this kernel, or this process, cannot tell */
	int fd = make_file();
	if (fd < 0)
		return false;
	sys(SYS_fstat, fd, &st);
	g->device = st.st_dev;
	g->inode = st.st_ino;
	g->next = 0;
	g->mine = true;
	atomic_store(&g->fd, fd);
	return true;
}

/* The generation for a new area of n bytes; NULL: there cannot be one. */
static struct generation *current(uint64_t n)
{
	unsigned set = marks ? alone() : 0;
	for (unsigned i = 0; i < GENERATIONS; i++) {
		struct generation *g = &generations[i];
		if (set >> i & 1 && g->mine && n <= FILE_SIZE / 2 && g->next <= FILE_SIZE / 2 && intact(g))
			return g;
	}
	for (unsigned i = 0; i < GENERATIONS; i++)
		if (atomic_load(&generations[i].fd) < 0)
			return generation_new(i) ? &generations[i] : NULL;
	return NULL;
}

/* Nothing of it is mapped here. */
static void generation_close(unsigned i)
{
	struct generation *g = &generations[i];
	bool ours = intact(g);
	int fd = atomic_exchange(&g->fd, -1);
	if (ours)
		fd_unhide(fd);
	for (unsigned a = 0; a < used; a++)
		if (areas[a].generation == i)
			atomic_store(&areas[a].state, FREE);
	make_mark(i); /* the other process is alone with it now */
}

/* ---- areas ---- */

static bool overlaps(const struct area *a, uint64_t start, uint64_t end)
{
	return atomic_load_explicit(&a->state, memory_order_acquire) == MAPPED && atomic_load(&a->start) < end &&
	       atomic_load(&a->end) > start;
}

/* Without the lock: the first area from i on that is mapped in [start, end); NULL: none. */
static struct area *area_in(unsigned i, uint64_t start, uint64_t end)
{
	for (unsigned n = atomic_load_explicit(&used, memory_order_acquire); i < n; i++)
		if (overlaps(&areas[i], start, end))
			return &areas[i];
	return NULL;
}

static struct area *area_free(void)
{
	for (unsigned i = 0; i < AREAS; i++)
		if (atomic_load(&areas[i].state) == FREE)
			return &areas[i];
	return NULL;
}

/* Does v show some of it? */
static bool shows(const struct vma *v, const struct area *a)
{
	const struct generation *g = &generations[a->generation];
	return v->kind == VMA_SHARED && v->inode == g->inode && v->device == g->device &&
	       v->offset >= a->offset && v->offset < a->limit;
}

/* Is it mapped where it was? True if that is unknown. */
static bool at_home(const struct area *a)
{
	struct vma v;
	bool found = false;
	if (!maps_open(&maps))
		return true;
	for (uint64_t at = a->start; !found && at < a->end && maps_shared(&maps, at, &v) && v.start < a->end; at = v.end)
		found = shows(&v, a);
	found |= maps.broken;
	maps_close(&maps);
	return found;
}

/* Notes what is mapped elsewhere of areas that are not where they were. False: unknown. */
static bool look_elsewhere(void)
{
	struct vma v;
	if (!maps_open(&maps))
		return false;
	for (uint64_t at = 0; maps_shared(&maps, at, &v); at = v.end) {
		for (unsigned i = 0; i < GENERATIONS; i++)
			generations[i].seen |= v.inode == generations[i].inode && v.device == generations[i].device;
		for (struct area *a = areas; a < areas + used; a++)
			if (atomic_load(&a->state) == UNMAPPED && shows(&v, a)) {
				atomic_store(&a->start, v.start);
				atomic_store(&a->end, v.end);
				atomic_store(&a->state, MAPPED);
			}
	}
	maps_close(&maps);
	return !maps.broken;
}

/* Frees the memory of areas that no process maps. */
static void sweep(void)
{
	unmapped = waiting = 0;
	unmapped_bytes = 0;
	for (unsigned i = 0; i < GENERATIONS; i++)
		generations[i].seen = false;
	/* Twice: mremap may have moved one past the first reading. */
	if (!look_elsewhere() || !look_elsewhere())
		return;
	unsigned set = alone();
	for (struct area *a = areas; a < areas + used; a++) {
		struct generation *g = &generations[a->generation];
		if (atomic_load(&a->state) != UNMAPPED)
			continue;
		waiting++;
		if (set >> a->generation & 1 && intact(g) &&
		    sys(SYS_fallocate, atomic_load(&g->fd), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, a->offset,
			a->limit - a->offset) == 0) {
			atomic_store(&a->state, FREE);
			waiting--;
		}
	}
	for (unsigned i = 0; i < GENERATIONS; i++)
		if (atomic_load(&generations[i].fd) >= 0 && !generations[i].seen &&
		    !(generations[i].mine && set >> i & 1))
			generation_close(i);
}

/* The same for areas that only seem to be mapped. */
static void audit(void)
{
	int mapped = MAPPED;
	for (struct area *a = areas; a < areas + used; a++, mapped = MAPPED)
		atomic_compare_exchange_strong(&a->state, &mapped, UNMAPPED);
	sweep();
}

/* Puts an area in place of the kernel's mapping at start. False: that stays. */
static bool convert(uint64_t start, uint64_t n, int prot, int flags)
{
	long r = -ENOMEM;
	sigmask mask = signals_block();
	pthread_mutex_lock(&lock);
	struct area *a = area_free();
	if (!a || ++made % AUDIT_EVERY == 0)
		audit();
	else if (unmapped || waiting)
		sweep();
	a = area_free();
	struct generation *g = a ? current(n) : NULL;
	if (g) {
		a->generation = (unsigned)(g - generations);
		a->offset = g->next;
		a->limit = (a->offset + n + 2 * APART - 1) & ~(APART - 1);
		atomic_store(&a->start, start);
		atomic_store(&a->end, start + n);
		g->next = a->limit;
		r = sys(SYS_mmap, start, n, prot, MAP_SHARED | MAP_FIXED | (flags & MAP_NORESERVE), atomic_load(&g->fd),
			a->offset);
		if (!failed(r)) {
			atomic_store(&a->state, MAPPED);
			if (a - areas >= (ptrdiff_t)used)
				atomic_store(&used, (unsigned)(a - areas) + 1);
		}
	}
	pthread_mutex_unlock(&lock);
	signals_restore(mask);
	return !failed(r);
}

/* ---- what the program does ---- */

/* May the lock be taken, and the kernel be asked? */
static bool active(void)
{
	return !atomic_load(&confined) && !other_process() && !memory_forking();
}

void anonymous_unmapped(const void *addr, size_t n)
{
	uint64_t start = (uint64_t)(uintptr_t)addr, end = (start + n + PAGE - 1) & ~(PAGE - 1);
	if (likely(!area_in(0, start, end)) || !active())
		return;
	sigmask mask = signals_block();
	pthread_mutex_lock(&lock);
	for (struct area *a = areas; (a = area_in((unsigned)(a - areas), start, end)); a++) {
		if (at_home(a))
			continue;
		atomic_store(&a->state, UNMAPPED);
		unmapped++;
		unmapped_bytes += a->end - a->start;
	}
	if (unmapped >= SWEEP_AREAS || unmapped_bytes >= SWEEP_BYTES)
		sweep();
	pthread_mutex_unlock(&lock);
	signals_restore(mask);
}

bool anonymous_grows(const void *old, size_t new_size)
{
	uint64_t at = (uint64_t)(uintptr_t)old;
	const struct area *a = area_in(0, at, at + 1);
	return likely(!a) || (new_size <= FILE_SIZE && a->offset + (at - a->start) + new_size <= a->limit);
}

void anonymous_moved(const void *old, size_t size, const void *to, size_t new_size)
{
	uint64_t start = (uint64_t)(uintptr_t)old, end = start + (size ? size : 1), at = (uint64_t)(uintptr_t)to;
	if (likely(!area_in(0, start, end) && !area_in(0, at, at + new_size)) || !active())
		return;
	sigmask mask = signals_block();
	pthread_mutex_lock(&lock);
	struct area *a = area_in(0, start, end);
	if (a && size && a->start == start && a->end <= ((end + PAGE - 1) & ~(PAGE - 1))) {
		atomic_store(&a->start, at);
		atomic_store(&a->end, at + ((new_size + PAGE - 1) & ~(PAGE - 1)));
	}
	pthread_mutex_unlock(&lock);
	signals_restore(mask);
	anonymous_unmapped(old, size);
	anonymous_unmapped(to, new_size); /* what was there before */
}

void anonymous_confined(void)
{
	atomic_store(&confined, true);
}

void anonymous_child(void)
{
	pthread_mutex_init(&lock, NULL);
	for (unsigned i = 0; i < GENERATIONS; i++)
		generations[i].mine = false;
}

static bool fit(size_t n, int prot, int flags)
{
	const int known = MAP_TYPE | MAP_ANONYMOUS | MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_NORESERVE | MAP_POPULATE |
			  MAP_NONBLOCK | MAP_STACK | MAP_32BIT;
	return (flags & (MAP_TYPE | MAP_ANONYMOUS)) == (MAP_SHARED | MAP_ANONYMOUS) && !(flags & ~known) &&
	       prot == (PROT_READ | PROT_WRITE) && n >= SMALLEST && n <= FILE_SIZE / 2 && !atomic_load(&confined);
}

static void *map_plainly(mapper *next, void *addr, size_t n, int prot, int flags, int fd, off_t offset)
{
	void *p;
	if (next) {
		p = next(addr, n, prot, flags, fd, offset);
	} else { /* before we are initialized: to look for libc's may need memory, and so an mmap */
		long r = sys(SYS_mmap, addr, n, prot, flags, fd, offset);
		p = failed(r) ? (errno = (int)-r, MAP_FAILED) : (void *)r;
	}
	if (unlikely(flags & MAP_FIXED) && p != MAP_FAILED)
		anonymous_unmapped(p, n);
	return p;
}

static void *map(mapper *next, void *addr, size_t n, int prot, int flags, int fd, off_t offset)
{
	if (likely(!fit(n, prot, flags)) || !next || !active() || !wanted())
		return map_plainly(next, addr, n, prot, flags, fd, offset);
	void *p = map_plainly(next, addr, n, prot, flags & ~MAP_POPULATE, fd, offset);
	if (p == MAP_FAILED)
		return p;
	uint64_t start = (uint64_t)(uintptr_t)p, size = (n + PAGE - 1) & ~(PAGE - 1);
	int e = errno;
	convert(start, size, prot, flags);
	if ((flags & (MAP_POPULATE | MAP_NONBLOCK)) == MAP_POPULATE)
		sys(SYS_madvise, start, size, MADV_POPULATE_WRITE);
	errno = e;
	return p;
}

EXPORT void *mmap(void *addr, size_t n, int prot, int flags, int fd, off_t offset)
{
	return map(atomic_load_explicit(&next_mmap, memory_order_relaxed), addr, n, prot, flags, fd, offset);
}

EXPORT void *mmap64(void *addr, size_t n, int prot, int flags, int fd, off64_t offset)
{
	return map(atomic_load_explicit(&next_mmap64, memory_order_relaxed), addr, n, prot, flags, fd, offset);
}

__attribute__((constructor)) static void find_next(void)
{
	atomic_store(&next_mmap, (mapper *)REAL(mmap));
	atomic_store(&next_mmap64, (mapper *)REAL(mmap64));
}
