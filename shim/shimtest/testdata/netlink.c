/* A socket of NETLINK_RDMA: names, datagrams, descriptors. The fake daemon answers every
 * datagram with itself, and then with one of twice its bytes. */
#include "t.h"

#include <linux/netlink.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

static struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};

static void names(int fd)
{
	struct sockaddr_nl a = {.nl_family = AF_NETLINK, .nl_pid = 12345, .nl_groups = 1};
	socklen_t n = sizeof a;
	int v = 0;
	CHECK(getsockname(fd, (void *)&a, &n) == 0 && n == sizeof a && a.nl_family == AF_NETLINK && a.nl_pid == 0);
	CHECK(bind(fd, (void *)&a, sizeof a) == 0);
	CHECK(getsockname(fd, (void *)&a, &n) == 0 && a.nl_pid == (uint32_t)getpid());
	a.nl_pid = 12345;
	CHECK(bind(fd, (void *)&a, sizeof a) == 0);
	memset(&a, 0, sizeof a);
	CHECK(getsockname(fd, (void *)&a, &n) == 0 && a.nl_pid == 12345 && a.nl_groups == 0);
	CHECK(getpeername(fd, (void *)&a, &n) == 0 && a.nl_family == AF_NETLINK && a.nl_pid == 0);
	CHECK(bind(fd, (void *)&a, 2) == -1 && errno == EINVAL);
	CHECK(connect(fd, (void *)&kernel, sizeof kernel) == 0);
	CHECK(setsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &v, sizeof v) == 0);
	v = 32768;
	CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &v, sizeof v) == 0);
	n = sizeof v;
	CHECK(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &v, &n) == 0 && v == AF_NETLINK);
	CHECK(getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &v, &n) == 0 && v == 20);
}

/* Receives with recvmsg; the sender is the kernel. */
static ssize_t receive(int fd, void *buf, size_t room, int flags)
{
	struct sockaddr_nl from = {.nl_pid = 7};
	struct iovec iov = {buf, room};
	struct msghdr m = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n = recvmsg(fd, &m, flags);
	if (n >= 0)
		CHECK(m.msg_namelen == sizeof from && from.nl_family == AF_NETLINK && from.nl_pid == 0);
	return n;
}

static void datagrams(int fd)
{
	char text[] = "0123456789", buf[64];
	struct sockaddr_nl from = {.nl_pid = 7};
	socklen_t n = sizeof from;
	struct iovec iov = {text, 10};
	struct msghdr m = {.msg_name = &kernel, .msg_namelen = sizeof kernel, .msg_iov = &iov, .msg_iovlen = 1};

	CHECK(sendto(fd, text, 10, 0, (void *)&kernel, sizeof kernel) == 10);
	CHECK(receive(fd, buf, 4, MSG_PEEK | MSG_TRUNC) == 10);
	CHECK(receive(fd, buf, sizeof buf, 0) == 10 && memcmp(buf, text, 10) == 0);
	CHECK(recvfrom(fd, buf, 4, MSG_TRUNC, (void *)&from, &n) == 20 && n == sizeof from && from.nl_pid == 0 &&
	      from.nl_family == AF_NETLINK);
	CHECK(recv(fd, buf, sizeof buf, MSG_DONTWAIT) == -1 && errno == EAGAIN);

	CHECK(sendmsg(fd, &m, 0) == 10);
	CHECK(read(fd, buf, sizeof buf) == 10 && recv(fd, buf, sizeof buf, 0) == 20);
	CHECK(write(fd, text, 10) == 10 && read(fd, buf, sizeof buf) == 10 && read(fd, buf, sizeof buf) == 20);
	CHECK(writev(fd, &iov, 1) == 10);
	struct pollfd p = {.fd = fd, .events = POLLIN};
	CHECK(poll(&p, 1, 60000) == 1 && p.revents == POLLIN);
	CHECK(receive(fd, buf, sizeof buf, 0) == 10 && receive(fd, buf, sizeof buf, 0) == 20);
}

static void descriptors(void)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 20);
	char byte;
	CHECK(fd >= 0 && fd < 64 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(receive(fd, &byte, 1, 0) == -1 && errno == EAGAIN);
	CHECK(fcntl(fd, F_SETFL, 0) == 0);
	int other = dup(fd);
	CHECK(close(fd) == 0);
	datagrams(other);
	/* A child of fork continues to use it. */
	pid_t child = fork();
	if (child == 0) {
		datagrams(other);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(close(other) == 0);
	CHECK(close(other) == -1 && errno == EBADF);
	for (int i = 0; i < 200; i++) { /* nothing leaks */
		fd = socket(AF_NETLINK, SOCK_DGRAM, 20);
		CHECK(fd >= 0 && fd < 64 && fcntl(fd, F_GETFD) == 0 && close(fd) == 0);
	}
}

int main(int argc, char **argv)
{
	(void)argv;
	int fd = socket(AF_NETLINK, SOCK_RAW, 20);
	if (argc > 1) {
		CHECK(fd == -1 && errno == EPROTONOSUPPORT);
		return 0;
	}
	CHECK(fd >= 0);
	names(fd);
	datagrams(fd);
	CHECK(close(fd) == 0);
	descriptors();
	/* Other protocols go to the kernel. */
	fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
	struct sockaddr_nl a = kernel;
	socklen_t n = sizeof a;
	CHECK(fd >= 0 && bind(fd, (void *)&kernel, sizeof kernel) == 0 && getsockname(fd, (void *)&a, &n) == 0 && a.nl_pid);
	CHECK(close(fd) == 0);
	return 0;
}
