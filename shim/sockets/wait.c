/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poll and select.
 *
 * When a poll of rsockets reaches its time limit, the library of rdma-core 44 forgets to
 * sign off, and from the second one on every poll spins and has no limit. Its select
 * confuses the program's descriptors with its own. So rsockets gets polls without a limit
 * only, with a timer among the descriptors, and select is made of poll.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/timerfd.h>
#include <time.h>

#include "sockets.h"

/* Timers that nobody uses, each as its descriptor plus one. */
static _Atomic int timers[16];

static int timer_get(const struct timespec *in)
{
	int fd = -1;
	for (size_t i = 0; i < sizeof timers / sizeof *timers && fd < 0; i++)
		fd = atomic_exchange(&timers[i], 0) - 1;
	if (fd < 0)
		fd = (int)sys(SYS_timerfd_create, CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	struct itimerspec t = {.it_value = *in};
	if (fd >= 0)
		sys(SYS_timerfd_settime, fd, 0, &t, NULL);
	return fd;
}

static void timer_put(int fd)
{
	struct itimerspec off = {0};
	sys(SYS_timerfd_settime, fd, 0, &off, NULL);
	for (size_t i = 0; i < sizeof timers / sizeof *timers; i++) {
		int none = 0;
		if (atomic_compare_exchange_strong(&timers[i], &none, fd + 1))
			return;
	}
	sys(SYS_close, fd);
}

void timers_forget(void)
{
	for (size_t i = 0; i < sizeof timers / sizeof *timers; i++)
		sys(SYS_close, atomic_exchange(&timers[i], 0) - 1);
}

static int plain_poll(struct pollfd *fds, nfds_t n, const struct timespec *timeout)
{
	struct timespec left = timeout ? *timeout : (struct timespec){0}; /* the kernel writes to it */
	long r = sys(SYS_ppoll, fds, n, timeout ? &left : NULL, NULL, 8);
	return r < 0 ? FAIL((int)-r) : (int)r;
}

/* What to give to the next poll for what the program asked. */
static int below(int fd, bool *rsocket)
{
	struct entry *e = entry_at(fd);
	if (!e)
		return fd;
	int k = kind_of(e);
	if (k == LISTENING && e->both >= 0)
		return e->both;
	if (k == LISTENING)
		listener_use(e);
	*rsocket = *rsocket || !in_fork_child();
	return fd_of(e);
}

#define FEW 32

/* The program's list without holes, which the preload library does not know, and one place more. */
static int poll_rsockets(struct pollfd *list, nfds_t n, const struct timespec *timeout)
{
	int r = REAL(poll)(list, n, 0);
	if (r || (timeout && !timeout->tv_sec && !timeout->tv_nsec))
		return r;
	if ((r = flow_break(timeout)) != 0 && (r < 0 || (r = REAL(poll)(list, n, 0)) != 0))
		return r;
	/* The threads whose work we wait for may be waiting for this processor. */
	sys(SYS_sched_yield);
	if (!timeout)
		return REAL(poll)(list, n, -1);
	list[n] = (struct pollfd){.fd = timer_get(timeout), .events = POLLIN};
	if (list[n].fd < 0)
		return FAIL(ENOMEM);
	r = REAL(poll)(list, n + 1, -1);
	int why = errno;
	timer_put(list[n].fd);
	errno = why;
	return r;
}

static int wait_in(struct pollfd *list, struct pollfd *fds, nfds_t n, const struct timespec *timeout)
{
	bool rsocket = false;
	nfds_t used = 0;
	for (nfds_t i = 0; i < n; i++) {
		fds[i].revents = 0;
		if (fds[i].fd >= 0)
			list[used++] = (struct pollfd){.fd = below(fds[i].fd, &rsocket), .events = fds[i].events};
	}
	int r = rsocket ? poll_rsockets(list, used, timeout) : plain_poll(list, used, timeout);
	if (r <= 0)
		return r;
	r = 0;
	used = 0;
	for (nfds_t i = 0; i < n; i++)
		if (fds[i].fd >= 0 && (fds[i].revents = list[used++].revents))
			r++;
	return r;
}

int wait_many(struct pollfd *fds, nfds_t n, const struct timespec *timeout)
{
	struct pollfd few[FEW + 1];
	if (n <= FEW)
		return wait_in(few, fds, n, timeout);
	struct pollfd *many = malloc((n + 1) * sizeof *many);
	if (!many)
		return FAIL(ENOMEM);
	int r = wait_in(many, fds, n, timeout), why = errno;
	free(many);
	errno = why;
	return r;
}

static struct timespec milliseconds(int ms) { return (struct timespec){ms / 1000, ms % 1000 * 1000000l}; }

/*
 * After most signals the kernel goes on with a read or an accept (SA_RESTART, and whatever
 * signal() installs). We do, unless the program has a handler that asks for EINTR.
 */
static _Atomic bool interrupts;

EXPORT int sigaction(int number, const struct sigaction *restrict act, struct sigaction *restrict old)
{
	bool fault = number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL || number == SIGABRT;
	if (act && act->sa_handler != SIG_DFL && act->sa_handler != SIG_IGN && !(act->sa_flags & SA_RESTART) && !fault)
		atomic_store(&interrupts, true);
	return REAL_AS(int (*)(int, const struct sigaction *, struct sigaction *), sigaction)(number, act, old);
}

int wait_one(struct entry *e, short events, int patience)
{
	struct pollfd p = {.fd = fd_of(e), .events = events};
	struct timespec t = milliseconds(patience);
	int r;
	sys(SYS_sched_yield); /* see poll_rsockets; the caller has looked already */
	do
		r = wait_many(&p, 1, patience > 0 ? &t : NULL);
	while (r < 0 && errno == EINTR && !atomic_load(&interrupts));
	return r > 0 ? 0 : r == 0 ? FAIL(EAGAIN) : -1;
}

static bool any_of_ours(struct pollfd *fds, nfds_t n)
{
	for (nfds_t i = 0; i < n; i++)
		if (entry_at(fds[i].fd))
			return true;
	return false;
}

EXPORT int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	if (!any_of_ours(fds, n)) {
		library_polls();
		return REAL(poll)(fds, n, timeout);
	}
	struct timespec t = milliseconds(timeout);
	return wait_many(fds, n, timeout < 0 ? NULL : &t);
}

