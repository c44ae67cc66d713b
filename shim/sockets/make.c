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
	int fd = REAL(socket)(domain, base, protocol);
	if (fd < 0)
		return fd;
	if (is_rsocket(fd)) {
		REAL(fcntl)(fd, F_SETFL, O_NONBLOCK);
		entry_set(fd, domain, FRESH);
	} else {
		COUNT(unmade);
	}
	apply_flags(fd, type & FLAGS);
	return fd;
}

EXPORT int close(int fd)
{
	struct entry *e = entry_at(fd);
	if (!e) {
		epoll_forget(fd);
		return REAL(close)(fd);
	}
	bool dead = kind_of(e) == DEAD;
	if (foreign()) {
		long r = sys(SYS_close, fd);
		return r < 0 ? FAIL((int)-r) : 0;
	}
	epoll_forget(fd);
	listener_close(e);
	/* The number may be somebody else's as soon as it is closed. */
	atomic_store(&e->kind, NOT_OURS);
	if (!dead)
		return REAL(close)(fd);
	long r = sys(SYS_close, fd);
	return r < 0 ? FAIL((int)-r) : 0;
}

/* The copy has a state of its own: O_NONBLOCK is not shared, as it should be. */
static int copy(int from, int to)
{
	struct entry *e = entry_at(from);
	int kind = kind_of(e);
	if (kind == DEAD || foreign()) {
		long r = sys(SYS_dup3, from, to, 0);
		return r < 0 ? FAIL((int)-r) : to;
	}
	int r = REAL(dup2)(from, to);
	if (r < 0)
		return r;
	entry_set(to, e->domain, (enum kind)kind);
	if ((unsigned)to < TABLE) {
		listener_copy(&table[to], e);
		atomic_store(&table[to].nonblocking, atomic_load(&e->nonblocking));
	}
	return to;
}

int duplicate(int fd, int low, int flags)
{
	long to = sys(SYS_fcntl, fd, F_DUPFD, low);
	if (to < 0)
		return FAIL((int)-to);
	int r = copy(fd, (int)to);
	if (r < 0)
		sys(SYS_close, to);
	else if (flags & O_CLOEXEC)
		sys(SYS_fcntl, to, F_SETFD, FD_CLOEXEC);
	return r;
}

EXPORT int dup(int fd) { return entry_at(fd) ? duplicate(fd, 0, 0) : REAL(dup)(fd); }

EXPORT int dup2(int from, int to)
{
	if (from == to || (!entry_at(from) && !entry_at(to)))
		return REAL(dup2)(from, to);
	if (entry_at(to) && close(to))
		return -1;
	return entry_at(from) ? copy(from, to) : REAL(dup2)(from, to);
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
