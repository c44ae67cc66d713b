/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands for rdma-core 44's librspreload.so: its descriptors are /dev/null, behind each is
 * a TCP socket instead of an rsocket, and it has the same gaps and the same manners. Where
 * the real one breaks, this one aborts: above all where a fork child uses an rsocket.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REQUIRE(x) ((x) ? (void)0 : (dprintf(2, "stub: line %d: %s\n", __LINE__, #x), abort()))

/* struct rs_svc of librdmacm's rsocket.c */
struct service {
	pthread_t id;
	int pair[2];
	int count, size, context_size;
	void *(*run)(void *);
	void *sockets, *contexts;
};

static struct {
	int tcp;      /* plus one; 0: not ours */
	int closed;   /* by rclose, and the number still stands for it */
	int queue[2]; /* of a listener: accepted connections, as in rsockets */
	struct service service;
} table[4096];

static pid_t maker; /* of all rsockets here */
static int mine(void) { return getpid() == maker; }

static int behind(int fd) { return fd >= 0 && fd < 4096 && table[fd].tcp ? table[fd].tcp - 1 : -1; }
static int number(int fd)
{
	REQUIRE(behind(fd) < 0 || (mine() && !table[fd].closed));
	return behind(fd) >= 0 ? behind(fd) : fd;
}
static int install(int tcp)
{
	int fd = (int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY);
	REQUIRE(fd >= 0 && fd < 4096);
	maker = maker ? maker : getpid();
	REQUIRE(mine());
	table[fd].tcp = tcp + 1;
	table[fd].closed = 0;
	table[fd].service = (struct service){0};
	return fd;
}

int socket(int domain, int type, int protocol)
{
	int fd = (int)syscall(SYS_socket, domain, type, protocol);
	/* The real library does not accept these flags; the library in front of it removes them. */
	REQUIRE(domain != AF_INET || type == SOCK_STREAM);
	return fd < 0 || domain != AF_INET ? fd : install(fd);
}

/* RDMA has its own ports: its 127.0.0.1 is another address in the kernel. */
#define HERE htonl(0x7f000001)
#define THERE htonl(0x7f000009)

static void swap(struct sockaddr *a, in_addr_t from, in_addr_t to)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)a;
	if (v4->sin_family == AF_INET && v4->sin_addr.s_addr == from)
		v4->sin_addr.s_addr = to;
}

/* A call of the kernel's with an address, for RDMA's side if fd is an rsocket. */
static int with(long call, int fd, const struct sockaddr *a, socklen_t n)
{
	struct sockaddr_storage at = {0};
	memcpy(&at, a, n < sizeof at ? n : sizeof at);
	if (behind(fd) >= 0)
		swap((struct sockaddr *)&at, HERE, THERE);
	return (int)syscall(call, number(fd), &at, n);
}

int bind(int fd, const struct sockaddr *a, socklen_t n) { return with(SYS_bind, fd, a, n); }

/* Takes connections and puts them into the queue, until the listener is shut down. */
static void *serve(void *arg)
{
	int fd = 0, tcp;
	while (&table[fd].service != arg)
		fd++;
	while ((tcp = (int)syscall(SYS_accept4, behind(fd), NULL, NULL, 0)) >= 0)
		REQUIRE(syscall(SYS_write, table[fd].queue[1], &tcp, sizeof tcp) == sizeof tcp);
	return NULL;
}

/* librdmacm's, as rclose below. */
int rlisten(int fd, int backlog)
{
	if (syscall(SYS_listen, number(fd), backlog))
		return -1;
	syscall(SYS_fcntl, behind(fd), F_SETFL, 0); /* the thread blocks */
	REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, table[fd].queue) == 0);
	struct service *s = &table[fd].service;
	REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, s->pair) == 0);
	s->context_size = 8;
	s->run = serve;
	REQUIRE(pthread_create(&s->id, NULL, s->run, s) == 0);
	/* The list of the real one must never grow. AddressSanitizer hides the struct from us. */
	REQUIRE(s->size == 65536 || getenv("ASAN_OPTIONS"));
	return 0;
}

int listen(int fd, int backlog)
{
	return behind(fd) < 0 ? (int)syscall(SYS_listen, fd, backlog) : rlisten(fd, backlog);
}

int accept(int fd, struct sockaddr *a, socklen_t *n)
{
	int tcp;
	if (behind(fd) < 0)
		return (int)syscall(SYS_accept4, fd, a, n, 0);
	if (syscall(SYS_read, table[fd].queue[0], &tcp, sizeof tcp) != sizeof tcp)
		return -1;
	if (a) {
		syscall(SYS_getpeername, tcp, a, n);
		swap(a, THERE, HERE);
	}
	return install(tcp);
}

