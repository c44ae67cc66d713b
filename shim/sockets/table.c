/* SPDX-License-Identifier: Apache-2.0 */
/* Which descriptors are rsockets, who may touch them, and the numbers for vrdma. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sockets.h"

struct entry table[TABLE];
static _Atomic int top; /* no entry above was ever used */
static _Atomic long owner;

static void at_exit(void)
{
	/* The kernel delivers what a program wrote before it ended; rsockets has to be
	 * asked. Other threads may still be at it, so nothing is freed. */
	for (int fd = 0; fd <= atomic_load(&top); fd++)
		if (kind_of(&table[fd]) == CONNECTED && !foreign())
			REAL(shutdown)(fd, SHUT_RDWR);
}

static void in_child(void)
{
	bool any = false;
	for (int fd = 0; fd <= atomic_load(&top); fd++)
		if (kind_of(&table[fd]) != NOT_OURS) {
			any = any || kind_of(&table[fd]) == CONNECTED;
			listener_close(&table[fd]);
			atomic_store(&table[fd].kind, DEAD);
		}
	if (any)
		COUNT(forked);
	atomic_store(&owner, sys(SYS_getpid));
}

static void start(void)
{
	atomic_store(&owner, sys(SYS_getpid));
	pthread_atfork(NULL, NULL, in_child);
	atexit(at_exit);
}

bool foreign(void) { return atomic_load(&owner) != sys(SYS_getpid); }

bool is_rsocket(int fd)
{
	/* The only sort of descriptor that is no socket to the kernel, and whose type
	 * rsockets does not tell (or tells, in newer versions). */
	int type;
	socklen_t n = sizeof type;
	return sys(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &n) == -ENOTSOCK;
}

void entry_set(int fd, int domain, enum kind k)
{
	static _Atomic bool started;
	if (!atomic_exchange(&started, true))
		start();
	if ((unsigned)fd >= TABLE)
		return;
	int seen = atomic_load(&top);
	while (fd > seen && !atomic_compare_exchange_weak(&top, &seen, fd))
		;
	struct entry *e = &table[fd];
	e->domain = domain;
	e->queue = e->twin = e->door = -1;
	atomic_store(&e->nonblocking, false);
	atomic_store(&e->patience[0], 0);
	atomic_store(&e->patience[1], 0);
	atomic_store_explicit(&e->kind, k, memory_order_release);
}

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
