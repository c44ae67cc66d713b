/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading and writing. A blocking call is a non-blocking one and a wait, over and over:
 * inside its own blocking calls rsockets waits for a completion, which does not come when
 * the peer has died.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

#include "sockets.h"

static bool ready(struct entry *e)
{
	int k = kind_of(e);
	if (k == CONNECTING || k == CONNECTED)
		return true;
	return k == DEAD ? dead_use() == 0 : FAIL(ENOTCONN) == 0;
}

static bool waits(struct entry *e, int flags) { return !atomic_load(&e->nonblocking) && !(flags & MSG_DONTWAIT); }

static ssize_t receive(struct entry *e, void *buf, size_t n, int flags)
{
	size_t got = 0;
	if (!ready(e))
		return -1;
	if (n == 0)
		return 0;
	for (;;) {
		ssize_t r = REAL(recv)(fd_of(e), (char *)buf + got, n - got, (flags & MSG_PEEK) | MSG_DONTWAIT);
		atomic_fetch_add_explicit(&e->reads, 1, memory_order_relaxed);
		if (r == 0)
			return (ssize_t)got;
		if (r > 0) {
			got += (size_t)r;
			flow_moved(e, false, (size_t)r);
			if (got == n || !(flags & MSG_WAITALL) || (flags & MSG_PEEK))
				return (ssize_t)got;
			continue;
		}
		if (errno != EAGAIN || !waits(e, flags) || wait_one(e, POLLIN, atomic_load(&e->patience[0])))
			return got ? (ssize_t)got : -1;
	}
}

static ssize_t transmit(struct entry *e, const void *buf, size_t n, int flags)
{
	size_t put = 0;
	if (!ready(e))
		return -1;
	while (put < n) {
		ssize_t r = REAL(send)(fd_of(e), (const char *)buf + put, n - put, MSG_DONTWAIT);
		if (r > 0) {
			put += (size_t)r;
			flow_moved(e, true, (size_t)r);
			continue;
		}
		atomic_fetch_add_explicit(&e->stalls, 1, memory_order_relaxed);
		if (r == 0)
			break;
		if (errno != EAGAIN || !waits(e, flags) || wait_one(e, POLLOUT, atomic_load(&e->patience[1])))
			return put ? (ssize_t)put : -1;
	}
	return (ssize_t)put;
}

/* rsockets reads into the first part only, and takes no flags. */
static ssize_t receive_parts(struct entry *e, const struct iovec *v, size_t parts, int flags)
{
	size_t got = 0;
	for (size_t i = 0; i < parts; i++) {
		ssize_t r = receive(e, v[i].iov_base, v[i].iov_len, got && !(flags & MSG_WAITALL) ? flags | MSG_DONTWAIT : flags);
		if (r < 0)
			return got ? (ssize_t)got : r;
		got += (size_t)r;
		if ((size_t)r < v[i].iov_len || (flags & MSG_PEEK))
			break;
	}
	return (ssize_t)got;
}

#define GATHER 16384

/* Small parts, such as a header and its body, travel as one. */
static ssize_t transmit_parts(struct entry *e, const struct iovec *v, size_t parts, int flags)
{
	char together[GATHER];
	size_t put = 0;
	for (size_t i = 0; i < parts;) {
		size_t n = 0, from = i;
		while (i < parts && v[i].iov_len <= sizeof together - n) {
			if (v[i].iov_len)
				memcpy(together + n, v[i].iov_base, v[i].iov_len);
			n += v[i++].iov_len;
		}
		bool alone = i == from; /* too large to gather */
		const void *buf = alone ? v[i].iov_base : together;
		if (alone)
			n = v[i++].iov_len;
		ssize_t r = n ? transmit(e, buf, n, flags) : 0;
		if (r < 0)
			return put ? (ssize_t)put : r;
		put += (size_t)r;
		if ((size_t)r < n)
			break;
	}
	return (ssize_t)put;
}

EXPORT ssize_t read(int fd, void *buf, size_t n)
{
	struct entry *e = entry_at(fd);
	return likely(!e) ? REAL(read)(fd, buf, n) : receive(e, buf, n, 0);
}

EXPORT ssize_t recv(int fd, void *buf, size_t n, int flags)
{
	struct entry *e = entry_at(fd);
	return likely(!e) ? REAL(recv)(fd, buf, n, flags) : receive(e, buf, n, flags);
}

EXPORT ssize_t recvfrom(int fd, void *restrict buf, size_t n, int flags, struct sockaddr *restrict from, socklen_t *restrict len)
{
	struct entry *e = entry_at(fd);
	if (likely(!e))
		return REAL(recvfrom)(fd, buf, n, flags, from, len);
	if (from && len)
		*len = 0; /* as TCP does */
	return receive(e, buf, n, flags);
}

