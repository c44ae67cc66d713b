/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our versions of libc calls on descriptors. Each looks up the descriptor in the table
 * first, and calls libc for ordinary ones. At the end: calls on memory and on the process.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "anonymous.h"
#include "halt.h"
#include "tracer.h"
#include "vrdma.h"

#define RDMA_VERBS_IOCTL 0xc0181b01u

static bool is(struct file *f, enum file_kind k)
{
	return atomic_load_explicit(&f->kind, memory_order_relaxed) == (int)k;
}

/* ---- write: commands ---- */

EXPORT ssize_t write(int fd, const void *buf, size_t n)
{
	struct file *f = file_at(fd);
	if (likely(!f) || is(f, FILE_NETLINK))
		return REAL(write)(fd, buf, n);
	return device_write(f, fd, buf, n);
}

EXPORT ssize_t writev(int fd, const struct iovec *iov, int count)
{
	struct file *f = file_at(fd);
	unsigned char flat[4096];
	size_t n = 0;

	if (likely(!f) || is(f, FILE_NETLINK))
		return REAL(writev)(fd, iov, count);
	for (int i = 0; i < count; i++) {
		if (iov[i].iov_len > sizeof flat - n)
			return errno = EINVAL, -1;
		if (iov[i].iov_len)
			memcpy(flat + n, iov[i].iov_base, iov[i].iov_len);
		n += iov[i].iov_len;
	}
	return device_write(f, fd, flat, n);
}

/* ---- read: events, and buffers whose pages are being replaced ---- */

static ssize_t read_ours(struct file *f, int fd, void *buf, size_t n)
{
	if (is(f, FILE_HIDDEN))
		return errno = EBADF, -1;
	if (file_is_node(f))
		return errno = EINVAL, -1;
	if (is(f, FILE_NETLINK))
		return REAL(read)(fd, buf, n);
	if (atomic_load(&f->dead))
		return errno = EIO, -1;
	return device_event(f, REAL(read)(fd, buf, n), buf, n);
}

/* Repeats call while it fails only because memory.c held its buffer's pages, or leave.c's signal has interrupted it. */
#define RETRY(call)                                                                \
	({                                                                         \
		ssize_t r_;                                                        \
		do                                                                 \
			r_ = (call);                                               \
		while (unlikely(r_ < 0) && ((errno == EFAULT && memory_retry()) || \
					    (errno == EINTR && leave_interrupted()))); \
		r_;                                                                \
	})

EXPORT ssize_t read(int fd, void *buf, size_t n)
{
	struct file *f = file_at(fd);
	if (unlikely(f != NULL))
		return read_ours(f, fd, buf, n);
	return RETRY(REAL(read)(fd, buf, n));
}

ssize_t __read_chk(int fd, void *buf, size_t n, size_t room);
EXPORT ssize_t __read_chk(int fd, void *buf, size_t n, size_t room)
{
	struct file *f = file_at(fd);
	if (unlikely(f != NULL && n <= room))
		return read_ours(f, fd, buf, n);
	return RETRY(REAL(__read_chk)(fd, buf, n, room));
}

EXPORT ssize_t readv(int fd, const struct iovec *iov, int count)
{
	return RETRY(REAL(readv)(fd, iov, count));
}

EXPORT ssize_t pread(int fd, void *buf, size_t n, off_t at)
{
	return RETRY(REAL(pread)(fd, buf, n, at));
}

EXPORT ssize_t pread64(int fd, void *buf, size_t n, off64_t at)
{
	return RETRY(REAL(pread64)(fd, buf, n, at));
}

EXPORT ssize_t recv(int fd, void *buf, size_t n, int flags)
{
	return RETRY(REAL(recv)(fd, buf, n, flags));
}

EXPORT ssize_t recvfrom(int fd, void *restrict buf, size_t n, int flags, struct sockaddr *restrict from,
			socklen_t *restrict len)
{
	struct file *f = file_at(fd);
	if (unlikely(f && is(f, FILE_NETLINK)))
		return netlink_recvfrom(fd, buf, n, flags, from, len);
	return RETRY(REAL(recvfrom)(fd, buf, n, flags, from, len));
}

