/* SPDX-License-Identifier: Apache-2.0 */
/*
 * UFFDIO_MOVE (Linux 6.8) moves private anonymous pages to another address of the process, and
 * refuses a page that a device or the kernel has pinned. It needs no privilege: a userfaultfd for
 * faults in user mode suffices, because this process's own threads are halted meanwhile. Another
 * process or a kernel thread that touches a missing page then gets EFAULT, or, where full
 * userfaultfd is allowed, waits.
 */
#include "move.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include "protect.h"

/* <linux/userfaultfd.h> of Linux 6.8 */
struct move_request {
	uint64_t dst, src, len, mode;
	int64_t moved;
};
#define MOVE _IOWR(0xAA, 0x05, struct move_request)
#define FEATURE_MOVE (1ull << 16)
#define ALLOW_SRC_HOLES (1ull << 1)

static _Atomic int known; /* 1: there is UFFDIO_MOVE, -1: there is not */

bool mover_open(struct mover *m)
{
	uint64_t have = 0;
	m->fd = -1;
	if (atomic_load(&known) < 0)
		return false;
	if (!atomic_load(&known)) {
		int probe = uffd_create(0, &have);
		if (probe == -EMFILE || probe == -ENFILE || probe == -ENOMEM)
			return false;
		if (probe >= 0)
			sys(SYS_close, probe);
		atomic_store(&known, probe >= 0 && (have & FEATURE_MOVE) ? 1 : -1);
		if (atomic_load(&known) < 0)
			return false;
	}
	m->fd = uffd_create(FEATURE_MOVE, &have);
	return m->fd >= 0;
}

void mover_close(struct mover *m)
{
	if (m->fd >= 0)
		sys(SYS_close, m->fd);
	m->fd = -1;
}

long mover_watch(struct mover *m, uint64_t start, uint64_t end)
{
	struct uffdio_register r = {.range = {start, end - start}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	return sys(SYS_ioctl, m->fd, UFFDIO_REGISTER, &r);
}

void mover_unwatch(struct mover *m, uint64_t start, uint64_t end)
{
	struct uffdio_range r = {start, end - start};
	sys(SYS_ioctl, m->fd, UFFDIO_UNREGISTER, &r);
}

void mover_wake(struct mover *m, uint64_t start, uint64_t end)
{
	struct uffdio_range r = {start, end - start};
	sys(SYS_ioctl, m->fd, UFFDIO_WAKE, &r);
}

long mover_move(struct mover *m, uint64_t to, uint64_t from, uint64_t n, uint64_t *done)
{
	struct move_request r = {.dst = to, .src = from, .len = n, .mode = ALLOW_SRC_HOLES};
	long e = sys(SYS_ioctl, m->fd, MOVE, &r);
	*done = e == 0 ? n : r.moved > 0 ? (uint64_t)r.moved : 0;
	if (e == -ENOTTY) /* a filter */
		atomic_store(&known, -1);
	return e;
}

bool mover_copy(struct mover *m, uint64_t to, uint64_t from, uint64_t n)
{
	while (n) {
		struct uffdio_copy c = {.dst = to, .src = from, .len = n};
		long e = sys(SYS_ioctl, m->fd, UFFDIO_COPY, &c);
		if (e == 0)
			return true;
		if (c.copy <= 0 || (e != -EAGAIN && e != -EINTR))
			return false;
		to += (uint64_t)c.copy;
		from += (uint64_t)c.copy;
		n -= (uint64_t)c.copy;
	}
	return true;
}