EXPORT ssize_t readv(int fd, const struct iovec *v, int parts)
{
	struct entry *e = entry_at(fd);
	return likely(!e) ? REAL(readv)(fd, v, parts) : receive_parts(e, v, parts > 0 ? (size_t)parts : 0, 0);
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	struct entry *e = entry_at(fd);
	if (likely(!e))
		return REAL(recvmsg)(fd, m, flags);
	m->msg_namelen = 0;
	m->msg_controllen = 0;
	m->msg_flags = 0;
	return receive_parts(e, m->msg_iov, m->msg_iovlen, flags);
}

/* What a program with _FORTIFY_SOURCE calls; libc's own go to the kernel directly. */
ssize_t __read_chk(int fd, void *buf, size_t n, size_t room);
ssize_t __recv_chk(int fd, void *buf, size_t n, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void *buf, size_t n, size_t room, int flags, struct sockaddr *from, socklen_t *len);

EXPORT ssize_t __read_chk(int fd, void *buf, size_t n, size_t room)
{
	return entry_at(fd) && n <= room ? read(fd, buf, n) : REAL(__read_chk)(fd, buf, n, room);
}

EXPORT ssize_t __recv_chk(int fd, void *buf, size_t n, size_t room, int flags)
{
	return entry_at(fd) && n <= room ? recv(fd, buf, n, flags) : REAL(__recv_chk)(fd, buf, n, room, flags);
}

EXPORT ssize_t __recvfrom_chk(int fd, void *buf, size_t n, size_t room, int flags, struct sockaddr *from, socklen_t *len)
{
	return entry_at(fd) && n <= room ? recvfrom(fd, buf, n, flags, from, len)
					 : REAL(__recvfrom_chk)(fd, buf, n, room, flags, from, len);
}

EXPORT ssize_t write(int fd, const void *buf, size_t n)
{
	struct entry *e = entry_at(fd);
	if (unlikely(connect_underway && connect_too_early(buf, n)))
		return FAIL(EAGAIN);
	if (unlikely(e != NULL))
		return transmit(e, buf, n, 0);
	ssize_t r = REAL(write)(fd, buf, n);
	if (r == (ssize_t)n)
		library_wrote(buf, n);
	return r;
}

EXPORT ssize_t send(int fd, const void *buf, size_t n, int flags)
{
	struct entry *e = entry_at(fd);
	return likely(!e) ? REAL(send)(fd, buf, n, flags) : transmit(e, buf, n, flags);
}

EXPORT ssize_t sendto(int fd, const void *buf, size_t n, int flags, const struct sockaddr *to, socklen_t len)
{
	struct entry *e = entry_at(fd); /* a connected socket ignores the address */
	return likely(!e) ? REAL(sendto)(fd, buf, n, flags, to, len) : transmit(e, buf, n, flags);
}

EXPORT ssize_t writev(int fd, const struct iovec *v, int parts)
{
	struct entry *e = entry_at(fd);
	return likely(!e) ? REAL(writev)(fd, v, parts) : transmit_parts(e, v, parts > 0 ? (size_t)parts : 0, 0);
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	struct entry *e = entry_at(fd);
	return likely(!e) ? REAL(sendmsg)(fd, m, flags) : transmit_parts(e, m->msg_iov, m->msg_iovlen, flags);
}

#define CHUNK 65536

/* The preload library maps the file, at offsets that mmap refuses. */
static ssize_t send_file(struct entry *e, int in, off64_t *at, size_t n)
{
	char *buf = malloc(CHUNK);
	size_t put = 0;
	ssize_t r = 0;
	if (!buf)
		return FAIL(ENOMEM);
	off64_t from = at ? *at : lseek64(in, 0, SEEK_CUR);
	while (put < n) {
		ssize_t got = pread64(in, buf, n - put < CHUNK ? n - put : CHUNK, from + (off64_t)put);
		r = got > 0 ? transmit(e, buf, (size_t)got, 0) : got;
		if (r <= 0)
			break;
		put += (size_t)r;
		if (r < got)
			break;
	}
	int why = errno;
	free(buf);
	if (at)
		*at += (off64_t)put;
	else
		lseek64(in, from + (off64_t)put, SEEK_SET);
	errno = why;
	return put ? (ssize_t)put : r;
}

EXPORT ssize_t sendfile(int out, int in, off_t *at, size_t n)
{
	struct entry *e = entry_at(out);
	return likely(!e) ? REAL(sendfile)(out, in, at, n) : send_file(e, in, at, n);
}

EXPORT ssize_t sendfile64(int out, int in, off64_t *at, size_t n)
{
	struct entry *e = entry_at(out);
	return likely(!e) ? REAL(sendfile64)(out, in, at, n) : send_file(e, in, at, n);
}