EXPORT int recvmmsg(int fd, struct mmsghdr *m, unsigned n, int flags, struct timespec *timeout)
{
	return (int)RETRY(REAL(recvmmsg)(fd, m, n, flags, timeout));
}

EXPORT int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	return (int)RETRY(REAL(poll)(fds, n, timeout));
}

EXPORT int epoll_wait(int fd, struct epoll_event *events, int n, int timeout)
{
	return (int)RETRY(REAL(epoll_wait)(fd, events, n, timeout));
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	struct file *f = file_at(fd);
	if (unlikely(f && is(f, FILE_NETLINK)))
		return netlink_recvmsg(fd, m, flags);
	return RETRY(REAL(recvmsg)(fd, m, flags));
}

/* ---- ioctl ---- */

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	va_start(args, request);
	void *arg = va_arg(args, void *);
	va_end(args);
	struct file *f = file_at(fd);
	/* ENOTTY sends libibverbs to the write() commands, for good. */
	if (unlikely(f != NULL) && (uint32_t)request == RDMA_VERBS_IOCTL)
		return errno = ENOTTY, -1;
	return REAL(ioctl)(fd, request, arg);
}

/* ---- close ---- */

static int close_ours(struct file *f, int fd)
{
	if (other_process())
		return REAL(close)(fd);
	if (is(f, FILE_HIDDEN))
		return errno = EBADF, -1;
	f = file_remove(fd);
	/* The daemon has a duplicate of an event file, so it sees our close only by this shutdown. */
	if (f && is(f, FILE_COMP) && !atomic_load(&f->dead) && atomic_load(&f->refs) == 1)
		sys(SYS_shutdown, fd, SHUT_RDWR);
	int r = REAL(close)(fd), e = errno;
	if (f)
		file_put(f);
	errno = e;
	return r;
}

EXPORT int close(int fd)
{
	struct file *f = file_at(fd);
	if (likely(!f))
		return REAL(close)(fd);
	return close_ours(f, fd);
}

#define RANGE_CLOEXEC 4u

static long range(unsigned first, unsigned last, int flags)
{
	return first <= last ? sys(SYS_close_range, first, last, flags) : 0;
}

int close_range(unsigned first, unsigned last, int flags);
EXPORT int close_range(unsigned first, unsigned last, int flags)
{
	unsigned from = first;
	long r = 0;

	if (first > last)
		return errno = EINVAL, -1;
	if (!other_process())
		for (unsigned fd = first; fd <= last && fd <= file_top(); fd++) {
			struct file *f = file_at((int)fd);
			if (likely(!f))
				continue;
			if (is(f, FILE_HIDDEN)) {
				if (fd > from && (r = range(from, fd - 1, flags)) < 0)
					return errno = (int)-r, -1;
				from = fd + 1;
			} else if (!((unsigned)flags & RANGE_CLOEXEC) && (f = file_remove((int)fd))) {
				file_put(f);
			}
		}
	r = range(from, last, flags);
	return r < 0 ? (errno = (int)-r, -1) : 0;
}

void closefrom(int low);
EXPORT void closefrom(int low)
{
	struct rlimit limit = {.rlim_cur = 1024};
	unsigned first = low > 0 ? (unsigned)low : 0;
	int e = errno;
	if (close_range(first, ~0u, 0) < 0) {
		sys(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &limit);
		for (unsigned fd = first; fd < limit.rlim_cur; fd++)
			close((int)fd);
	}
	errno = e;
}

/* ---- dup ---- */

static bool visible(struct file *f)
{
	return f && !is(f, FILE_HIDDEN);
}

/* fd is a new number for the file behind from. */
static void adopt(int from, int fd)
{
	struct file *f = fd >= 0 && fd != from && !other_process() ? file_get(from) : NULL;
	if (f && !file_install(f, fd))
		file_put(f);
}

EXPORT int dup(int fd)
{
	int r = REAL(dup)(fd);
	if (unlikely(visible(file_at(fd))))
		adopt(fd, r);
	return r;
}

