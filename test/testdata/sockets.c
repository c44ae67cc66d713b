/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs expect of TCP sockets, each thing tried over connections of this process to
 * itself. It passes on the kernel's own sockets, and has to pass on rsockets.
 *
 *   sockets [NAME...]     run all, or those
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WANT(x)                                                                             \
	do {                                                                                \
		errno = 0;                                                                  \
		if (!(x)) {                                                                 \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, strerror(errno)); \
			exit(1);                                                            \
		}                                                                           \
	} while (0)
#define FAILS(x, e) WANT((x) == -1 && errno == (e))

static struct sockaddr_in at;

static int listener(int flags)
{
	int l = socket(AF_INET, SOCK_STREAM | flags, 0);
	socklen_t n = sizeof at;
	at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	WANT(l >= 0);
	WANT(bind(l, (struct sockaddr *)&at, sizeof at) == 0);
	WANT(listen(l, 16) == 0);
	WANT(getsockname(l, (struct sockaddr *)&at, &n) == 0 && at.sin_port != 0);
	return l;
}

static void pair(int fd[2])
{
	int l = listener(SOCK_CLOEXEC);
	fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
	WANT(fd[0] >= 0);
	WANT(connect(fd[0], (struct sockaddr *)&at, sizeof at) == 0);
	WANT((fd[1] = accept4(l, NULL, NULL, SOCK_CLOEXEC)) >= 0);
	WANT(close(l) == 0);
}

static void unpair(int fd[2])
{
	WANT(close(fd[0]) == 0);
	WANT(close(fd[1]) == 0);
}

static long long now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

static void say(int fd, const char *text) { WANT(write(fd, text, strlen(text)) == (ssize_t)strlen(text)); }
static void hear(int fd, const char *text)
{
	char buf[256] = {0};
	size_t n = strlen(text);
	WANT(recv(fd, buf, n, MSG_WAITALL) == (ssize_t)n && !memcmp(buf, text, n));
}

