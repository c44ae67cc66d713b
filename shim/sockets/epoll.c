/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epoll, made of poll. The kernel cannot watch an rsocket, so a set keeps those itself, and
 * epoll_wait is a poll of them and of the kernel's own epoll, which has all the others;
 * listeners too, by the epoll descriptor `both`. The preload library of rdma-core 65 has an epoll of its
 * own, which does not know ours; so the kernel is asked directly.
 *
 * Edge-triggered events: after we have reported one, we report no other until the program has
 * read, or could not write all of its bytes. There may be one event too many, never one too few.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

#include "sockets.h"

struct item {
	int fd;
	bool off; /* EPOLLONESHOT, and it was told */
	uint32_t events;
	epoll_data_t data;
	bool told_in, told_out;   /* since ... */
	unsigned reads, stalls;   /* ... these were the entry's */
};

struct set {
	pthread_mutex_t lock;
	int changed; /* eventfd: rewrites the list of whoever waits */
	struct item *items;
	int n, room;
	_Atomic bool growing; /* items is about to move */
};

static _Atomic(struct set *) sets[TABLE];
static _Atomic int end; /* no set was ever made from this number on */

static struct set *set_at(int fd) { return (unsigned)fd < TABLE ? atomic_load(&sets[fd]) : NULL; }

static int made(int fd)
{
	struct set *s = (unsigned)fd < TABLE ? calloc(1, sizeof *s) : NULL;
	if (!s)
		return fd;
	fork_watch();
	pthread_mutex_init(&s->lock, NULL);
	s->changed = (int)sys(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK);
	atomic_store(&sets[fd], s); /* if there was one, its number was closed behind our back */
	int seen = atomic_load(&end);
	while (fd >= seen && !atomic_compare_exchange_weak(&end, &seen, fd + 1))
		;
	return fd;
}

EXPORT int epoll_create1(int flags)
{
	long fd = sys(SYS_epoll_create1, flags);
	return fd < 0 ? FAIL((int)-fd) : made((int)fd);
}

EXPORT int epoll_create(int size) { return size > 0 ? epoll_create1(0) : FAIL(EINVAL); }

static int kernel_control(int ep, int op, int fd, struct epoll_event *event)
{
	long r = sys(SYS_epoll_ctl, ep, op, fd, event);
	return r < 0 ? FAIL((int)-r) : 0;
}

static struct item *find(struct set *s, int fd)
{
	for (int i = 0; i < s->n; i++)
		if (s->items[i].fd == fd)
			return &s->items[i];
	return NULL;
}

static void drop(struct set *s, struct item *i) { *i = s->items[--s->n]; }

void epoll_forget(int fd)
{
	if (likely(!atomic_load_explicit(&end, memory_order_relaxed)))
		return;
	struct set *own = set_at(fd);
	if ((!own && !entry_at(fd)) || foreign())
		return;
	if (own) {
		atomic_store(&sets[fd], NULL); /* an epoll descriptor; its memory stays, somebody may wait in it */
		sys(SYS_close, own->changed);
		return;
	}
	for (int i = 0; i < atomic_load(&end); i++) {
		struct set *s = set_at(i);
		if (!s)
			continue;
		pthread_mutex_lock(&s->lock);
		struct item *found = find(s, fd);
		if (found)
			drop(s, found);
		pthread_mutex_unlock(&s->lock);
	}
}

/* A thread that is not here may have had the lock, and word of changes is for the parent. */
void epoll_child(void)
{
	for (int i = 0; i < atomic_load(&end); i++) {
		struct set *s = set_at(i);
		if (!s)
			continue;
		if (atomic_load(&s->growing)) /* where its items are, that thread knew */
			s->items = NULL, s->n = s->room = 0;
		atomic_store(&s->growing, false);
		pthread_mutex_init(&s->lock, NULL);
		sys(SYS_close, s->changed);
		s->changed = (int)sys(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK);
	}
}

static int add(struct set *s, int fd, const struct epoll_event *e)
{
	if (find(s, fd))
		return EEXIST;
	if (s->n == s->room) {
		int room = s->room ? 2 * s->room : 16;
		atomic_store(&s->growing, true);
		struct item *more = realloc(s->items, (size_t)room * sizeof *more);
		if (more) {
			s->items = more;
			s->room = room;
		}
		atomic_store(&s->growing, false);
		if (!more)
			return ENOMEM;
	}
	s->items[s->n++] = (struct item){.fd = fd, .events = e->events, .data = e->data};
	return 0;
}

static int change(struct set *s, int op, int fd, const struct epoll_event *e)
{
	if (op == EPOLL_CTL_ADD)
		return add(s, fd, e);
	struct item *i = find(s, fd);
	if (!i)
		return ENOENT;
	if (op == EPOLL_CTL_DEL)
		drop(s, i);
	else
		*i = (struct item){.fd = fd, .events = e->events, .data = e->data};
	return 0;
}

EXPORT int epoll_ctl(int ep, int op, int fd, struct epoll_event *event)
{
	struct entry *e = entry_at(fd);
	struct set *s = set_at(ep);
	if (!s)
		return REAL(epoll_ctl)(ep, op, fd, event);
	if (!e)
		return kernel_control(ep, op, fd, event);
	if (kind_of(e) == LISTENING && e->both >= 0)
		return kernel_control(ep, op, e->both, event);
	pthread_mutex_lock(&s->lock);
	int r = change(s, op, fd, event);
	pthread_mutex_unlock(&s->lock);
	uint64_t one = 1;
	if (r == 0 && op != EPOLL_CTL_DEL)
		sys(SYS_write, s->changed, &one, sizeof one);
	return r ? FAIL(r) : 0;
}