static int masked(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	sigset_t old;
	if (!mask)
		return wait_many(fds, n, timeout);
	sys(SYS_rt_sigprocmask, SIG_SETMASK, mask, &old, 8);
	int r = wait_many(fds, n, timeout), why = errno;
	sys(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, 8);
	errno = why;
	return r;
}

EXPORT int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	return any_of_ours(fds, n) ? masked(fds, n, timeout, mask) : REAL(ppoll)(fds, n, timeout, mask);
}

int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t room);
EXPORT int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t room)
{
	return room / sizeof *fds >= n ? poll(fds, n, timeout) : REAL(__poll_chk)(fds, n, timeout, room);
}

int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t room);
EXPORT int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t room)
{
	return room / sizeof *fds >= n ? ppoll(fds, n, timeout, mask) : REAL(__ppoll_chk)(fds, n, timeout, mask, room);
}

/* ---- select ---- */

#define READABLE (POLLIN | POLLHUP | POLLERR)
#define WRITABLE (POLLOUT | POLLERR)

static bool has(const fd_set *s, int fd) { return s && (s->fds_bits[fd / NFDBITS] >> fd % NFDBITS & 1); }
static void put(fd_set *s, int fd) { s->fds_bits[fd / NFDBITS] |= 1l << fd % NFDBITS; }
static void empty(fd_set *s, int n)
{
	if (s)
		memset(s, 0, (size_t)(n + NFDBITS - 1) / NFDBITS * sizeof s->fds_bits[0]);
}

static int select_in(struct pollfd *list, int n, fd_set *in, fd_set *out, fd_set *other, const struct timespec *timeout,
		     const sigset_t *mask)
{
	nfds_t used = 0;
	for (int fd = 0; fd < n; fd++) {
		short events = (short)((has(in, fd) ? POLLIN : 0) | (has(out, fd) ? POLLOUT : 0) | (has(other, fd) ? POLLPRI : 0));
		if (events)
			list[used++] = (struct pollfd){.fd = fd, .events = events};
	}
	int r = masked(list, used, timeout, mask);
	if (r < 0)
		return r;
	empty(in, n);
	empty(out, n);
	empty(other, n);
	r = 0;
	for (nfds_t i = 0; i < used; i++) {
		short asked = list[i].events, got = list[i].revents;
		if ((asked & POLLIN) && (got & READABLE))
			put(in, list[i].fd), r++;
		if ((asked & POLLOUT) && (got & WRITABLE))
			put(out, list[i].fd), r++;
		if ((asked & POLLPRI) && (got & POLLPRI))
			put(other, list[i].fd), r++;
	}
	return r;
}

static bool select_ours(int n, const fd_set *in, const fd_set *out, const fd_set *other)
{
	for (int fd = 0; fd < n; fd++)
		if ((has(in, fd) || has(out, fd) || has(other, fd)) && entry_at(fd))
			return true;
	return false;
}

EXPORT int pselect(int n, fd_set *restrict in, fd_set *restrict out, fd_set *restrict other,
		   const struct timespec *restrict timeout, const sigset_t *restrict mask)
{
	if (!select_ours(n, in, out, other))
		return REAL(pselect)(n, in, out, other, timeout, mask);
	struct pollfd few[FEW], *list = n <= FEW ? few : malloc((size_t)n * sizeof *list);
	if (!list)
		return FAIL(ENOMEM);
	int r = select_in(list, n, in, out, other, timeout, mask), why = errno;
	if (list != few)
		free(list);
	errno = why;
	return r;
}

static struct timespec now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t;
}

EXPORT int select(int n, fd_set *restrict in, fd_set *restrict out, fd_set *restrict other, struct timeval *restrict timeout)
{
	if (!timeout)
		return pselect(n, in, out, other, NULL, NULL);
	/* Linux says how much of the time is left. */
	struct timespec limit = {timeout->tv_sec, timeout->tv_usec * 1000l}, from = now();
	int r = pselect(n, in, out, other, &limit, NULL), why = errno;
	struct timespec to = now();
	long long us = (limit.tv_sec - (to.tv_sec - from.tv_sec)) * 1000000ll + (limit.tv_nsec - (to.tv_nsec - from.tv_nsec)) / 1000;
	if (us < 0 || r == 0)
		us = 0;
	timeout->tv_sec = us / 1000000;
	timeout->tv_usec = us % 1000000;
	errno = why;
	return r;
}
