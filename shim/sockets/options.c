/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options. Programs insist on some that rsockets does not know: iperf3 does not start
 * without TCP_INFO, others not without F_SETOWN or SO_REUSEPORT. What is no more than a
 * wish is granted; what changes the meaning of the data (a fast open, encryption) is not.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#include "sockets.h"

static int give(void *to, socklen_t *room, const void *value, size_t n)
{
	if (!room)
		return FAIL(EFAULT);
	if (*room > n)
		*room = (socklen_t)n;
	memcpy(to, value, *room);
	return 0;
}

static int give_int(void *to, socklen_t *room, int value) { return give(to, room, &value, sizeof value); }

static int get_patience(struct entry *e, int which, void *to, socklen_t *room)
{
	int ms = atomic_load(&e->patience[which]);
	struct timeval t = {ms / 1000, ms % 1000 * 1000};
	return give(to, room, &t, sizeof t);
}

static int get_socket(struct entry *e, int name, void *to, socklen_t *room)
{
	switch (name) {
	case SO_TYPE:
		return give_int(to, room, SOCK_STREAM);
	case SO_DOMAIN:
		return give_int(to, room, e->domain);
	case SO_PROTOCOL:
		return give_int(to, room, IPPROTO_TCP);
	case SO_ACCEPTCONN:
		return give_int(to, room, kind_of(e) == LISTENING);
	case SO_RCVTIMEO:
		return get_patience(e, 0, to, room);
	case SO_SNDTIMEO:
		return get_patience(e, 1, to, room);
	}
	return REAL(getsockopt)(number_of(e), SOL_SOCKET, name, to, room);
}

static int get_tcp(struct entry *e, int name, void *to, socklen_t *room)
{
	struct tcp_info info = {0};
	switch (name) {
	case TCP_INFO:
		info.tcpi_state = kind_of(e) == CONNECTED ? TCP_ESTABLISHED : kind_of(e) == LISTENING ? TCP_LISTEN : TCP_CLOSE;
		info.tcpi_snd_mss = info.tcpi_rcv_mss = info.tcpi_advmss = 4096;
		info.tcpi_snd_cwnd = 1;
		return give(to, room, &info, sizeof info);
	case TCP_CONGESTION: /* newer versions of rsockets answer with a number */
		return give(to, room, "rdma", sizeof "rdma");
	}
	return REAL(getsockopt)(number_of(e), IPPROTO_TCP, name, to, room);
}

static bool unknown(void) { return errno == ENOTSUP || errno == ENOPROTOOPT; }

EXPORT int getsockopt(int fd, int level, int name, void *restrict to, socklen_t *restrict room)
{
	struct entry *e = entry_at(fd);
	if (!e || kind_of(e) == DEAD)
		return REAL(getsockopt)(fd, level, name, to, room);
	int r = level == SOL_SOCKET ? get_socket(e, name, to, room)
	      : level == IPPROTO_TCP ? get_tcp(e, name, to, room)
				     : REAL(getsockopt)(number_of(e), level, name, to, room);
	if (r && unknown() && to && room && *room >= sizeof(int))
		return give_int(to, room, 0);
	return r;
}

static int set_patience(struct entry *e, int which, const void *from, socklen_t n)
{
	struct timeval t;
	if (n < sizeof t)
		return FAIL(EINVAL);
	memcpy(&t, from, sizeof t);
	long long ms = t.tv_sec * 1000ll + (t.tv_usec + 999) / 1000;
	atomic_store(&e->patience[which], ms > 1 << 30 ? 0 : (int)ms);
	return 0;
}

/* True: this must not be granted without being done. */
static bool matters(int level, int name)
{
	if (level == SOL_SOCKET)
		return name == SO_ZEROCOPY || name == SO_BINDTODEVICE;
	return level == IPPROTO_TCP && (name == TCP_FASTOPEN_CONNECT || name == TCP_ULP || name == TCP_MD5SIG || name == TCP_REPAIR);
}

EXPORT int setsockopt(int fd, int level, int name, const void *from, socklen_t n)
{
	struct entry *e = entry_at(fd);
	if (!e || kind_of(e) == DEAD)
		return REAL(setsockopt)(fd, level, name, from, n);
	if (level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO))
		return set_patience(e, name == SO_SNDTIMEO, from, n);
	/* A reliable connection needs no packets to stay alive; rsockets would start a thread. */
	if ((level == SOL_SOCKET && name == SO_KEEPALIVE) || (level == IPPROTO_TCP && name == TCP_KEEPIDLE))
		return 0;
	if (level == SOL_SOCKET && (name == SO_RCVBUF || name == SO_SNDBUF))
		atomic_store(&e->sized, true);
	int r = REAL(setsockopt)(number_of(e), level, name, from, n);
	return r && unknown() && !matters(level, name) ? 0 : r;
}

static int control(int fd, struct entry *e, int command, long argument)
{
	switch (command) {
	case F_GETFL:
		return O_RDWR | (atomic_load(&e->nonblocking) ? O_NONBLOCK : 0);
	case F_SETFL:
		atomic_store(&e->nonblocking, (argument & O_NONBLOCK) != 0);
		return 0;
	case F_DUPFD:
		return duplicate(e, (int)argument, 0);
	case F_DUPFD_CLOEXEC:
		return duplicate(e, (int)argument, O_CLOEXEC);
	case F_SETOWN: /* nobody gets SIGIO or SIGURG from an rsocket */
	case F_SETSIG:
		return 0;
	}
	long r = sys(SYS_fcntl, fd, command, argument);
	return r < 0 ? FAIL((int)-r) : (int)r;
}

#define FCNTL(name)                                                           \
	EXPORT int name(int fd, int command, ...)                             \
	{                                                                     \
		va_list list;                                                 \
		va_start(list, command);                                      \
		long argument = va_arg(list, long);                           \
		va_end(list);                                                 \
		struct entry *e = entry_at(fd);                               \
		return e ? control(fd, e, command, argument)                  \
			 : REAL_AS(int (*)(int, int, ...), name)(fd, command, argument); \
	}
int fcntl64(int fd, int command, ...);
FCNTL(fcntl)
FCNTL(fcntl64)

/* How much can be read without waiting, of a page at most. */
static int readable(struct entry *e, int *n)
{
	char page[4096];
	ssize_t r = REAL(recv)(number_of(e), page, sizeof page, MSG_PEEK | MSG_DONTWAIT);
	*n = r > 0 ? (int)r : 0;
	return 0;
}

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	va_start(list, request);
	void *argument = va_arg(list, void *);
	va_end(list);
	struct entry *e = entry_at(fd);
	if (e && request == FIONBIO) {
		atomic_store(&e->nonblocking, *(int *)argument != 0);
		return 0;
	}
	if (e && request == FIONREAD)
		return readable(e, argument);
	return REAL_AS(int (*)(int, unsigned long, ...), ioctl)(fd, request, argument);
}
