/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `vrdma run --sockets` wants to know how many connections went past rsockets' preload
 * library, which stands before us: those arrive here. They are counted in a file that
 * VRDMA_COUNT names and that vrdma shares with the program. Without that variable
 * nothing here does anything.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "vrdma.h"

/* The file: three numbers. cmd/vrdma/sockets.go reads them. */
struct counts {
	_Atomic uint64_t connected; /* TCP connections that the program made */
	_Atomic uint64_t accepted;  /* and took */
	_Atomic uint64_t cloexec;   /* TCP sockets made with SOCK_CLOEXEC or SOCK_NONBLOCK */
};

static struct counts *open_counts(void)
{
	const char *path = getenv("VRDMA_COUNT");
	if (!path || !*path)
		return NULL;
	long fd = sys(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	long r = sys(SYS_mmap, NULL, sizeof(struct counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	sys(SYS_close, fd);
	return r < 0 && r > -4096 ? NULL : (struct counts *)r;
}

static struct counts *counts(void)
{
	static _Atomic(struct counts *) known;
	static _Atomic bool asked;
	if (likely(atomic_load(&asked)))
		return atomic_load(&known);
	struct counts *c = open_counts(), *none = NULL;
	if (c && !atomic_compare_exchange_strong(&known, &none, c))
		sys(SYS_munmap, c, sizeof *c);
	atomic_store(&asked, true);
	return atomic_load(&known);
}

static bool is_tcp(int fd)
{
	int domain = 0, type = 0;
	socklen_t n = sizeof domain, m = sizeof type;
	return sys(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) == 0 &&
	       sys(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &m) == 0 &&
	       (domain == AF_INET || domain == AF_INET6) && type == SOCK_STREAM;
}

void sockets_made(int domain, int type)
{
	struct counts *c = counts();
	if (c && (domain == AF_INET || domain == AF_INET6) &&
	    (type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK)) == SOCK_STREAM && (type & (SOCK_CLOEXEC | SOCK_NONBLOCK)))
		atomic_fetch_add(&c->cloexec, 1);
}

EXPORT int connect(int fd, const struct sockaddr *to, socklen_t n)
{
	int r = REAL(connect)(fd, to, n), e = errno;
	struct counts *c = counts();
	if (unlikely(c != NULL) && (r == 0 || e == EINPROGRESS) && is_tcp(fd))
		atomic_fetch_add(&c->connected, 1);
	errno = e;
	return r;
}

static int took(int fd)
{
	int e = errno;
	struct counts *c = counts();
	if (unlikely(c != NULL) && fd >= 0 && is_tcp(fd))
		atomic_fetch_add(&c->accepted, 1);
	errno = e;
	return fd;
}

EXPORT int accept(int fd, struct sockaddr *restrict from, socklen_t *restrict n)
{
	return took(REAL(accept)(fd, from, n));
}

EXPORT int accept4(int fd, struct sockaddr *restrict from, socklen_t *restrict n, int flags)
{
	return took(REAL(accept4)(fd, from, n, flags));
}
