/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libvrdma-sockets.so from the inside. `vrdma run --sockets` loads three libraries
 * before an ordinary TCP program:
 *
 *   program                            socket connect poll epoll_wait read ...
 *   libvrdma-sockets.so  (this one)    completes what the next one lacks
 *   librspreload.so      (rdma-core)   turns sockets into rsockets
 *   libvrdma.so                        answers rsockets' RDMA calls
 *
 * The stock preload library, above all that of rdma-core 44, knows neither flags of
 * socket(), accept4, epoll nor dup, and parts of it do not work: see each file. A descriptor
 * that it hands out is /dev/null (we make that a TCP socket without a connection); it keeps
 * the rsocket beside it. We keep a table of those, and do three things:
 *
 *   - Every rsocket is non-blocking below us; waiting is ours, always in poll, because
 *     poll is the one call of rsockets that hears of a peer's death.
 *   - What the program asks that rsockets does not know is answered here, or is made of
 *     calls that it knows.
 *   - A connection that RDMA cannot make is made by TCP, in the same descriptor.
 *
 *   table.c    which descriptors are rsockets; the numbers for vrdma's last words
 *   fork.c     what a fork child makes of them
 *   make.c     socket, dup, close
 *   listen.c   listen, accept
 *   connect.c  connect, and TCP instead
 *   names.c    getsockname, getpeername
 *   data.c     read, write and their kin
 *   wait.c     poll and select
 *   flow.c     streams: sleeping while a buffer fills
 *   epoll.c    epoll, made of poll
 *   options.c  getsockopt, setsockopt, fcntl, ioctl
 *   library.c  mends rsockets itself: its service threads, its settings
 */
#ifndef VRDMA_SOCKETS_H
#define VRDMA_SOCKETS_H

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "../vrdma.h"

/* The preload library keeps its descriptors in a table of this size, and so do we. */
#define TABLE 65536

enum kind {
	NOT_OURS,
	FRESH,      /* neither listening nor connected */
	LISTENING,
	CONNECTING, /* rsockets is at it, the program polls */
	CONNECTED,
	DEAD,       /* a connection that a fork child inherited, and cannot use */
	ALIAS,      /* made by dup: another number for an entry */
};

struct entry {
	_Atomic int kind;         /* enum kind */
	int root;                 /* of an ALIAS: the number of the entry */
	_Atomic int refs;         /* numbers that the program has for this entry */
	_Atomic bool ghost;       /* the program closed this number, and has others */
	_Atomic bool nonblocking; /* as the program sees it */
	_Atomic bool sized;       /* the program chose the size of its buffers */
	_Atomic bool inherited;   /* a fork child's listener: the number itself is the TCP twin */
	int domain;
	/* Of a listener: rsockets' queue of accepted connections, a TCP listener on the same
	 * port for peers without RDMA, and an epoll that is readable when either has work. */
	int queue, twin, both;
	int sequence;             /* fork_listener's number */
	int below;                /* ... and the preload library's number for it, until it retreats */
	_Atomic bool retreated;   /* of this listener TCP is left, because of fork */
	_Atomic int patience[2];  /* SO_RCVTIMEO and SO_SNDTIMEO in ms; 0: for ever */
	/* For edge-triggered epoll: these move when the program has used up an event. */
	_Atomic unsigned reads;
	_Atomic unsigned stalls;
};

/* ---- table.c ---- */

extern struct entry table[TABLE];
extern _Atomic int *_Atomic fork_mark; /* fork.c */
void fork_noticed(void);

static inline int kind_of(const struct entry *e) { return atomic_load_explicit(&e->kind, memory_order_acquire); }

/* The entry behind a number of the program's, or NULL: what every call asks first. */
static inline struct entry *entry_at(int fd)
{
	if (unlikely((unsigned)fd >= TABLE))
		return NULL;
	struct entry *e = &table[fd];
	int k = kind_of(e);
	if (likely(k == NOT_OURS))
		return NULL;
	if (unlikely(!atomic_load_explicit(atomic_load(&fork_mark), memory_order_relaxed))) {
		fork_noticed();
		k = kind_of(e);
	}
	return k == NOT_OURS ? NULL : k == ALIAS ? &table[e->root] : e;
}

/* The number that the preload library knows it by. */
static inline int fd_of(const struct entry *e) { return (int)(e - table); }

/* What to give to the next library's calls that take any sort of socket. */
static inline int number_of(const struct entry *e) { return unlikely(atomic_load(&e->retreated)) ? e->twin : fd_of(e); }

