/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets come and go: socket, dup, close. */
#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include "sockets.h"

#define FLAGS (SOCK_CLOEXEC | SOCK_NONBLOCK)

void apply_flags(int fd, int flags)
{
	struct entry *e = entry_at(fd);
	if (flags & SOCK_CLOEXEC)
		sys(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);
	if (e)
		atomic_store(&e->nonblocking, (flags & SOCK_NONBLOCK) != 0);
	else if (flags & SOCK_NONBLOCK)
		sys(SYS_fcntl, fd, F_SETFL, O_RDWR | O_NONBLOCK);
}

/*
 * The preload library's descriptor is /dev/null. Whatever goes past us (a program that gets it
 * by posix_spawn, a stream of libc's, io_uring) would read an end from it, and nobody would
 * know why. From a socket without a connection it gets an error.
 */
void stand_in(int fd)
{
	int dead = dead_socket();
	if (dead < 0)
		return;
	sys(SYS_dup3, dead, fd, 0);
	sys(SYS_close, dead);
}

EXPORT int socket(int domain, int type, int protocol)
{
	int base = type & ~FLAGS;
	if (domain != AF_INET && domain != AF_INET6)
		return REAL(socket)(domain, type, protocol);
	if (base != SOCK_STREAM || (protocol && protocol != IPPROTO_TCP)) {
		/* rsockets would take UDP too, in a way that no other program understands. */
		if (base == SOCK_DGRAM)
			COUNT(udp);
		long fd = sys(SYS_socket, domain, type, protocol);
		return fd < 0 ? FAIL((int)-fd) : (int)fd;
	}
	fork_hold();
	int fd = in_fork_child() ? (int)sys(SYS_socket, domain, base, protocol) : REAL(socket)(domain, base, protocol);
	if (fd < 0) {
		fork_release();
		return in_fork_child() ? FAIL(-fd) : fd;
	}
	if (is_rsocket(fd)) {
		stand_in(fd);
		REAL(fcntl)(fd, F_SETFL, O_NONBLOCK);
		entry_set(fd, domain, FRESH);
	} else {
		COUNT(unmade);
	}
	fork_release();
	apply_flags(fd, type & FLAGS);
	return fd;
}

static int kernel_close(int fd)
{
	long r = sys(SYS_close, fd);
	return r < 0 ? FAIL((int)-r) : 0;
}

/* The program has one number less for it. */
static int release(struct entry *e)
{
	if (atomic_fetch_sub(&e->refs, 1) > 1)
		return 0;
	listener_close(e);
	fork_hold();
	/* The number may be somebody else's as soon as it is closed. */
	entry_become(e, NOT_OURS);
	forgetting = atomic_load(&e->retreated); /* there is no rsocket any more */
	int r = REAL(close)(fd_of(e)), why = errno;
	forgetting = false;
	fork_release(); /* unless rclose has done it */
	errno = why;
	return r;
}

EXPORT int close(int fd)
{
	struct entry *e = entry_at(fd);
	epoll_forget(fd);
	if (!e)
		return REAL(close)(fd);
	if (foreign())
		return kernel_close(fd);
	struct entry *own = &table[fd];
	if (e != own) {
		entry_become(own, NOT_OURS);
		kernel_close(fd);
		return release(e);
	}
	/* With other numbers left this one stays, empty, because the preload library has it. */
	return atomic_exchange(&e->ghost, true) ? FAIL(EBADF) : release(e);
}

/* Those of ours in a range are closed one by one, the rest by whoever comes next. */
static void close_ours(unsigned first, unsigned last)
{
	for (unsigned fd = first; fd <= last && fd <= (unsigned)entry_top(); fd++)
		if (entry_at((int)fd))
			close((int)fd);
}

#define RANGE_CLOEXEC 4u /* CLOSE_RANGE_CLOEXEC */

int close_range(unsigned first, unsigned last, int flags);
EXPORT int close_range(unsigned first, unsigned last, int flags)
{
	if (first <= last && !((unsigned)flags & RANGE_CLOEXEC) && !foreign())
		close_ours(first, last);
	return REAL(close_range) ? REAL(close_range)(first, last, flags) : FAIL(ENOSYS);
}

void closefrom(int low);
EXPORT void closefrom(int low)
{
	if (!foreign())
		close_ours(low > 0 ? (unsigned)low : 0, TABLE);
	REAL(closefrom)(low);
}

/*
 * dup. A copy that the preload library makes ends the connection when it is closed, so it
 * gets to know of none.
 */
static void copied(struct entry *e, int to)
{
	if (kind_of(e) != DEAD && !atomic_load(&e->inherited))
		return entry_alias(to, e);
	/* In a fork child they are the kernel's, and each number is by itself. */
	bool nonblocking = atomic_load(&e->nonblocking), listens = kind_of(e) == LISTENING;
	entry_set(to, e->domain, kind_of(e));
	atomic_store(&table[to].nonblocking, nonblocking);
	atomic_store(&table[to].inherited, listens);
	table[to].twin = listens ? to : -1;
}

static int copy(struct entry *e, int to)
{
	long r = sys(SYS_dup3, fd_of(e), to, 0);
	if (r < 0)
		return FAIL((int)-r);
	copied(e, to);
	if (kind_of(e) == DEAD && to <= 2)
		dead_use(); /* it is meant for a program that the child will execute */
	return to;
}

int duplicate(struct entry *e, int low, int flags)
{
	long to = sys(SYS_fcntl, fd_of(e), flags & O_CLOEXEC ? F_DUPFD_CLOEXEC : F_DUPFD, low);
	if (to < 0)
		return FAIL((int)-to);
	if (!foreign())
		copied(e, (int)to);
	return (int)to;
}

EXPORT int dup(int fd)
{
	struct entry *e = entry_at(fd);
	return e ? duplicate(e, 0, 0) : REAL(dup)(fd);
}

/* In a vfork child: to will be a standard descriptor of the next program, as a rule. */
static int hand_over(struct entry *e, int from, int to)
{
	if (e)
		dead_use();
	long r = sys(SYS_dup3, e ? fd_of(e) : from, to, 0);
	return r < 0 ? FAIL((int)-r) : to;
}

EXPORT int dup2(int from, int to)
{
	struct entry *e = entry_at(from);
	if (from == to || (!e && !entry_at(to)))
		return REAL(dup2)(from, to);
	if (foreign())
		return hand_over(e, from, to);
	if (entry_at(to) && close(to))
		return errno == EBADF ? FAIL(EBUSY) : -1;
	if (entry_at(to)) /* it has other numbers, and keeps this one */
		return FAIL(EBUSY);
	return e ? copy(e, to) : REAL(dup2)(from, to);
}

EXPORT int dup3(int from, int to, int flags)
{
	if (!entry_at(from) && !entry_at(to))
		return REAL(dup3)(from, to, flags);
	if (from == to)
		return FAIL(EINVAL);
	int r = dup2(from, to);
	if (r >= 0 && (flags & O_CLOEXEC))
		sys(SYS_fcntl, to, F_SETFD, FD_CLOEXEC);
	return r;
}

/* And the calls that need no more than the right number. */

EXPORT int bind(int fd, const struct sockaddr *to, socklen_t n)
{
	struct entry *e = entry_at(fd);
	if (e && kind_of(e) == DEAD)
		return FAIL(EINVAL);
	return REAL(bind)(e ? number_of(e) : fd, to, n);
}

EXPORT int shutdown(int fd, int how)
{
	struct entry *e = entry_at(fd);
	return REAL(shutdown)(e ? number_of(e) : fd, how);
}