static int dup_onto(int from, int to, int flags, bool three)
{
	struct file *f = file_at(from), *g = file_at(to);
	if ((f || g) && from != to && !other_process()) {
		if (f && is(f, FILE_HIDDEN))
			return errno = EBADF, -1;
		if (g && is(g, FILE_HIDDEN) && !fd_vacate(to))
			return errno = EMFILE, -1;
		g = visible(g) ? file_remove(to) : NULL;
	} else {
		g = NULL;
	}
	int r = three ? REAL(dup3)(from, to, flags) : REAL(dup2)(from, to), e = errno;
	if (g && r < 0)
		file_install(g, to); /* still open */
	else if (g)
		file_put(g);
	if (r >= 0 && f)
		adopt(from, to);
	errno = e;
	return r;
}

EXPORT int dup2(int from, int to)
{
	return dup_onto(from, to, 0, false);
}

EXPORT int dup3(int from, int to, int flags)
{
	return dup_onto(from, to, flags, true);
}

static int control(int (*real)(int, int, ...), int fd, int command, void *arg)
{
	struct file *f = file_at(fd);
	/* A program that marks all its descriptors must not let ours through an exec. */
	if (unlikely(f && command == F_SETFD && is(f, FILE_HIDDEN) && !other_process()))
		return errno = EBADF, -1;
	int r = real(fd, command, arg);
	if (unlikely(visible(f)) && (command == F_DUPFD || command == F_DUPFD_CLOEXEC))
		adopt(fd, r);
	return r;
}

#define FCNTL(name)                                              \
	int name(int fd, int command, ...);                      \
	EXPORT int name(int fd, int command, ...)                \
	{                                                        \
		va_list args;                                    \
		va_start(args, command);                         \
		void *arg = va_arg(args, void *);                \
		va_end(args);                                    \
		return control(REAL(name), fd, command, arg);    \
	}
FCNTL(fcntl)
FCNTL(fcntl64)

/* ---- madvise, munmap, mremap: memory that we made shared must behave as private memory ---- */

EXPORT int madvise(void *addr, size_t n, int advice)
{
	return other_process() ? REAL(madvise)(addr, n, advice) : memory_madvise(addr, n, advice);
}

EXPORT int munmap(void *addr, size_t n)
{
	int r = memory_munmap(addr, n);
	if (likely(r == 0))
		anonymous_unmapped(addr, n);
	return r;
}

EXPORT void *mremap(void *old, size_t size, size_t new_size, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	void *to = flags & MREMAP_FIXED ? va_arg(args, void *) : NULL;
	va_end(args);
	if (other_process())
		return REAL(mremap)(old, size, new_size, flags, to);
	if (new_size > size && !anonymous_grows(old, new_size))
		return errno = ENOMEM, MAP_FAILED;
	void *p = memory_mremap(old, size, new_size, flags, to);
	if (p != MAP_FAILED)
		anonymous_moved(old, size, p, new_size);
	return p;
}

/* ---- clone, prctl: what halt.c has to know ---- */

EXPORT int clone(int (*run)(void *), void *stack, int flags, void *arg, ...)
{
	va_list args;
	va_start(args, arg);
	void *parent_tid = va_arg(args, void *), *tls = va_arg(args, void *), *child_tid = va_arg(args, void *);
	va_end(args);
	halt_cloned((unsigned long)flags);
	return REAL(clone)(run, stack, flags, arg, parent_tid, tls, child_tid);
}

EXPORT int prctl(int option, ...)
{
	unsigned long a[4];
	va_list args;
	va_start(args, option);
	for (int i = 0; i < 4; i++)
		a[i] = va_arg(args, unsigned long);
	va_end(args);
	int r = REAL(prctl)(option, a[0], a[1], a[2], a[3]);
	if (r == 0 && option == PR_SET_PTRACER)
		tracer_named(a[0]);
	if (r == 0 && (option == PR_SET_NO_NEW_PRIVS || option == PR_SET_SECCOMP))
		anonymous_confined(); /* the former comes before every filter of an ordinary user */
	return r;
}