int connect(int fd, const struct sockaddr *a, socklen_t n) { return with(SYS_connect, fd, a, n); }
int shutdown(int fd, int how) { return (int)syscall(SYS_shutdown, number(fd), how); }

static int name(long call, int fd, struct sockaddr *a, socklen_t *n)
{
	/* What a fork child may ask; the answer is in memory. */
	int r = (int)syscall(call, behind(fd) >= 0 ? behind(fd) : fd, a, n);
	if (r == 0 && behind(fd) >= 0)
		swap(a, THERE, HERE);
	return r;
}
int getsockname(int fd, struct sockaddr *a, socklen_t *n) { return name(SYS_getsockname, fd, a, n); }
int getpeername(int fd, struct sockaddr *a, socklen_t *n) { return name(SYS_getpeername, fd, a, n); }

ssize_t recv(int fd, void *buf, size_t n, int flags)
{
	REQUIRE(behind(fd) < 0 || (flags & MSG_DONTWAIT)); /* a blocking call does not hear of a death */
	return syscall(SYS_recvfrom, number(fd), buf, n, flags, NULL, NULL);
}

ssize_t send(int fd, const void *buf, size_t n, int flags)
{
	REQUIRE(behind(fd) < 0 || (flags & MSG_DONTWAIT));
	return syscall(SYS_sendto, number(fd), buf, n, flags | MSG_NOSIGNAL, NULL, 0);
}

int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct pollfd list[64];
	REQUIRE(n <= 64);
	for (nfds_t i = 0; i < n; i++) {
		REQUIRE(fds[i].fd >= 0); /* an index into its table */
		REQUIRE(behind(fds[i].fd) < 0 || timeout <= 0); /* a limit spoils its count of pollers */
		list[i] = (struct pollfd){.fd = number(fds[i].fd), .events = fds[i].events};
	}
	struct timespec t = {timeout / 1000, timeout % 1000 * 1000000l};
	int r = (int)syscall(SYS_ppoll, list, n, timeout < 0 ? NULL : &t, NULL, 8);
	for (nfds_t i = 0; i < n; i++)
		fds[i].revents = list[i].revents;
	return r;
}

int fcntl(int fd, int command, ...)
{
	va_list list;
	va_start(list, command);
	long argument = va_arg(list, long);
	va_end(list);
	REQUIRE(behind(fd) < 0 || command == F_SETFL || command == F_GETFL);
	return (int)syscall(SYS_fcntl, number(fd), command, argument);
}

int getsockopt(int fd, int level, int name, void *v, socklen_t *n)
{
	if (behind(fd) >= 0 && (level != SOL_SOCKET || name != SO_ERROR) && (level != IPPROTO_TCP || name != TCP_MAXSEG))
		return errno = ENOTSUP, -1;
	return (int)syscall(SYS_getsockopt, number(fd), level, name, v, n);
}

int setsockopt(int fd, int level, int name, const void *v, socklen_t n)
{
	if (behind(fd) >= 0 && (level != SOL_SOCKET || name != SO_REUSEADDR) && (level != IPPROTO_TCP || name != TCP_NODELAY))
		return errno = ENOTSUP, -1;
	return (int)syscall(SYS_setsockopt, number(fd), level, name, v, n);
}

/* librdmacm's. The parent's service thread would receive what it says. */
int rclose(int fd)
{
	REQUIRE(mine() && !table[fd].closed);
	table[fd].closed = 1;
	if (table[fd].service.run) {
		syscall(SYS_shutdown, behind(fd), SHUT_RDWR);
		pthread_join(table[fd].service.id, NULL);
		for (int i = 0; i < 2; i++) {
			syscall(SYS_close, table[fd].queue[i]);
			syscall(SYS_close, table[fd].service.pair[i]);
		}
	}
	return (int)syscall(SYS_close, behind(fd));
}

int close(int fd)
{
	if (behind(fd) < 0)
		return (int)syscall(SYS_close, fd);
	int r = rclose(fd);
	table[fd].tcp = 0;
	table[fd].service.run = NULL;
	syscall(SYS_close, fd);
	return r;
}

/* Closing a copy ends the connection in the real library. */
int dup2(int from, int to)
{
	REQUIRE(behind(from) < 0 && behind(to) < 0);
	if (from == to)
		return fcntl(from, F_GETFD) < 0 ? -1 : to;
	return (int)syscall(SYS_dup3, from, to, 0);
}
