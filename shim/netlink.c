/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA netlink: the daemon answers a program that asks the kernel for its RDMA devices. The
 * program's descriptor is the connection to the daemon, a socket that keeps the borders of
 * datagrams as netlink does. So sending, waiting and MSG_PEEK need no code here. Only
 * addresses differ: a Unix socket has no netlink address, so we return one. The kernel's own
 * address is all zero.
 *
 * Nothing is multicast: a program can join groups, but receives nothing from them.
 */
#include <fcntl.h>
#include <linux/netlink.h>
#include <string.h>
#include <sys/socket.h>

#include "vrdma.h"

extern char *program_invocation_short_name;

static bool is_netlink(int fd)
{
	struct file *f = file_at(fd);
	return f && atomic_load_explicit(&f->kind, memory_order_relaxed) == FILE_NETLINK;
}

static int netlink_open(int type)
{
	bool quiet = strcmp(program_invocation_short_name, "rdma") != 0;
	int socket;

	if (other_process() || wire_netlink(quiet, &socket))
		return -EPROTONOSUPPORT; /* libibverbs then reads sysfs: our tree */
	int fd = (int)sys(SYS_fcntl, socket, type & SOCK_CLOEXEC ? F_DUPFD_CLOEXEC : F_DUPFD, 0);
	fd_unhide(socket);
	if (fd < 0)
		return fd;
	if (type & SOCK_NONBLOCK)
		sys(SYS_fcntl, fd, F_SETFL, O_RDWR | O_NONBLOCK);
	struct file *f = file_new(FILE_NETLINK);
	if (f)
		f->id = 0;
	if (f && file_install(f, fd))
		return fd;
	if (f)
		file_put(f);
	sys(SYS_close, fd);
	return f ? -EMFILE : -ENOMEM;
}

EXPORT int socket(int domain, int type, int protocol)
{
	if (likely(domain != AF_NETLINK || protocol != NETLINK_RDMA))
		return REAL(socket)(domain, type, protocol);
	int fd = netlink_open(type);
	return fd < 0 ? (errno = -fd, -1) : fd;
}

/* ---- names ---- */

/* Copies an address to the caller as the kernel does: truncated to *len, which becomes the full length. */
static int tell(uint32_t port, struct sockaddr *to, socklen_t *len)
{
	struct sockaddr_nl a = {.nl_family = AF_NETLINK, .nl_pid = port};
	if (!to || !len)
		return errno = EFAULT, -1;
	memcpy(to, &a, *len < sizeof a ? *len : sizeof a);
	*len = sizeof a;
	return 0;
}

EXPORT int bind(int fd, const struct sockaddr *to, socklen_t len)
{
	struct sockaddr_nl a;
	if (likely(!is_netlink(fd)))
		return REAL(bind)(fd, to, len);
	if (!to || len < sizeof a || to->sa_family != AF_NETLINK)
		return errno = EINVAL, -1;
	memcpy(&a, to, sizeof a);
	struct file *f = file_get(fd);
	if (!f)
		return errno = EBADF, -1;
	f->id = a.nl_pid ? a.nl_pid : (uint32_t)sys(SYS_getpid);
	file_put(f);
	return 0;
}

EXPORT int connect(int fd, const struct sockaddr *to, socklen_t len)
{
	if (likely(!is_netlink(fd)))
		return REAL(connect)(fd, to, len);
	return 0; /* there is only one to talk to */
}

EXPORT int getsockname(int fd, struct sockaddr *restrict to, socklen_t *restrict len)
{
	if (likely(!is_netlink(fd)))
		return REAL(getsockname)(fd, to, len);
	struct file *f = file_get(fd);
	if (!f)
		return errno = EBADF, -1;
	uint32_t port = f->id;
	file_put(f);
	return tell(port, to, len);
}

EXPORT int getpeername(int fd, struct sockaddr *restrict to, socklen_t *restrict len)
{
	if (likely(!is_netlink(fd)))
		return REAL(getpeername)(fd, to, len);
	return tell(0, to, len);
}

/* ---- options ---- */

EXPORT int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	if (unlikely(level == SOL_NETLINK && is_netlink(fd)))
		return 0; /* the daemon answers as if every option were set */
	return REAL(setsockopt)(fd, level, name, value, len);
}

EXPORT int getsockopt(int fd, int level, int name, void *restrict value, socklen_t *restrict len)
{
	int v = name == SO_DOMAIN ? AF_NETLINK : name == SO_PROTOCOL ? NETLINK_RDMA : name == SO_TYPE ? SOCK_RAW : -1;
	if (likely(level != SOL_SOCKET || v < 0 || !is_netlink(fd)))
		return REAL(getsockopt)(fd, level, name, value, len);
	if (!value || !len || *len < sizeof v)
		return errno = EINVAL, -1;
	memcpy(value, &v, sizeof v);
	*len = sizeof v;
	return 0;
}

/* ---- receiving ---- */

/* At its end the daemon is gone; the kernel never is. */
static ssize_t received(ssize_t n, size_t room)
{
	return n == 0 && room ? (errno = EIO, -1) : n;
}

ssize_t netlink_recvmsg(int fd, struct msghdr *m, int flags)
{
	socklen_t room = m->msg_namelen;
	size_t bytes = 0;
	for (size_t i = 0; i < m->msg_iovlen; i++)
		bytes += m->msg_iov[i].iov_len;
	ssize_t n = received(REAL(recvmsg)(fd, m, flags), bytes);
	if (n >= 0 && m->msg_name) {
		m->msg_namelen = room;
		tell(0, m->msg_name, &m->msg_namelen);
	}
	return n;
}

ssize_t netlink_recvfrom(int fd, void *buf, size_t n, int flags, struct sockaddr *from, unsigned *len)
{
	ssize_t got = received(REAL(recvfrom)(fd, buf, n, flags, NULL, NULL), n);
	if (got >= 0 && from)
		tell(0, from, len);
	return got;
}