static void flags(void)
{
	struct sockaddr_in from;
	socklen_t n = sizeof from;
	int l = listener(SOCK_NONBLOCK | SOCK_CLOEXEC), on = 1, off = 0;
	WANT(fcntl(l, F_GETFL) & O_NONBLOCK);
	WANT(fcntl(l, F_GETFD) & FD_CLOEXEC);
	FAILS(accept4(l, NULL, NULL, 0), EAGAIN);
	int c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), s;
	WANT(connect(c, (struct sockaddr *)&at, sizeof at) == 0 || errno == EINPROGRESS);
	struct pollfd p[2] = {{.fd = c, .events = POLLOUT}, {.fd = l, .events = POLLIN}};
	WANT(poll(p, 1, 60000) == 1 && p[0].revents == POLLOUT);
	WANT(poll(p + 1, 1, 60000) == 1 && p[1].revents == POLLIN);
	WANT((s = accept4(l, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0);
	WANT(n == sizeof from && from.sin_family == AF_INET && from.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	WANT(fcntl(s, F_GETFL) & O_NONBLOCK);
	WANT(fcntl(s, F_GETFD) & FD_CLOEXEC);
	char b;
	FAILS(read(s, &b, 1), EAGAIN);
	FAILS(recv(s, &b, 1, MSG_WAITALL), EAGAIN);
	WANT(fcntl(s, F_SETFL, 0) == 0 && !(fcntl(s, F_GETFL) & O_NONBLOCK));
	FAILS(recv(s, &b, 1, MSG_DONTWAIT), EAGAIN);
	WANT(ioctl(s, FIONBIO, &on) == 0);
	FAILS(read(s, &b, 1), EAGAIN);
	WANT(ioctl(s, FIONBIO, &off) == 0);
	say(c, "x");
	hear(s, "x");
	close(c);
	close(s);
	close(l);
}

static void polls(void)
{
	int fd[2];
	pair(fd);
	struct pollfd p[3] = {{.fd = fd[0], .events = POLLIN}, {.fd = -1}, {.fd = fd[1], .events = POLLIN}};
	WANT(poll(p, 3, 0) == 0);
	for (int i = 0; i < 4; i++) { /* a limit, over and over */
		long long from = now_ms();
		WANT(poll(p, 3, 30) == 0 && now_ms() - from >= 29);
	}
	say(fd[0], "abc");
	WANT(poll(p, 3, 60000) == 1 && p[0].revents == 0 && p[2].revents == POLLIN);
	p[0].events = POLLIN | POLLOUT;
	WANT(poll(p, 3, -1) == 2 && p[0].revents == POLLOUT);
	struct timespec t = {60, 0};
	WANT(ppoll(p, 3, &t, NULL) == 2);
	hear(fd[1], "abc");
	unpair(fd);
}

static void selects(void)
{
	int fd[2];
	pair(fd);
	fd_set in, out;
	struct timeval t = {0, 30000};
	FD_ZERO(&in);
	FD_SET(fd[1], &in);
	long long from = now_ms();
	WANT(select(fd[1] + 1, &in, NULL, NULL, &t) == 0 && !FD_ISSET(fd[1], &in) && now_ms() - from >= 29);
	say(fd[0], "abc");
	FD_SET(fd[0], &in);
	FD_SET(fd[1], &in);
	FD_ZERO(&out);
	FD_SET(fd[0], &out);
	t = (struct timeval){60, 0};
	int top = fd[0] > fd[1] ? fd[0] : fd[1];
	for (int n = 0; n < 2;) { /* one may be ready before the other */
		FD_SET(fd[0], &in);
		FD_SET(fd[1], &in);
		FD_SET(fd[0], &out);
		WANT((n = select(top + 1, &in, &out, NULL, &t)) > 0);
	}
	WANT(FD_ISSET(fd[1], &in) && !FD_ISSET(fd[0], &in) && FD_ISSET(fd[0], &out));
	WANT(t.tv_sec >= 0 && t.tv_sec <= 60);
	hear(fd[1], "abc");
	unpair(fd);
}

static void *add_later(void *arg)
{
	int *a = arg;
	struct epoll_event e = {.events = EPOLLIN, .data.u64 = 42};
	WANT(epoll_ctl(a[0], EPOLL_CTL_ADD, a[1], &e) == 0);
	return NULL;
}

static void epolls(void)
{
	int fd[2], other[2], l = listener(0), ep = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event e = {.events = EPOLLIN, .data.u32 = 1}, got[4];
	WANT(ep >= 0);
	WANT(epoll_ctl(ep, EPOLL_CTL_ADD, l, &e) == 0);
	WANT(pipe(other) == 0);
	e.data.u32 = 2;
	WANT(epoll_ctl(ep, EPOLL_CTL_ADD, other[0], &e) == 0);
	WANT(epoll_wait(ep, got, 4, 0) == 0);
	fd[0] = socket(AF_INET, SOCK_STREAM, 0);
	WANT(connect(fd[0], (struct sockaddr *)&at, sizeof at) == 0);
	WANT(epoll_wait(ep, got, 4, 60000) == 1 && got[0].data.u32 == 1 && got[0].events == EPOLLIN);
	WANT((fd[1] = accept(l, NULL, NULL)) >= 0);
	e.data.u32 = 3;
	WANT(epoll_ctl(ep, EPOLL_CTL_ADD, fd[1], &e) == 0);
	FAILS(epoll_ctl(ep, EPOLL_CTL_ADD, fd[1], &e), EEXIST);
	long long from = now_ms();
	WANT(epoll_wait(ep, got, 4, 30) == 0 && now_ms() - from >= 29);
	say(fd[0], "abc");
	WANT(epoll_wait(ep, got, 4, 60000) == 1 && got[0].data.u32 == 3 && got[0].events == EPOLLIN);
	WANT(epoll_wait(ep, got, 4, -1) == 1); /* level-triggered */
	WANT(write(other[1], "p", 1) == 1);
	WANT(epoll_wait(ep, got, 4, -1) == 2);
	hear(fd[1], "abc");
	WANT(epoll_wait(ep, got, 4, -1) == 1 && got[0].data.u32 == 2);
	char b;
	WANT(read(other[0], &b, 1) == 1);
	e.events = EPOLLIN | EPOLLOUT | EPOLLET; /* edge-triggered */
	WANT(epoll_ctl(ep, EPOLL_CTL_MOD, fd[1], &e) == 0);
	WANT(epoll_wait(ep, got, 4, 60000) == 1 && got[0].events == EPOLLOUT);
	WANT(epoll_wait(ep, got, 4, 30) == 0);
	say(fd[0], "de");
	WANT(epoll_wait(ep, got, 4, 60000) == 1 && (got[0].events & EPOLLIN));
	WANT(epoll_wait(ep, got, 4, 30) == 0);
	hear(fd[1], "de");
	say(fd[0], "f");
	WANT(epoll_wait(ep, got, 4, 60000) == 1 && (got[0].events & EPOLLIN));
	hear(fd[1], "f");
	e.events = EPOLLOUT | EPOLLONESHOT;
	WANT(epoll_ctl(ep, EPOLL_CTL_MOD, fd[1], &e) == 0);
	WANT(epoll_wait(ep, got, 4, 60000) == 1 && got[0].events == EPOLLOUT);
	WANT(epoll_wait(ep, got, 4, 30) == 0);
	WANT(epoll_ctl(ep, EPOLL_CTL_DEL, fd[1], NULL) == 0);
	FAILS(epoll_ctl(ep, EPOLL_CTL_DEL, fd[1], NULL), ENOENT);
	say(fd[0], "g");
	pthread_t thread; /* somebody else adds while we wait */
	WANT(pthread_create(&thread, NULL, add_later, (int[]){ep, fd[1]}) == 0);
	WANT(epoll_wait(ep, got, 4, -1) == 1 && got[0].data.u64 == 42);
	pthread_join(thread, NULL);
	close(fd[1]); /* and a closed one is forgotten */
	WANT(epoll_wait(ep, got, 4, 30) == 0);
	close(fd[0]);
	close(l);
	close(other[0]);
	close(other[1]);
	close(ep);
}

static void copies(void)
{
	int fd[2];
	char b;
	pair(fd);
	int d = dup(fd[0]), high = fcntl(fd[0], F_DUPFD_CLOEXEC, 100);
	WANT(d >= 0 && high >= 100);
	WANT(close(fd[0]) == 0);
	say(d, "dup");
	say(high, "licate");
	hear(fd[1], "duplicate");
	WANT(close(d) == 0);
	FAILS(recv(fd[1], &b, 1, MSG_DONTWAIT), EAGAIN); /* one is left */
	WANT(close(high) == 0);
	WANT(read(fd[1], &b, 1) == 0);
	WANT(close(fd[1]) == 0);
	int file[2];
	pair(fd);
	WANT(pipe(file) == 0);
	WANT(dup2(file[1], fd[0]) == fd[0]); /* closes the connection */
	WANT(read(fd[1], &b, 1) == 0);
	say(fd[0], "pipe");
	char buf[4];
	WANT(read(file[0], buf, 4) == 4);
	close(file[0]);
	close(file[1]);
	unpair(fd);
}

static void vectors(void)
{
	int fd[2];
	char a[3] = {0}, b[5] = {0}, big[40000];
	pair(fd);
	struct iovec out[3] = {{"he", 2}, {"", 0}, {"llo!", 4}}, in[2] = {{a, 2}, {b, 4}};
	WANT(writev(fd[0], out, 3) == 6);
	struct pollfd p = {.fd = fd[1], .events = POLLIN};
	WANT(poll(&p, 1, -1) == 1);
	WANT(readv(fd[1], in, 2) == 6 && !strcmp(a, "he") && !strcmp(b, "llo!"));
	struct msghdr m = {.msg_iov = out, .msg_iovlen = 3}, r = {.msg_iov = in, .msg_iovlen = 2};
	WANT(sendmsg(fd[0], &m, MSG_NOSIGNAL) == 6);
	WANT(recvmsg(fd[1], &r, MSG_WAITALL) == 6 && r.msg_flags == 0);
	memset(big, 'b', sizeof big);
	struct iovec mixed[3] = {{"<", 1}, {big, sizeof big}, {">", 1}};
	WANT(writev(fd[0], mixed, 3) == sizeof big + 2);
	hear(fd[1], "<");
	memset(big, 0, sizeof big);
	WANT(recv(fd[1], big, sizeof big, MSG_WAITALL) == sizeof big && big[0] == 'b' && big[sizeof big - 1] == 'b');
	hear(fd[1], ">");
	say(fd[0], "peek");
	WANT(poll(&p, 1, -1) == 1);
	WANT(recv(fd[1], b, 4, MSG_PEEK) == 4 && !memcmp(b, "peek", 4));
	int n = 0;
	WANT(ioctl(fd[1], FIONREAD, &n) == 0 && n == 4);
	hear(fd[1], "peek");
	WANT(sendto(fd[0], "to", 2, 0, (struct sockaddr *)&at, sizeof at) == 2);
	hear(fd[1], "to");
	FILE *f = tmpfile();
	WANT(f && fwrite("0123456789", 1, 10, f) == 10 && fflush(f) == 0);
	off_t off = 3;
	WANT(sendfile(fd[0], fileno(f), &off, 4) == 4 && off == 7);
	hear(fd[1], "3456");
	WANT(lseek(fileno(f), 8, SEEK_SET) == 8);
	WANT(sendfile(fd[0], fileno(f), NULL, 100) == 2);
	hear(fd[1], "89");
	fclose(f);
	unpair(fd);
}

static void options(void)
{
	int fd[2], v = 0, fresh = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t n = sizeof v;
	struct sockaddr_in a;
	struct tcp_info info;
	pair(fd);
	WANT(getsockopt(fd[0], SOL_SOCKET, SO_TYPE, &v, &n) == 0 && v == SOCK_STREAM);
	WANT(getsockopt(fd[0], SOL_SOCKET, SO_DOMAIN, &v, &n) == 0 && v == AF_INET);
	WANT(getsockopt(fd[0], SOL_SOCKET, SO_PROTOCOL, &v, &n) == 0 && v == IPPROTO_TCP);
	WANT(getsockopt(fd[0], SOL_SOCKET, SO_ERROR, &v, &n) == 0 && v == 0);
	WANT(getsockopt(fd[0], IPPROTO_TCP, TCP_MAXSEG, &v, &n) == 0 && v > 0);
	n = sizeof info;
	WANT(getsockopt(fd[0], IPPROTO_TCP, TCP_INFO, &info, &n) == 0 && info.tcpi_state == TCP_ESTABLISHED);
	char name[16];
	n = sizeof name;
	WANT(getsockopt(fd[0], IPPROTO_TCP, TCP_CONGESTION, name, &n) == 0);
	v = 1;
	WANT(setsockopt(fd[0], IPPROTO_TCP, TCP_NODELAY, &v, sizeof v) == 0);
	WANT(setsockopt(fd[0], SOL_SOCKET, SO_KEEPALIVE, &v, sizeof v) == 0);
	WANT(setsockopt(fresh, SOL_SOCKET, SO_REUSEADDR, &v, sizeof v) == 0);
	WANT(setsockopt(fresh, SOL_SOCKET, SO_REUSEPORT, &v, sizeof v) == 0);
	WANT(fcntl(fd[0], F_SETOWN, getpid()) == 0);
	n = sizeof a;
	FAILS(getpeername(fresh, (struct sockaddr *)&a, &n), ENOTCONN);
	FAILS(send(fresh, "x", 1, MSG_NOSIGNAL), fresh < 0 ? EBADF : errno == EPIPE ? EPIPE : ENOTCONN);
	WANT(getpeername(fd[0], (struct sockaddr *)&a, &n) == 0 && a.sin_port == at.sin_port);
	FAILS(connect(fd[0], (struct sockaddr *)&at, sizeof at), EISCONN);
	struct timeval t = {0, 30000};
	n = sizeof t;
	WANT(setsockopt(fd[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) == 0);
	for (int i = 0; i < 3; i++) {
		long long from = now_ms();
		FAILS(recv(fd[0], &v, 1, 0), EAGAIN);
		WANT(now_ms() - from >= 29);
	}
	close(fresh);
	unpair(fd);
}

static void ends(void)
{
	int fd[2];
	char b;
	pair(fd);
	say(fd[0], "last words");
	WANT(shutdown(fd[0], SHUT_WR) == 0);
	hear(fd[1], "last words");
	WANT(read(fd[1], &b, 1) == 0);
	say(fd[1], "still here"); /* the other half is open */
	hear(fd[0], "still here");
	WANT(close(fd[1]) == 0);
	WANT(read(fd[0], &b, 1) == 0);
	WANT(close(fd[0]) == 0);
	pair(fd);
	WANT(close(fd[0]) == 0);
	struct pollfd p = {.fd = fd[1], .events = POLLIN};
	WANT(poll(&p, 1, 60000) == 1 && (p.revents & (POLLIN | POLLHUP)));
	WANT(read(fd[1], &b, 1) == 0);
	WANT(close(fd[1]) == 0);
	int c = socket(AF_INET, SOCK_STREAM, 0); /* nobody listens at this port any more */
	FAILS(connect(c, (struct sockaddr *)&at, sizeof at), ECONNREFUSED);
	WANT(close(c) == 0);
}

/* An IPv4 peer of an IPv6 socket has an IPv6 name. */
static void names(void)
{
	struct sockaddr_in6 six = {.sin6_family = AF_INET6}, name;
	struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int l = socket(AF_INET6, SOCK_STREAM, 0), off = 0, c, s;
	socklen_t n = sizeof six;
	WANT(setsockopt(l, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0);
	WANT(bind(l, (struct sockaddr *)&six, sizeof six) == 0 && listen(l, 4) == 0);
	WANT(getsockname(l, (struct sockaddr *)&six, &n) == 0 && n == sizeof six);
	four.sin_port = six.sin6_port;
	for (int mapped = 0; mapped < 2; mapped++) {
		c = socket(mapped ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
		inet_pton(AF_INET6, "::ffff:127.0.0.1", &six.sin6_addr);
		WANT(connect(c, mapped ? (struct sockaddr *)&six : (struct sockaddr *)&four, mapped ? sizeof six : sizeof four) == 0);
		n = sizeof name;
		WANT((s = accept(l, (struct sockaddr *)&name, &n)) >= 0);
		WANT(n == sizeof name && name.sin6_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&name.sin6_addr));
		n = sizeof name;
		WANT(getsockname(s, (struct sockaddr *)&name, &n) == 0 && IN6_IS_ADDR_V4MAPPED(&name.sin6_addr));
		n = sizeof name;
		WANT(getpeername(c, (struct sockaddr *)&name, &n) == 0 && n == (mapped ? sizeof six : sizeof four));
		say(c, "six");
		hear(s, "six");
		close(c);
		close(s);
	}
	close(l);
}

enum { LARGE = 8 << 20 };

static void *reader(void *arg)
{
	int fd = *(int *)arg;
	unsigned char *buf = malloc(LARGE);
	size_t got = 0;
	while (got < LARGE) {
		ssize_t r = read(fd, buf + got, LARGE - got);
		WANT(r > 0);
		got += (size_t)r;
	}
	for (size_t i = 0; i < LARGE; i++)
		WANT(buf[i] == (unsigned char)(i * 31 + (i >> 13)));
	free(buf);
	return NULL;
}

static void large(void)
{
	int fd[2];
	pthread_t thread;
	pair(fd);
	unsigned char *buf = malloc(LARGE);
	for (size_t i = 0; i < LARGE; i++)
		buf[i] = (unsigned char)(i * 31 + (i >> 13));
	WANT(pthread_create(&thread, NULL, reader, &fd[1]) == 0);
	WANT(write(fd[0], buf, LARGE) == LARGE); /* a blocking write writes all */
	pthread_join(thread, NULL);
	free(buf);
	unpair(fd);
}

static void nothing(int number) { (void)number; }

static void *alarm_and_say(void *arg)
{
	int *fd = arg;
	for (int i = 0; i < 3; i++) {
		usleep(20000);
		kill(getpid(), SIGUSR1);
	}
	usleep(20000);
	say(fd[0], "at last");
	return NULL;
}

/* A handler that signal() installed does not end a read; one without SA_RESTART does. */
static void signals(void)
{
	int fd[2];
	char b;
	pthread_t thread;
	sigset_t usr1;
	pair(fd);
	WANT(signal(SIGUSR1, nothing) != SIG_ERR);
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &usr1, NULL); /* for the thread */
	WANT(pthread_create(&thread, NULL, alarm_and_say, fd) == 0);
	pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
	hear(fd[1], "at last");
	pthread_join(thread, NULL);
	struct sigaction a = {.sa_handler = nothing};
	WANT(sigaction(SIGALRM, &a, NULL) == 0);
	struct itimerval soon = {.it_interval = {0, 20000}, .it_value = {0, 20000}}, never = {0};
	WANT(setitimer(ITIMER_REAL, &soon, NULL) == 0);
	FAILS(read(fd[1], &b, 1), EINTR);
	WANT(setitimer(ITIMER_REAL, &never, NULL) == 0);
	unpair(fd);
}

#define STREAM (24u << 20)

static void *pour(void *arg)
{
	static unsigned char block[100000];
	for (size_t i = 0; i < sizeof block; i++)
		block[i] = (unsigned char)(i % 251);
	for (size_t put = 0, n; put < STREAM; put += n) {
		n = STREAM - put < sizeof block ? STREAM - put : sizeof block;
		WANT(write(*(int *)arg, block, n) == (ssize_t)n);
	}
	return NULL;
}

/* A reader of much data still waits like others: until data, a limit, or a signal. */
static void streams(void)
{
	static unsigned char buf[65536];
	int fd[2];
	pthread_t thread;
	pair(fd);
	for (int blocking = 0; blocking < 2; blocking++) {
		WANT(pthread_create(&thread, NULL, pour, &fd[0]) == 0);
		for (size_t got = 0; got < STREAM;) {
			fd_set in;
			FD_ZERO(&in);
			FD_SET(fd[1], &in);
			WANT(blocking || select(fd[1] + 1, &in, NULL, NULL, NULL) == 1);
			ssize_t n = read(fd[1], buf, sizeof buf);
			WANT(n > 0);
			for (ssize_t i = 0; i < n; i++, got++)
				WANT(buf[i] == got % 100000 % 251);
		}
		pthread_join(thread, NULL);
		struct pollfd p = {.fd = fd[1], .events = POLLIN};
		long long start = now_ms();
		WANT(poll(&p, 1, 30) == 0 && now_ms() - start >= 29);
		struct sigaction a = {.sa_handler = nothing};
		WANT(sigaction(SIGALRM, &a, NULL) == 0);
		struct itimerval soon = {.it_interval = {0, 20000}, .it_value = {0, 20000}}, never = {0};
		WANT(setitimer(ITIMER_REAL, &soon, NULL) == 0);
		FAILS(read(fd[1], buf, 1), EINTR);
		WANT(setitimer(ITIMER_REAL, &never, NULL) == 0);
		say(fd[1], "thanks");
		hear(fd[0], "thanks");
	}
	unpair(fd);
}

static void children(void)
{
	int fd[2], status;
	pair(fd);
	pid_t pid = fork();
	WANT(pid >= 0);
	if (pid == 0) {
		close(fd[0]);
		close(fd[1]);
		_exit(0);
	}
	WANT(waitpid(pid, &status, 0) == pid && status == 0);
	say(fd[0], "the parent goes on");
	hear(fd[1], "the parent goes on");
	WANT(system("true") == 0);
	say(fd[1], "and on");
	hear(fd[0], "and on");
	unpair(fd);
}

static const struct {
	const char *name;
	void (*run)(void);
} all[] = {
	{"flags", flags}, {"polls", polls}, {"selects", selects}, {"epolls", epolls}, {"copies", copies},
	{"vectors", vectors}, {"options", options}, {"names", names}, {"ends", ends}, {"large", large}, {"signals", signals},
	{"streams", streams}, {"children", children},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		int wanted = argc == 1;
		for (int a = 1; a < argc; a++)
			wanted = wanted || !strcmp(argv[a], all[i].name);
		if (!wanted)
			continue;
		all[i].run();
		printf("ok %s\n", all[i].name);
		fflush(stdout);
	}
	return 0;
}
