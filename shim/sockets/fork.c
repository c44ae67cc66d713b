/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork. An rsocket belongs to the process that made it: its queue pair and its rings are the
 * parent's, and its service threads do not exist in the child. rsockets knows nothing of
 * fork. If a child closes what it inherited, rsockets tells the service thread through a
 * socket pair that both processes have, and it is the parent's thread that hears it. If the
 * number is closed past the preload library, that library takes the next descriptor
 * of this number for an rsocket.
 *
 * So a child forgets all rsockets as its first act, in the preload library too, and keeps
 * other things under their numbers:
 *
 *   parent                      child
 *   neither bound nor used      a TCP socket
 *   listener                    the TCP listener that every listener has beside it
 *   connection                  a TCP socket without a connection: ENOTCONN, and a word to the user
 *
 * These are the kernel's, so they mean the same to a program that the child executes.
 * A child of vfork shares our memory, and may do no more than close and copy descriptors:
 * the tables stay as they are for the parent. A child made by clone runs no fork
 * handlers; it notices by a page that the kernel wipes.
 *
 * While a thread is inside the preload library's socket, accept or close, that library may
 * know a number that our table does not. So a fork waits for those, and they for a fork.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "sockets.h"

static _Atomic long owner; /* the process that the tables describe */
static _Atomic bool child; /* of a process that used rsockets, whose library is of no use here */

/* 1; in a fork child 0 until in_child has run. */
static _Atomic int mark_here = 1;
_Atomic int *_Atomic fork_mark = &mark_here;

/* Shared by a process that used rsockets and all its children. */
struct said {
	_Atomic bool connection, listener; /* the user was told, which is done once */
	_Atomic int listeners;             /* made so far */
	_Atomic int used;                  /* the first so many belong to a server with processes */
};
static struct said said_here, *said = &said_here;
static _Atomic bool used_connection, used_listener; /* by this process */
static _Atomic int inherited; /* so many listeners there were when this child was made */

static void in_child(void);

void fork_noticed(void) { in_child(); }

static void notice(void)
{
	if (unlikely(!atomic_load_explicit(atomic_load(&fork_mark), memory_order_relaxed)))
		in_child();
}

bool in_fork_child(void)
{
	notice();
	return atomic_load(&child);
}

bool foreign(void)
{
	notice();
	long pid = atomic_load(&owner);
	return pid && pid != sys(SYS_getpid);
}

/*
 * rsockets' close, which the preload library's close calls. A child has nothing to close
 * there; this is how the preload library forgets a number and nothing else happens.
 */
__thread bool forgetting __attribute__((tls_model("initial-exec")));

/* Threads between fork_hold and fork_release, and how often this one is. */
static _Atomic int holders;
static _Atomic bool forking;
static __thread int held __attribute__((tls_model("initial-exec")));

/* Either side waits a second or two at most: the program may have locks that the other wants. */
static bool patient(struct timespec *since)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (!since->tv_sec)
		*since = now;
	sys(SYS_sched_yield);
	return now.tv_sec - since->tv_sec < 2;
}

void fork_hold(void)
{
	struct timespec since = {0};
	bool wait = true;
	held++;
	while (atomic_fetch_add(&holders, 1), wait && atomic_load(&forking)) {
		/* Not counted while it waits: the fork would wait for it, and both until they lose patience. */
		atomic_fetch_sub(&holders, 1);
		while (wait && atomic_load(&forking))
			wait = patient(&since);
	}
}

void fork_release(void)
{
	if (!held)
		return;
	held--;
	atomic_fetch_sub(&holders, 1);
}

/* Before all other handlers, which run in reverse order and may take locks that holders want. */
static void before(void)
{
	struct timespec since = {0};
	atomic_store(&forking, true);
	while (atomic_load(&holders) > held && patient(&since)) /* held: a signal handler may fork */
		;
}

static void after(void) { atomic_store(&forking, false); }

