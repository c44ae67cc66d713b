/* SPDX-License-Identifier: Apache-2.0 */
/* Which descriptors are rsockets, and the numbers for vrdma. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sockets.h"

struct entry table[TABLE];
static _Atomic int top; /* no entry above was ever used */

static void at_exit(void)
{
	/* The kernel delivers what a program wrote before it ended; rsockets has to be
	 * asked. Other threads may still be at it, so nothing is freed. */
	for (int fd = 0; fd <= atomic_load(&top); fd++)
		if (kind_of(&table[fd]) == CONNECTED && !foreign())
			REAL(shutdown)(fd, SHUT_RDWR);
}

static _Atomic bool used;
bool entry_used(void) { return atomic_load(&used); }

int entry_top(void) { return atomic_load(&top); }

static _Atomic int connections;

void entry_become(struct entry *e, enum kind k)
{
	int was = atomic_exchange(&e->kind, k);
	atomic_fetch_add(&connections, (k == CONNECTED) - (was == CONNECTED));
}

/*
 * Large buffers are fast, and every connection has two, of memory that is really used.
 * So the first ones get large ones, and a crowd gets rsockets' own.
 */
void suit_buffers(struct entry *e)
{
	int open = atomic_load(&connections);
	int size = open < 8 ? 2 << 20 : open < 64 ? 1 << 19 : 1 << 17;
	int half = size / 2; /* rsockets doubles it, as the kernel does */
	if (atomic_load(&e->sized))
		return;
	REAL(setsockopt)(fd_of(e), SOL_SOCKET, SO_RCVBUF, &half, sizeof half);
	REAL(setsockopt)(fd_of(e), SOL_SOCKET, SO_SNDBUF, &half, sizeof half);
}

bool is_rsocket(int fd)
{
	/* The only sort of descriptor that is no socket to the kernel, and whose type
	 * rsockets does not tell (or tells, in newer versions). */
	int type;
	socklen_t n = sizeof type;
	return sys(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &n) == -ENOTSOCK;
}

static void reach(int fd)
{
	int seen = atomic_load(&top);
	while (fd > seen && !atomic_compare_exchange_weak(&top, &seen, fd))
		;
}

void entry_alias(int fd, struct entry *e)
{
	if ((unsigned)fd >= TABLE)
		return;
	reach(fd);
	atomic_fetch_add(&e->refs, 1);
	table[fd].root = fd_of(e);
	entry_become(&table[fd], ALIAS);
}

void entry_set(int fd, int domain, enum kind k)
{
	if (!atomic_exchange(&used, true)) {
		fork_watch();
		atexit(at_exit);
	}
	if ((unsigned)fd >= TABLE)
		return;
	reach(fd);
	struct entry *e = &table[fd];
	atomic_store(&e->refs, 1);
	atomic_store(&e->ghost, false);
	atomic_store(&e->inherited, false);
	atomic_store(&e->retreated, false);
	e->domain = domain;
	e->queue = e->twin = e->both = e->below = -1;
	atomic_store(&e->nonblocking, false);
	atomic_store(&e->patience[0], 0);
	atomic_store(&e->patience[1], 0);
	atomic_store(&e->sized, false);
	entry_become(e, k);
}

/*
 * Is it what cmd/vrdma/sockets.go made? Its path has the number of a process, which may be
 * another process by now, or in the program's own namespace, with another file.
 */
static bool are_counts(long fd)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	long has = sys(SYS_fcntl, fd, F_GET_SEALS); /* the kernel may add one against execution */
	return has >= 0 && (has & seals) == seals && sys(SYS_lseek, fd, 0, SEEK_END) == sizeof(struct counts);
}

static struct counts *open_counts(void)
{
	const char *path = getenv("VRDMA_COUNT");
	if (!path || !*path)
		return NULL;
	long fd = sys(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return NULL;
	long r = -1;
	if (are_counts(fd))
		r = sys(SYS_mmap, NULL, sizeof(struct counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	sys(SYS_close, fd);
	return r < 0 && r > -4096 ? NULL : (struct counts *)r;
}

struct counts *counts(void)
{
	static struct counts nobody; /* reads these */
	static _Atomic(struct counts *) known;
	struct counts *c = atomic_load(&known), *none = NULL;
	if (likely(c != NULL))
		return c;
	c = open_counts();
	if (!c)
		c = &nobody;
	if (atomic_compare_exchange_strong(&known, &none, c))
		return c;
	if (c != &nobody)
		sys(SYS_munmap, c, sizeof *c);
	return none;
}

/* A program may give up the rights or the directory with which it finds them. */
__attribute__((constructor)) static void find_counts(void) { counts(); }
