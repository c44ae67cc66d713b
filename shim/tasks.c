/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the pages that belong to threads. The kernel itself writes to a thread's
 * stack (signal frames) and to its descriptor (rseq, robust list, the word that
 * pthread_join waits for). Such a write into a protected page fails, or kills the
 * process. So these pages are never replaced.
 *
 * glibc keeps the head of the robust list in the thread's descriptor, which is at
 * the top of the thread's stack. get_robust_list returns its address, for any
 * thread of the process. The descriptor of the first thread is not on its stack,
 * which is [stack].
 */
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/stat.h>

#include "tasks.h"

#define AFTER_HEAD 0x600 /* bytes of the descriptor behind the robust list's head, at most */
#define NEAR (16 * PAGE) /* of this thread's stack pointer: what we ourselves may touch */

unsigned tasks_count(void)
{
	struct stat st;
	if (sys(SYS_newfstatat, AT_FDCWD, "/proc/self/task", &st, 0) < 0 || st.st_nlink < 3)
		return 0;
	return (unsigned)st.st_nlink - 2;
}

static uint64_t descriptor(int tid)
{
	uint64_t head = 0, size = 0;
	return sys(SYS_get_robust_list, tid, &head, &size) < 0 ? 0 : head;
}

/*
 * Adds [start, end), cut to the mapping that contains at: memory outside of it is not the thread's.
 * A mapping of our memfd cuts nothing, because replacing pages splits mappings.
 */
static void add(struct maps *m, struct ranges *out, uint64_t at, uint64_t start, uint64_t end)
{
	struct vma v;
	if (m->query && maps_find(m, at, &v) && v.start <= at && v.kind != VMA_OWN) {
		start = start > v.start ? start : v.start;
		end = end < v.end ? end : v.end;
	}
	ranges_add(out, start, end);
}

/*
 * The size of the thread-local variables below a descriptor, in bytes. Code that runs while pages
 * are being replaced may access one (errno, a library's own), and would wait for ever.
 */
static uint64_t below = 2 * PAGE;

static int add_segment(struct dl_phdr_info *info, size_t size, void *sum)
{
	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_TLS)
			*(uint64_t *)sum += info->dlpi_phdr[i].p_memsz + info->dlpi_phdr[i].p_align;
	return 0;
}

/*
 * Runs as a constructor, because dl_iterate_phdr takes the loader's lock. 4 pages more are enough for
 * libraries that are loaded later: the loader reserves little TLS for them.
 */
__attribute__((constructor)) static void measure_tls(void)
{
	uint64_t sum = 4 * PAGE;
	dl_iterate_phdr(add_segment, &sum);
	below = sum;
}

static void add_task(struct maps *m, struct ranges *out, int tid, int pid)
{
	struct vma v;
	uint64_t at = descriptor(tid);
	if (!at)
		return;
	uint64_t start = (at - below) & ~(PAGE - 1), end = (at + AFTER_HEAD + PAGE - 1) & ~(PAGE - 1);
	/* Only PROCMAP_QUERY can be asked out of order; else the stack stays unknown. */
	if (tid != pid && m->query && maps_find(m, at, &v) && v.start <= at && v.start < start)
		start = v.start;
	add(m, out, at, start, end);
}

void tasks_here(struct maps *m, struct ranges *out)
{
	uint64_t sp = (uint64_t)(uintptr_t)__builtin_frame_address(0) & ~(PAGE - 1);
	out->n = 0;
	add(m, out, sp, sp - NEAR, sp + NEAR);
}

/* Does a thread's descriptor lie there? Its stack is then one mapping with it. */
static bool lies_in(const struct ranges *where, int tid)
{
	struct range r;
	uint64_t at = descriptor(tid) & ~(PAGE - 1);
	return at && ranges_find(where, at, at + PAGE, &r);
}

void tasks_ranges(struct maps *m, struct ranges *out, const struct ranges *where)
{
	struct {
		uint64_t ino, off;
		uint16_t reclen;
		uint8_t type;
		char name[];
	} __attribute__((packed)) *e;
	char list[2048];
	int pid = (int)sys(SYS_getpid);

	tasks_here(m, out);
	long fd = sys(SYS_openat, AT_FDCWD, "/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return;
	for (;;) {
		long n = sys(SYS_getdents64, fd, list, sizeof list);
		if (n <= 0)
			break;
		for (long i = 0; i < n; i += e->reclen) {
			int tid = 0;
			e = (void *)(list + i);
			for (const char *c = e->name; *c >= '0' && *c <= '9'; c++)
				tid = tid * 10 + (*c - '0');
			if (tid && (!where || lies_in(where, tid)))
				add_task(m, out, tid, pid);
		}
	}
	sys(SYS_close, fd);
}