/* The preload library has forgotten the number by now; what follows may take long. */
EXPORT int rclose(int rsocket)
{
	fork_release();
	return forgetting || in_fork_child() || foreign() ? 0 : REAL(rclose)(rsocket);
}

/* Standard error may be anything, even one of ours. */
static void say(const char *text)
{
	char line[512];
	int n = snprintf(line, sizeof line, "vrdma: %s (process %ld) %s\n", program_invocation_short_name, sys(SYS_getpid), text);
	if (n > 0 && !entry_at(2))
		sys(SYS_write, 2, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

int fork_listener(void) { return atomic_fetch_add(&said->listeners, 1) + 1; }

/* This is a server with processes; whoever has its listeners shall know. */
static void used(void)
{
	int mine = in_fork_child() ? atomic_load(&inherited) : atomic_load(&said->listeners);
	int was = atomic_load(&said->used);
	while (was < mine && !atomic_compare_exchange_weak(&said->used, &was, mine))
		;
	if (was < mine)
		sys(SYS_futex, &said->used, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int fork_await_use(int known)
{
	int now;
	while ((now = atomic_load(&said->used)) == known)
		sys(SYS_futex, &said->used, FUTEX_WAIT, known, NULL, NULL, 0);
	return now;
}

int dead_use(void)
{
	if (!atomic_exchange(&used_connection, true)) {
		COUNT(forked);
		used();
	}
	if (!atomic_exchange(&said->connection, true))
		say(atomic_load(&said->listeners)
			    ? "was made by fork and cannot use an RDMA connection of its parent: that connection fails, and from now on "
			      "the listeners of this program take TCP connections only; run it without --sockets"
			    : "was made by fork and cannot use an RDMA connection of its parent: that connection fails; "
			      "run this program without --sockets");
	return FAIL(ENOTCONN);
}

void listener_use(struct entry *e)
{
	if (likely(!atomic_load_explicit(&e->inherited, memory_order_relaxed)))
		return;
	if (!atomic_exchange(&used_listener, true))
		used();
	if (atomic_exchange(&said->listener, true))
		return;
	say("was made by fork and uses a listener of its parent: from now on the listeners of this program take "
	    "TCP connections only; for RDMA, run it as one process, in the foreground");
}

int dead_socket(void) { return (int)sys(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }

/* The number fd stands for the file of from now, and not for an rsocket. from < 0: it is closed. */
static void replace(int fd, int from)
{
	long flags = sys(SYS_fcntl, fd, F_GETFD);
	if (kind_of(&table[fd]) != ALIAS)
		REAL(close)(fd); /* the preload library knows those */
	if (from < 0 || sys(SYS_dup3, from, fd, flags == FD_CLOEXEC ? O_CLOEXEC : 0) < 0) {
		sys(SYS_close, fd);
		entry_become(&table[fd], NOT_OURS);
	}
}

/* A socket that was not used yet can be the kernel's; bound to the same port, if it was. */
static void renew(struct entry *e)
{
	int fd = fd_of(e), on = 1;
	union name at = {0};
	socklen_t n = sizeof at;
	bool bound = REAL(getsockname)(fd, &at.any, &n) == 0 && at.v4.sin_port != 0;
	int to = (int)sys(SYS_socket, e->domain, SOCK_STREAM | SOCK_CLOEXEC | (atomic_load(&e->nonblocking) ? SOCK_NONBLOCK : 0), 0);
	if (bound) {
		sys(SYS_setsockopt, to, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		sys(SYS_bind, to, &at, e->domain == AF_INET ? sizeof at.v4 : sizeof at.v6);
	}
	replace(fd, to);
	sys(SYS_close, to);
	entry_become(e, NOT_OURS);
}

/* One number of the parent's. dead stands for connections. */
static void inherit(int fd, int dead)
{
	struct entry *e = &table[fd];
	int kind = kind_of(e);
	if (kind == NOT_OURS || kind == DEAD || atomic_load(&e->inherited))
		return;
	if (kind == FRESH && atomic_load(&e->refs) == 1)
		return renew(e);
	bool listens = kind == LISTENING && e->twin >= 0;
	int twin = e->twin;
	if (kind == LISTENING)
		sys(SYS_close, e->both);
	replace(fd, atomic_load(&e->ghost) ? -1 : listens ? twin : dead);
	if (kind == LISTENING)
		sys(SYS_close, twin);
	if (kind_of(e) == NOT_OURS)
		return;
	e->both = e->queue = e->below = -1;
	atomic_store(&e->retreated, false);
	e->twin = listens ? fd : -1;
	atomic_store(&e->refs, 1);
	atomic_store(&e->inherited, listens);
	entry_become(e, listens ? LISTENING : DEAD);
}

/* Before its parent's, since those change: what a number made by dup stands for. */
static void inherit_alias(int fd, int dead)
{
	const struct entry *e = &table[table[fd].root];
	bool listens = kind_of(e) == LISTENING && e->twin >= 0;
	int domain = e->domain;
	bool nonblocking = atomic_load(&e->nonblocking);
	replace(fd, listens ? e->twin : dead);
	if (kind_of(&table[fd]) == NOT_OURS)
		return;
	entry_set(fd, domain, listens ? LISTENING : DEAD);
	atomic_store(&table[fd].nonblocking, nonblocking);
	table[fd].twin = listens ? fd : -1;
	atomic_store(&table[fd].inherited, listens);
}

static bool is_open(int fd) { return fd >= 0 && sys(SYS_fcntl, fd, F_GETFD) >= 0; }

/*
 * The kernel copies the descriptors first and then the memory, so memory may tell of
 * descriptors that another thread made in between, and that are not here. This comes before
 * anything else takes their numbers.
 */
static void forget_missing(void)
{
	for (int fd = 0; fd <= entry_top(); fd++) {
		struct entry *e = &table[fd];
		int kind = kind_of(e);
		if (kind == NOT_OURS)
			continue;
		if (kind == LISTENING && !is_open(e->twin))
			e->twin = -1;
		if (kind == LISTENING && !is_open(e->both))
			e->both = -1;
		if (!is_open(fd)) {
			if (kind != ALIAS)
				REAL(close)(fd);
			entry_become(e, NOT_OURS);
		}
	}
}

static void in_child(void)
{
	int why = errno;
	atomic_store(&forking, false);
	atomic_store(&holders, held);
	atomic_store(&owner, sys(SYS_getpid));
	atomic_store(&used_connection, false);
	atomic_store(&used_listener, false);
	if (!atomic_exchange(&child, entry_used()))
		atomic_store(&inherited, atomic_load(&said->listeners));
	atomic_store(atomic_load(&fork_mark), 1);
	forget_missing();
	timers_forget();
	epoll_child();
	listener_child();
	int dead = dead_socket();
	for (int fd = 0; fd <= entry_top(); fd++)
		if (kind_of(&table[fd]) == ALIAS)
			inherit_alias(fd, dead);
	for (int fd = 0; fd <= entry_top(); fd++)
		inherit(fd, dead);
	sys(SYS_close, dead);
	errno = why;
}

void fork_watch(void)
{
	static _Atomic bool watched;
	if (atomic_exchange(&watched, true))
		return;
	atomic_store(&owner, sys(SYS_getpid));
	long page = sys(SYS_mmap, NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (page > 0)
		said = (struct said *)page;
	page = sys(SYS_mmap, NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page > 0 && sys(SYS_madvise, page, PAGE, MADV_WIPEONFORK) == 0) {
		atomic_store((_Atomic int *)page, 1);
		atomic_store(&fork_mark, (_Atomic int *)page);
	}
	pthread_atfork(before, after, in_child);
}