/* What this item waits for now. */
static short wanted(const struct item *i)
{
	const struct entry *e = entry_at(i->fd);
	if (!e)
		return 0;
	uint32_t events = i->off ? 0 : i->events & (EPOLLIN | EPOLLOUT | EPOLLPRI);
	if (i->events & EPOLLET) {
		if (i->told_in && i->reads == atomic_load(&e->reads))
			events &= ~(uint32_t)EPOLLIN;
		if (i->told_out && i->stalls == atomic_load(&e->stalls))
			events &= ~(uint32_t)EPOLLOUT;
	}
	return (short)events;
}

static void told(struct item *i, uint32_t events)
{
	const struct entry *e = entry_at(i->fd);
	if (!e)
		return;
	i->off = (i->events & EPOLLONESHOT) != 0;
	if (events & ~(uint32_t)EPOLLOUT) {
		i->told_in = true;
		i->reads = atomic_load(&e->reads);
	}
	if (events & ~(uint32_t)EPOLLIN) {
		i->told_out = true;
		i->stalls = atomic_load(&e->stalls);
	}
}

/* The list to poll: the set's rsockets, the kernel's epoll, and word of changes. */
static struct pollfd *list_of(struct set *s, int ep, nfds_t *n)
{
	pthread_mutex_lock(&s->lock);
	struct pollfd *list = malloc(((size_t)s->n + 2) * sizeof *list);
	*n = 0;
	for (int i = 0; list && i < s->n; i++) {
		short events = wanted(&s->items[i]);
		if (events)
			list[(*n)++] = (struct pollfd){.fd = s->items[i].fd, .events = events};
	}
	pthread_mutex_unlock(&s->lock);
	if (list) {
		list[(*n)++] = (struct pollfd){.fd = s->changed, .events = POLLIN};
		list[(*n)++] = (struct pollfd){.fd = ep, .events = POLLIN};
	}
	return list;
}

static int collect(struct set *s, const struct pollfd *list, nfds_t n, struct epoll_event *out, int max)
{
	int got = 0;
	pthread_mutex_lock(&s->lock);
	for (nfds_t i = 0; i < n && got < max; i++) {
		struct item *item = list[i].revents ? find(s, list[i].fd) : NULL;
		uint32_t events = item ? (uint32_t)list[i].revents & (item->events | EPOLLERR | EPOLLHUP) : 0;
		if (!events || item->off)
			continue;
		out[got++] = (struct epoll_event){.events = events, .data = item->data};
		told(item, events);
	}
	pthread_mutex_unlock(&s->lock);
	return got;
}

/* One look at everything: the number of events, -1, or 0 when there was only a change. */
static int look(struct set *s, int ep, struct epoll_event *out, int max, const struct timespec *timeout, bool *over)
{
	nfds_t n;
	struct pollfd *list = list_of(s, ep, &n);
	if (!list)
		return FAIL(ENOMEM);
	int r = wait_many(list, n, timeout), why = errno;
	*over = r == 0;
	if (r > 0) {
		uint64_t drained;
		if (list[n - 2].revents)
			sys(SYS_read, s->changed, &drained, sizeof drained);
		r = collect(s, list, n - 2, out, max);
		if (list[n - 1].revents && r < max) {
			long more = sys(SYS_epoll_pwait, ep, out + r, max - r, 0, NULL, 8);
			if (more > 0)
				r += (int)more;
		}
	}
	free(list);
	errno = why;
	return r;
}

static long long now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int wait_set(struct set *s, int ep, struct epoll_event *out, int max, const struct timespec *limit)
{
	long long end = limit ? now_ns() + limit->tv_sec * 1000000000ll + limit->tv_nsec : 0;
	struct timespec left = limit ? *limit : (struct timespec){0};
	for (;;) {
		bool over;
		int r = look(s, ep, out, max, limit ? &left : NULL, &over);
		if (r || over)
			return r;
		if (limit) {
			long long ns = end - now_ns();
			left = ns > 0 ? (struct timespec){ns / 1000000000, ns % 1000000000} : (struct timespec){0};
		}
	}
}

static int masked_wait(int ep, struct epoll_event *out, int max, const struct timespec *limit, const sigset_t *mask)
{
	struct set *s = set_at(ep);
	sigset_t old;
	if (max <= 0)
		return FAIL(EINVAL);
	if (!mask)
		return wait_set(s, ep, out, max, limit);
	sys(SYS_rt_sigprocmask, SIG_SETMASK, mask, &old, 8);
	int r = wait_set(s, ep, out, max, limit), why = errno;
	sys(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, 8);
	errno = why;
	return r;
}

EXPORT int epoll_pwait(int ep, struct epoll_event *out, int max, int timeout, const sigset_t *mask)
{
	if (!set_at(ep))
		return REAL(epoll_pwait)(ep, out, max, timeout, mask);
	struct timespec t = {timeout / 1000, timeout % 1000 * 1000000l};
	return masked_wait(ep, out, max, timeout < 0 ? NULL : &t, mask);
}

EXPORT int epoll_wait(int ep, struct epoll_event *out, int max, int timeout)
{
	return set_at(ep) ? epoll_pwait(ep, out, max, timeout, NULL) : REAL(epoll_wait)(ep, out, max, timeout);
}

int epoll_pwait2(int ep, struct epoll_event *out, int max, const struct timespec *timeout, const sigset_t *mask);
EXPORT int epoll_pwait2(int ep, struct epoll_event *out, int max, const struct timespec *timeout, const sigset_t *mask)
{
	return set_at(ep) ? masked_wait(ep, out, max, timeout, mask) : REAL(epoll_pwait2)(ep, out, max, timeout, mask);
}
