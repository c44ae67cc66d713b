/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connect: RDMA if the peer has it, TCP if it does not.
 *
 * rsockets watches a connection for the peer's death only if connect had to wait for
 * something (until rdma-core 62), and this device is often too fast for that. So the first
 * event of every connect is said not to be there yet. The preload library itself falls back to TCP
 * only when connect fails at once, and then forgets in poll what it did. So we wait for the
 * outcome, also for a program that would not (it is a matter of a millisecond, unless
 * nobody is there), and make the TCP socket ourselves.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "sockets.h"

__thread bool connect_underway __attribute__((tls_model("initial-exec")));

bool connect_too_early(const void *buf, size_t n)
{
	/* struct rdma_ucm_cmd_hdr, RDMA_USER_CM_CMD_GET_EVENT */
	const uint32_t get_event = 12;
	if (n < 8 || memcmp(buf, &get_event, sizeof get_event))
		return false;
	connect_underway = false;
	return true;
}

/* How long RDMA may take to reach somebody, in ms. */
#define PATIENCE 5000

/* Make fd a TCP socket instead. */
static bool become_tcp(int fd, struct entry *e)
{
	bool nonblocking = atomic_load(&e->nonblocking);
	long flags = sys(SYS_fcntl, fd, F_GETFD);
	long to = sys(SYS_socket, e->domain, SOCK_STREAM | (nonblocking ? SOCK_NONBLOCK : 0), 0);
	if (to < 0)
		return errno = (int)-to, false;
	close(fd);
	long r = sys(SYS_dup3, to, fd, flags == FD_CLOEXEC ? O_CLOEXEC : 0);
	sys(SYS_close, to);
	return r < 0 ? (errno = (int)-r, false) : true;
}

/* The preload library gave up RDMA by itself, and keeps a TCP socket behind fd. */
static bool adopt_tcp(int fd, struct entry *e)
{
	bool nonblocking = atomic_load(&e->nonblocking);
	long flags = sys(SYS_fcntl, fd, F_GETFD);
	int to = REAL(fcntl)(fd_of(e), F_DUPFD, 0);
	if (to < 0)
		return false;
	close(fd);
	long r = sys(SYS_dup3, to, fd, flags == FD_CLOEXEC ? O_CLOEXEC : 0);
	sys(SYS_close, to);
	if (r >= 0)
		sys(SYS_fcntl, fd, F_SETFL, O_RDWR | (nonblocking ? O_NONBLOCK : 0));
	return r < 0 ? (errno = (int)-r, false) : true;
}

/* What became of the connect that the preload library began. */
static int outcome(struct entry *e)
{
	if (wait_one(e, POLLOUT, PATIENCE))
		return errno == EAGAIN ? ETIMEDOUT : errno;
	int why = 0;
	socklen_t n = sizeof why;
	return REAL(getsockopt)(fd_of(e), SOL_SOCKET, SO_ERROR, &why, &n) ? errno : why;
}

static int finish(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	int e = 0;
	socklen_t n = sizeof e;
	if (wait_many(&p, 1, NULL) < 0)
		return -1;
	sys(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, &e, &n);
	return e ? FAIL(e) : 0;
}

/* Did the preload library replace the rsocket? A TCP socket tells its type and more. */
static bool replaced(const struct entry *e)
{
	int on;
	socklen_t n = sizeof on;
	return REAL(getsockopt)(fd_of(e), SOL_SOCKET, SO_ACCEPTCONN, &on, &n) == 0;
}

/* Is it an address of this machine? RDMA reaches those, so nobody listened. */
static bool is_local(const struct sockaddr *to, socklen_t n)
{
	union name a;
	name_take(to, n, &a);
	a.v4.sin_port = 0; /* at the same place in both */
	long fd = sys(SYS_socket, a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	long r = sys(SYS_bind, fd, &a, a.any.sa_family == AF_INET ? sizeof a.v4 : sizeof a.v6);
	sys(SYS_close, fd);
	return r == 0;
}

/*
 * Has this machine refused a connect that goes on? It says so at once, as a rule before
 * connect returns, and if not, a moment later; only a listener that is too busy says
 * nothing. The error stays there for the program.
 */
static bool was_refused(int fd)
{
	struct timespec moment = {.tv_nsec = 100 * 1000000};
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	sys(SYS_ppoll, &p, 1, &moment, NULL, 8);
	struct tcp_info info = {0};
	socklen_t n = sizeof info;
	return sys(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 && info.tcpi_state == TCP_CLOSE;
}

/* It went over TCP, if it did: why? */
static int over_tcp(int fd, int r, const struct sockaddr *to, socklen_t n)
{
	int why = errno;
	if (r == 0 || why == EINPROGRESS) {
		if (!is_local(to, n))
			COUNT(silent);
		else if (r == 0 || !was_refused(fd))
			COUNT(refused);
	}
	errno = why;
	return r;
}

EXPORT int connect(int fd, const struct sockaddr *to, socklen_t n)
{
	struct entry *e = entry_at(fd);
	if (!e)
		return REAL(connect)(fd, to, n);
	int kind = kind_of(e);
	if (kind != FRESH)
		return FAIL(kind == CONNECTED ? EISCONN : kind == CONNECTING ? EALREADY : EINVAL);
	bool nonblocking = atomic_load(&e->nonblocking);
	suit_buffers(e);
	entry_become(e, CONNECTING); /* so that poll takes part */
	union name plain;
	bool mapped = name_take(to, n, &plain);
	connect_underway = true;
	int r = mapped ? REAL(connect)(fd_of(e), &plain.any, sizeof plain.v4) : REAL(connect)(fd_of(e), to, n);
	int why = r ? errno : 0;
	connect_underway = false;
	if (replaced(e)) {
		if (!adopt_tcp(fd, e))
			return -1;
		if (why == EINPROGRESS && !nonblocking)
			r = finish(fd);
		else
			errno = why;
		return over_tcp(fd, r, to, n);
	}
	if (why == EINPROGRESS)
		why = outcome(e);
	if (why == 0) {
		entry_become(e, CONNECTED);
		return 0;
	}
	if (why == EINTR)
		return FAIL(EINTR);
	return become_tcp(fd, e) ? over_tcp(fd, REAL(connect)(fd, to, n), to, n) : -1;
}
