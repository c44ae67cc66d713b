/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write protection by userfaultfd. A thread that writes to a protected page
 * sleeps in its page fault until we wake it; then it tries again and meets the
 * new mapping. Nothing is delivered to the application: no signal, no handler.
 *
 * A process without privileges gets UFFD_USER_MODE_ONLY: there, a system call
 * that writes into a protected page fails with EFAULT instead of sleeping
 * (calls.c repeats those that it hooks).
 */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "protect.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW 0xaa00u
#endif
#define FEATURE_WP (1ull << 0)
#define FEATURE_EVENT_REMAP (1ull << 2)
#define FEATURE_THREAD_ID (1ull << 8)
#define FEATURE_WP_SHMEM (1ull << 12)
#define FEATURE_WP_UNPOPULATED (1ull << 13)
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* An administrator can allow all of it by the permissions of this file (Linux 6.1). */
static int from_device(void)
{
	int dev = (int)sys(SYS_openat, AT_FDCWD, "/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	if (dev < 0)
		return dev;
	int fd = (int)sys(SYS_ioctl, dev, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
	sys(SYS_close, dev);
	return fd;
}

int uffd_create(uint64_t features, uint64_t *available)
{
	int fd = (int)sys(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		fd = from_device();
	if (fd < 0)
		fd = (int)sys(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	if (fd < 0)
		return fd;
	struct uffdio_api api = {.api = UFFD_API, .features = features};
	long e = sys(SYS_ioctl, fd, UFFDIO_API, &api);
	if (e < 0) {
		sys(SYS_close, fd);
		return (int)e;
	}
	*available = api.features;
	return fd;
}

bool guard_open(struct guard *g, bool moves)
{
	static _Atomic uint64_t known; /* features of this kernel */
	uint64_t wanted = FEATURE_WP | FEATURE_THREAD_ID | FEATURE_WP_SHMEM | FEATURE_WP_UNPOPULATED;
	if (moves)
		wanted |= FEATURE_EVENT_REMAP;
	uint64_t have = atomic_load(&known), enabled;

	if (!have) {
		int probe = uffd_create(0, &have);
		if (probe >= 0)
			sys(SYS_close, probe);
		atomic_store(&known, have);
	}
	g->fd = have & FEATURE_WP ? uffd_create(wanted & have, &enabled) : -1;
	g->shmem = have & FEATURE_WP_SHMEM;
	g->moves = moves && (have & FEATURE_EVENT_REMAP);
	g->unpopulated = have & FEATURE_WP_UNPOPULATED;
	return g->fd >= 0;
}

void guard_close(struct guard *g)
{
	if (g->fd >= 0)
		sys(SYS_close, g->fd); /* wakes everyone */
	g->fd = -1;
}

bool guard_hold(struct guard *g, uint64_t start, uint64_t end)
{
	struct uffdio_register r = {.range = {start, end - start}, .mode = UFFDIO_REGISTER_MODE_WP};
	struct uffdio_writeprotect wp = {.range = {start, end - start},
					 .mode = UFFDIO_WRITEPROTECT_MODE_WP};
	if (sys(SYS_ioctl, g->fd, UFFDIO_REGISTER, &r) < 0)
		return false;
	if (!g->unpopulated) /* a page that does not exist cannot be protected: map the zero page */
		sys(SYS_madvise, start, end - start, MADV_POPULATE_READ);
	if (sys(SYS_ioctl, g->fd, UFFDIO_WRITEPROTECT, &wp) < 0) {
		guard_undo(g, start, end);
		return false;
	}
	return true;
}

void guard_release_page(struct guard *g, uint64_t page)
{
	struct uffdio_writeprotect wp = {.range = {page, PAGE}, .mode = 0};
	sys(SYS_ioctl, g->fd, UFFDIO_WRITEPROTECT, &wp);
}

void guard_wake(struct guard *g, uint64_t start, uint64_t end)
{
	struct uffdio_range r = {start, end - start};
	sys(SYS_ioctl, g->fd, UFFDIO_WAKE, &r);
}

void guard_undo(struct guard *g, uint64_t start, uint64_t end)
{
	struct uffdio_writeprotect wp = {.range = {start, end - start}, .mode = 0};
	struct uffdio_range r = {start, end - start};
	sys(SYS_ioctl, g->fd, UFFDIO_WRITEPROTECT, &wp);
	sys(SYS_ioctl, g->fd, UFFDIO_UNREGISTER, &r);
}

bool guard_fault(struct guard *g, uint64_t *page, uint32_t *thread)
{
	struct uffd_msg m;
	if (sys(SYS_read, g->fd, &m, sizeof m) != (long)sizeof m || m.event != UFFD_EVENT_PAGEFAULT)
		return false;
	*page = m.arg.pagefault.address & ~(PAGE - 1);
	*thread = m.arg.pagefault.feat.ptid;
	return true;
}