void entry_alias(int fd, struct entry *e); /* fd is a copy of its /dev/null */
void suit_buffers(struct entry *e); /* before a connection is made of it, or taken from it */
bool is_rsocket(int fd); /* the preload library made it one */
void entry_set(int fd, int domain, enum kind k);
void entry_become(struct entry *e, enum kind k); /* the one way to change a kind */
bool entry_used(void); /* there was an rsocket */
int entry_top(void); /* no entry above was ever used */

/* Numbers that cmd/vrdma/sockets.go reads, in this order. */
struct counts {
	_Atomic uint64_t refused;  /* connections over TCP because nobody listened on RDMA */
	_Atomic uint64_t silent;   /* ... because RDMA did not reach the peer */
	_Atomic uint64_t accepted; /* TCP connections taken: the peer did not use RDMA */
	_Atomic uint64_t unmade;   /* sockets that rsockets did not make: it found no device, or we are a fork child */
	_Atomic uint64_t udp;      /* UDP sockets */
	_Atomic uint64_t forked;   /* processes that wanted to use a connection that they inherited by fork */
	_Atomic uint64_t inherited; /* TCP connections taken from a listener that was inherited by fork, or retreated */
};
struct counts *counts(void); /* never NULL */
#define COUNT(what) atomic_fetch_add_explicit(&counts()->what, 1, memory_order_relaxed)

/* ---- fork.c ---- */

void fork_watch(void);    /* there is something to look after: an rsocket, a set of epoll */
void fork_hold(void);     /* no fork from now on, as two tables are about to disagree */
void fork_release(void);
bool in_fork_child(void); /* ... of a process that used rsockets: its library has no threads here */
bool foreign(void);       /* in a vfork child: the tables are the parent's */
int dead_use(void);       /* a fork child wants to use a connection that it inherited: -1 and errno */
void listener_use(struct entry *e); /* ... or a listener: prints a message for the user */
int fork_listener(void);  /* a number for a new listener: 1, 2, ... */
int fork_await_use(int known); /* until children use what they inherited: listeners up to which number */
int rclose(int rsocket);  /* rsockets' own, or nothing in a fork child */
extern __thread bool forgetting __attribute__((tls_model("initial-exec"))); /* rclose does nothing */
int dead_socket(void);    /* what stands for such a connection: a TCP socket without one */

/* ---- wait.c ---- */

void timers_forget(void); /* in a fork child: they are the parent's */

int wait_many(struct pollfd *fds, nfds_t n, const struct timespec *timeout); /* poll, as the program means it */
/* Wait for one: 0, or -1 and errno (EAGAIN: patience is over). */
int wait_one(struct entry *e, short events, int patience);

/* ---- flow.c ---- */

void flow_moved(const struct entry *e, bool out, size_t n); /* by this thread */
/* Before waiting: 1 after a break, 0 if none is due, or -1 and EINTR. limit may be NULL. */
int flow_break(const struct timespec *limit);

/* ---- names.c ---- */

union name {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};
void name_give(const struct entry *e, const union name *from, struct sockaddr *to, socklen_t *room);
bool name_take(const struct sockaddr *from, socklen_t n, union name *to); /* true: it was a mapped one */

/* ---- listen.c ---- */

void listener_close(struct entry *e);
void listener_child(void); /* in a fork child */

/* ---- make.c ---- */

void apply_flags(int fd, int flags); /* SOCK_CLOEXEC and SOCK_NONBLOCK of a new descriptor */
void stand_in(int fd); /* of a new rsocket: what the kernel sees */
int duplicate(struct entry *e, int low, int flags); /* F_DUPFD; flags may have O_CLOEXEC */

/* ---- connect.c ---- */

extern __thread bool connect_underway __attribute__((tls_model("initial-exec")));
bool connect_too_early(const void *buf, size_t n); /* it asks for the first event of a connect */

/* ---- library.c ---- */

void library_pair(const int pair[2]);           /* this thread made a socket pair */
void library_wrote(const void *buf, size_t n);  /* ... wrote to a descriptor that is no rsocket */
void library_polls(void);                       /* ... is about to poll such */

/* ---- epoll.c ---- */

void epoll_forget(int fd); /* fd is about to be closed */
void epoll_child(void);    /* in a fork child */

/* A failure that the caller returns. */
#define FAIL(e) (errno = (e), -1)

#endif
