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
 *
 * If a fork child uses what it inherited, this is a server with processes. Its children
 * cannot take or use connections over RDMA, so its listeners retreat: RDMA refuses, and
 * peers come over TCP, which survives a fork. The parent may be anywhere then, so a
 * thread does it, which waits for word of the children.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>

#include "sockets.h"

/* Guards rsockets' side of a listener: accept against retreat. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

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

static int epoll_of_both(const struct entry *e)
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
	/* Forget before closing: a fork in between copies what this thread knows, and the child
	 * must not close the next owner's. */
	pthread_mutex_lock(&lock);
	int both = e->both, twin = e->twin;
	e->both = e->twin = e->queue = e->below = -1;
	pthread_mutex_unlock(&lock);
	if (atomic_load(&e->inherited))
		return;
	sys(SYS_close, both);
	sys(SYS_close, twin);
}

void listener_child(void) { pthread_mutex_init(&lock, NULL); }

static bool waits(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	return sys(SYS_ppoll, &p, 1, &(struct timespec){0}, NULL, 8) > 0;
}

/*
 * Of this listener TCP is left. The preload library keeps the number, which nobody else may
 * get in between, with an rsocket that is no more; number_of keeps it from being used.
 */
static void retreat(struct entry *e)
{
	pthread_mutex_lock(&lock);
	if (kind_of(e) == LISTENING && e->below >= 0 && e->twin >= 0) {
		sys(SYS_epoll_ctl, e->both, EPOLL_CTL_DEL, e->queue, NULL);
		while (waits(e->queue)) { /* for a process that cannot use them */
			int got = REAL(accept)(fd_of(e), NULL, NULL);
			if (got < 0)
				break;
			REAL(close)(got);
		}
		int below = e->below;
		e->below = e->queue = -1;
		atomic_store(&e->retreated, true);
		rclose(below);
	}
	pthread_mutex_unlock(&lock);
}

static void *await_retreat(void *unused)
{
	for (int used = 0;;) {
		used = fork_await_use(used);
		for (int fd = 0; fd <= entry_top(); fd++)
			if (kind_of(&table[fd]) == LISTENING && table[fd].sequence <= used)
				retreat(&table[fd]);
	}
	return unused;
}

/* As rsockets has a thread for its listeners, from the first one on. */
static void watch_children(void)
{
	static _Atomic bool watched;
	pthread_t id; /* it never ends */
	uint64_t all = ~0ull, old;
	if (atomic_exchange(&watched, true))
		return;
	sys(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, sizeof all); /* signals are for the program's threads */
	REAL(pthread_create)(&id, NULL, await_retreat, NULL);
	sys(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, sizeof old);
}

static __thread int *want_below __attribute__((tls_model("initial-exec")));

/* The preload library's listen calls it with its own number for the rsocket. */
int rlisten(int rsocket, int backlog);
EXPORT int rlisten(int rsocket, int backlog)
{
	if (want_below)
		*want_below = rsocket;
	return REAL(rlisten)(rsocket, backlog);
}

EXPORT int listen(int fd, int backlog)
{
	struct entry *e = entry_at(fd);
	if (!e)
		return REAL(listen)(fd, backlog);
	if (kind_of(e) != FRESH)
		return kind_of(e) == LISTENING ? 0 : FAIL(EINVAL);
	suit_buffers(e);
	int below = -1;
	want_pair = &e->queue;
	want_below = &below;
	int r = REAL(listen)(fd_of(e), backlog);
	want_pair = want_below = NULL;
	if (r)
		return r;
	e->twin = twin_of(e, backlog);
	e->both = epoll_of_both(e);
	e->below = e->both >= 0 ? below : -1;
	e->sequence = fork_listener();
	entry_become(e, LISTENING);
	watch_children();
	return 0;
}

static int take_rdma(struct entry *e, union name *from, socklen_t *n)
{
	pthread_mutex_lock(&lock);
	int got = waits(e->queue) ? REAL(accept)(fd_of(e), &from->any, n) : FAIL(EAGAIN), why = errno;
	pthread_mutex_unlock(&lock);
	errno = why;
	return got;
}

/* The next connection of either sort, or -1 and EAGAIN. */
static int take(struct entry *e, struct sockaddr *from, socklen_t *n, int flags)
{
	union name a = {0};
	socklen_t room = sizeof a;
	fork_hold();
	int found = take_rdma(e, &a, &room), why = errno;
	if (found >= 0) {
		stand_in(found);
		REAL(fcntl)(found, F_SETFL, O_NONBLOCK);
		entry_set(found, e->domain, CONNECTED);
	}
	fork_release();
	errno = why;
	if (found >= 0) {
		if (from && n)
			name_give(e, &a, from, n);
		apply_flags(found, flags);
		suit_buffers(e); /* of those to come */
		return found;
	}
	if (errno != EAGAIN)
		return -1;
	if (e->twin < 0)
		return FAIL(EAGAIN);
	long got = sys(SYS_accept4, e->twin, from, n, flags);
	if (got < 0)
		return FAIL((int)-got);
	if (atomic_load(&e->inherited) || atomic_load(&e->retreated))
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
