/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listen and accept.
 *
 * A listener of rsockets is served by a thread that writes accepted connections into a
 * socket pair, from which accept reads. Its poll waits on another descriptor, for the
 * connection request, and if the thread is not done when it wakes, it sleeps on: up to five
 * seconds. We note the pair when it is made, and wait on that.
 *
 * And we listen on TCP too, so that a peer without RDMA still finds the program.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include "sockets.h"

static __thread int *want_pair __attribute__((tls_model("initial-exec")));

EXPORT int socketpair(int domain, int type, int protocol, int pair[2])
{
	int r = REAL(socketpair)(domain, type, protocol, pair);
	if (r)
		return r;
	if (want_pair) { /* the first one that listen makes is the queue */
		*want_pair = pair[0];
		want_pair = NULL;
	}
	library_pair(pair);
	return r;
}

/* A TCP listener at the address of an rsocket, or -1: the port may be somebody else's. */
static int twin_of(struct entry *e, int backlog)
{
	struct sockaddr_storage at = {0};
	socklen_t n = sizeof at, m = sizeof(int);
	int on = 1, only = 0;
	if (REAL(getsockname)(fd_of(e), (struct sockaddr *)&at, &n))
		return -1;
	long to = sys(SYS_socket, e->domain, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (to < 0)
		return -1;
	sys(SYS_setsockopt, to, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (e->domain == AF_INET6 && REAL(getsockopt)(fd_of(e), IPPROTO_IPV6, IPV6_V6ONLY, &only, &m) == 0)
		sys(SYS_setsockopt, to, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
	n = e->domain == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	if (sys(SYS_bind, to, &at, n) < 0 || sys(SYS_listen, to, backlog) < 0) {
		sys(SYS_close, to);
		return -1;
	}
	return (int)to;
}

static int door_of(const struct entry *e)
{
	long to = sys(SYS_epoll_create1, EPOLL_CLOEXEC);
	struct epoll_event in = {.events = EPOLLIN};
	if (to < 0)
		return -1;
	if (e->queue >= 0)
		sys(SYS_epoll_ctl, to, EPOLL_CTL_ADD, e->queue, &in);
	if (e->twin >= 0)
		sys(SYS_epoll_ctl, to, EPOLL_CTL_ADD, e->twin, &in);
	return (int)to;
}

void listener_close(struct entry *e)
{
	if (kind_of(e) != LISTENING)
		return;
	if (!atomic_load(&e->inherited)) {
		sys(SYS_close, e->door);
		sys(SYS_close, e->twin);
	}
	e->door = e->twin = e->queue = -1;
}

EXPORT int listen(int fd, int backlog)
{
	struct entry *e = entry_at(fd);
	if (!e)
		return REAL(listen)(fd, backlog);
	if (kind_of(e) != FRESH)
		return kind_of(e) == LISTENING ? 0 : FAIL(EINVAL);
	suit_buffers(e);
	want_pair = &e->queue;
	int r = REAL(listen)(fd_of(e), backlog);
	want_pair = NULL;
	if (r)
		return r;
	e->twin = twin_of(e, backlog);
	e->door = door_of(e);
	entry_become(e, LISTENING);
	return 0;
}

/* The next connection of either sort, or -1 and EAGAIN. */
static int take(struct entry *e, struct sockaddr *from, socklen_t *n, int flags)
{
	struct pollfd p = {.fd = e->queue, .events = POLLIN};
	if (sys(SYS_ppoll, &p, 1, &(struct timespec){0}, NULL, 8) > 0) {
		union name a = {0};
		socklen_t room = sizeof a;
		int got = REAL(accept)(fd_of(e), &a.any, &room);
		if (got < 0)
			return got;
		if (from && n)
			name_give(e, &a, from, n);
		REAL(fcntl)(got, F_SETFL, O_NONBLOCK);
		entry_set(got, e->domain, CONNECTED);
		apply_flags(got, flags);
		suit_buffers(e); /* of those to come */
		return got;
	}
	if (e->twin < 0)
		return FAIL(EAGAIN);
	long got = sys(SYS_accept4, e->twin, from, n, flags);
	if (got < 0)
		return FAIL((int)-got);
	if (atomic_load(&e->inherited))
		COUNT(inherited);
	else
		COUNT(accepted);
	return (int)got;
}

EXPORT int accept4(int fd, struct sockaddr *restrict from, socklen_t *restrict n, int flags)
{
	struct entry *e = entry_at(fd);
	if (!e) {
		long got = sys(SYS_accept4, fd, from, n, flags);
		return got < 0 ? FAIL((int)-got) : (int)got;
	}
	if (kind_of(e) != LISTENING)
		return kind_of(e) == DEAD ? dead_use() : FAIL(EINVAL);
	listener_use(e);
	for (;;) {
		int got = take(e, from, n, flags);
		if (got >= 0 || errno != EAGAIN || atomic_load(&e->nonblocking))
			return got;
		if (wait_one(e, POLLIN, atomic_load(&e->patience[0])))
			return -1;
	}
}

EXPORT int accept(int fd, struct sockaddr *restrict from, socklen_t *restrict n)
{
	return entry_at(fd) ? accept4(fd, from, n, 0) : REAL(accept)(fd, from, n);
}
