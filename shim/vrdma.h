/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libvrdma.so from the inside. The library is loaded with LD_PRELOAD and stands
 * between an unmodified RDMA program and libc:
 *
 *   application, libibverbs, rxe provider
 *     | open write read ioctl close dup ...      | open stat opendir ...
 *   calls.c: which fds are ours                paths.c, stat.c: which paths are ours
 *     |                                          |
 *   files.c: files, hidden fds  ----------------- tree of the daemon
 *     | messages.c: one request, one reply
 *   vrdma daemon
 *
 *   memory.c  turns registered memory into shared memory, reclaim.c back when it is
 *             registered no more (regions.c counts; maps.c reads the VMAs, pages.c the
 *             memfd; tasks.c finds the threads, hold.c keeps them from writing: protect.c
 *             holds writers back, halt.c stops threads; repeat.c continues the system calls
 *             of stopped threads, filters.c tries seccomp filters, tracer.c names the tracer)
 *   advice.c, remap.c  what madvise and mremap do to shared memory
 *   anonymous.c  gives shared anonymous memory a descriptor that the daemon can take
 *   fork.c    gives a fork child its own copy of such memory (monitor.c helps)
 *   leave.c   lets go of the daemon, and finds another one, when the NIC moves to another host
 *   channel.c is the rdma_cm device
 *   netlink.c is RDMA netlink, where libibverbs and `rdma` ask which devices there are
 *   poll.c    lets a program that polls an empty queue yield, or sleep; place.c has it do so
 *             on another processor than the daemon's
 *
 * It forwards; it knows nothing about RDMA beyond the commands that carry a
 * descriptor or name memory, and the two that shared memory replaces (posting and
 * arming, command.c). It must never crash, print in the good case, slow
 * an ordinary read or write, or keep a lock while the application's code runs.
 *
 * Locks, in the order they may be taken: file->lock, process lock (messages.c), the lock of
 * areas (anonymous.c), memory lock (memory.c), advice's lock (advice.c), pool lock (files.c). All signals
 * are blocked while one is held, so no handler can meet a lock its own thread holds.
 */
#ifndef VRDMA_H
#define VRDMA_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "protocol.h"
#include "sys.h"

#define EXPORT __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define PAGE 4096ul

/* ---- real.c: the next definition of a function we interpose ---- */

void *real_resolve(_Atomic(void *) *slot, const char *name);

/* REAL(close)(fd): libc's close, or that of the next preloaded library; NULL if there is none. */
#define REAL(name) REAL_AS(__typeof__(&name), name)
#define REAL_AS(type, name)                                                        \
	({                                                                         \
		static _Atomic(void *) slot_;                                      \
		void *p_ = atomic_load_explicit(&slot_, memory_order_acquire);     \
		if (unlikely(!p_))                                                 \
			p_ = real_resolve(&slot_, #name);                          \
		(type)p_;                                                          \
	})

/* ---- settings.c: the environment, and words for the user ---- */

struct settings {
	char socket[1024];    /* the daemon's socket */
	char tree[1024 + 16]; /* its device tree: socket.d/sys */
	size_t tree_len;
	char vnic[32];
	char label[32];
	char faults[VRDMA_MAX_FAULTS]; /* what shall fail on purpose */
	unsigned yield; /* empty polls before a yield; 0: never */
	unsigned nap;   /* microseconds that a thread which polls may sleep; 0: never */
};

const struct settings *settings(void);
bool in_container(void); /* the socket's directory is one that an engine mounted (container.Dir) */
/* One line on stderr. Each distinct format is printed once a process. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- poll.c ---- */

/* Called after the daemon has created a completion queue for this descriptor. cq is the struct ibv_cq, by the command. */
void poll_found(int fd, uint64_t cq);

/* ---- place.c ---- */

/* This thread has just waited in the daemon's company; now in nanoseconds. */
void place_shared(uint64_t now);

/* ---- files.c: the files we answer for ---- */

struct passed;
struct foreseen;

enum file_kind {
	FILE_FREE,
	FILE_DEVICE, /* an opened uverbs0: the arena memfd */
	FILE_ASYNC,  /* asynchronous events: a socket the daemon writes to */
	FILE_COMP,   /* a completion channel, likewise */
	FILE_CM,     /* an opened rdma_cm: readable while events are pending */
	FILE_NETLINK, /* a socket of NETLINK_RDMA: its connection to the daemon */
	FILE_HIDDEN, /* a descriptor of our own, which the application must not touch */
};

/*
 * A file lives while a descriptor refers to it or a call uses it. The memory of
 * a struct file is never freed, nor are the mappings of doorbells and arm
 * words. So a doorbell or an arm that races with close() writes to an unused
 * page instead of a hole.
 */
#define ARENA_VIEWS 64
#define ARENA_VIEW (64ul << 20) /* bytes of one; an arena has at most ARENA_VIEWS of them */

struct file {
	_Atomic int refs;
	_Atomic int kind; /* enum file_kind */
	_Atomic bool dead;       /* the daemon is gone, or we are a fork child */
	_Atomic bool fatal_told; /* the end of the daemon was reported */
	uint32_t id;             /* of an event file or channel: the daemon's name for it; of a
				  * netlink socket: its port */
	uint32_t name;           /* of a device, and of its event files: the daemon's name for the device */
	uint64_t opened;         /* which use of this struct it is: never 0 */
	uint32_t rdev_major, rdev_minor;
	_Atomic int control; /* hidden: commands of this device */
	_Atomic int bell;    /* hidden: doorbell eventfd */
	_Atomic uint64_t inode; /* of the arena, or of the event socket of rdma_cm; leave.c changes it */
	unsigned char *page; /* VRDMA_DB_SIZE bytes of the arena */
	unsigned char *arms; /* its arm words, of a device; mapped once, then kept like page */
	/* The arena in windows, for arming: window n is mapped if bit n of viewed is set. Others are
	 * NULL, or were mapped for an earlier arena and hold zeros. Written under lock. */
	_Atomic(unsigned char *) view[ARENA_VIEWS];
	_Atomic uint64_t viewed;
	unsigned char *out;  /* extents of the request under way, VRDMA_MAX_MESSAGE bytes */
	unsigned char *in;   /* the reply under way, likewise */
	unsigned char *mail; /* VRDMA_MAIL_SIZE bytes shared with the daemon; NULL: none */
	bool mail_ended;     /* it is no daemon's any more: another one may take its place */
	int fresh, peer;     /* of event files, while leave.c is at work; -1: none */
	_Atomic(struct foreseen *) ahead; /* answers ahead, see ahead.c; NULL: none. If there are,
					   * mail has VRDMA_AHEAD_SIZE bytes */
	pthread_mutex_t lock; /* one command at a time; guards out, in and mail */
	_Atomic bool busy;    /* whether somebody has it: a hint, for file_lock */
	struct file *next;    /* in the list of all files; never changes */
};

#define FILE_TABLE (1u << 18)
extern _Atomic(struct file *) file_table[FILE_TABLE];

/* The file behind fd, or NULL: what every hooked call asks first. */
static inline struct file *file_at(int fd)
{
	if (unlikely((unsigned)fd >= FILE_TABLE))
		return NULL;
	return atomic_load_explicit(&file_table[fd], memory_order_acquire);
}

/* Whether the program sees it as a device node. */
static inline bool file_is_node(struct file *f)
{
	int k = atomic_load_explicit(&f->kind, memory_order_relaxed);
	return k == FILE_DEVICE || k == FILE_CM;
}

struct file *file_get(int fd);            /* with a reference, or NULL */
void file_put(struct file *f);            /* drop it */
void file_lock(struct file *f);           /* takes f->lock */
void file_unlock(struct file *f);
struct file *file_new(enum file_kind k);  /* with one reference, in no slot */
bool file_install(struct file *f, int fd); /* fd takes over the caller's reference */
struct file *file_remove(int fd);         /* empty the slot; the caller gets the reference */
bool fd_hide(int *fd);                    /* move fd high and protect it; false: too few */
void fd_unhide(int fd);                   /* close a hidden descriptor */
bool fd_vacate(int fd);                   /* the application wants this number */
unsigned file_top(void);                  /* no slot above this one was ever used */
void files_child(void);                   /* in a fork child: everything inherited is dead */
bool other_process(void);                 /* not the process the tables describe (vfork child) */
int device_open(int flags);
ssize_t device_write(struct file *f, int fd, const void *buf, size_t n);
ssize_t device_event(struct file *f, ssize_t got, void *buf, size_t n);
bool device_alive(struct file *f);
int device_apply(struct file *f, size_t n, struct passed *fds); /* a reply in f->in; 0 or errno */

extern _Atomic(struct file *) file_pool; /* every struct file there is */

/* ---- leave.c: the NIC moves to another host ---- */

bool leave_ready(void); /* can we let go of the daemon when it asks? */
/* A system call of this thread failed with EINTR: true if that was because the daemon asked. */
bool leave_interrupted(void);
/* Around the opening of a device or channel: no leave begins meanwhile. */
void leave_opening(void);
void leave_opened(void);

/* ---- channel.c: the rdma_cm device ---- */

int channel_open(int flags);
ssize_t channel_write(int fd, const void *buf, size_t n);

/* ---- ahead.c: what the daemon has answered before we ask ---- */

/* Maps the mailbox in fd with what is behind it, for a channel; false: it cannot be. */
bool ahead_install(struct file *f, int fd);
void ahead_forget(struct file *f); /* nobody uses f any more */
/* Keeps the answers of a reply, which lie between at and end. */
void ahead_keep(struct file *f, const unsigned char *at, const unsigned char *end, uint32_t count);
/* Answers a command, if that can be done here. The caller has a reference to f. */
bool ahead_answer(struct file *f, const unsigned char *command, size_t n);
/* Takes an event that the daemon has laid out; false: it has to be asked. */
bool ahead_take(struct file *f, void *response, size_t room);
/* Whether events wait; false if that is not known. */
bool ahead_events(struct file *f);

/* ---- netlink.c ---- */

struct msghdr;
struct sockaddr;
ssize_t netlink_recvmsg(int fd, struct msghdr *m, int flags);
ssize_t netlink_recvfrom(int fd, void *buf, size_t n, int flags, struct sockaddr *from, unsigned *len);

/* ---- signals, blocked around every lock ---- */

typedef struct {
	uint64_t bits;
} sigmask;
static inline sigmask signals_block(void)
{
	sigmask old = {0}, all = {~0ull};
	sys(SYS_rt_sigprocmask, 0 /* SIG_BLOCK */, &all, &old, 8);
	return old;
}
static inline void signals_restore(sigmask old)
{
	sys(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &old, 0, 8);
}

/* ---- messages.c: conversations with the daemon ---- */

struct process {
	_Atomic int socket; /* hidden; -1: none yet */
	_Atomic int memory; /* hidden: the memfd of registered memory */
	_Atomic uint32_t maps; /* VRDMA_MAPS_*: what the daemon maps */
	uint64_t device, inode; /* of that memfd */
	uint8_t token[16];
};
extern struct process process;

/*
 * How many times a thread polls for a reply, or for the connection's lock, before it sleeps. A
 * daemon that is awake answers within a few microseconds. Sleeping and waking takes both sides
 * longer. Between two polls the thread yields, because the daemon may be waiting for its processor.
 * The first GLANCES polls, of a word in memory, are too short for that.
 */
#ifndef LOOKS
#define LOOKS 40
#endif
#ifndef GLANCES
#define GLANCES 20
#endif

/* Runs between two polls; look counts them. */
static inline void look_away(int look)
{
	if (look >= GLANCES)
		sys(SYS_sched_yield);
#if defined(__x86_64__) || defined(__i386__)
	else
		__builtin_ia32_pause();
#elif defined(__aarch64__)
	else
		__asm__ volatile("yield");
#endif
}

struct message {
	const void *part[3];
	size_t length[3];
	int nparts;
	unsigned char *mail; /* where the request may go; NULL: to the socket only */
};

/* Descriptors that came with a message. */
struct passed {
	int fd[VRDMA_MAX_FDS];
	int n;
	bool truncated; /* some were lost: too few free numbers */
};

int wire_process(bool quiet);                 /* make sure of the PROCESS connection; 0 or errno */
/* A device's connection and the want descriptors that come with it; 0 or errno. */
int wire_open(uint32_t kind, struct vrdma_welcome *w, int *control, int *fds, int want);
/* A connection for netlink, hidden; 0 or errno. */
int wire_netlink(bool quiet, int *socket);
/*
 * One request, one reply into in[VRDMA_MAX_MESSAGE]: its length, or -errno (EIO: the daemon is
 * gone). Signals are blocked; outside is the mask to wait with if the daemon is slow.
 */
ssize_t wire_call(int socket, sigmask outside, const struct message *m, void *in, struct passed *fds);
/* Leaves a command that is sure to be accepted in the mailbox; false: it has to be sent. */
bool wire_leave(unsigned char *mail, const void *command, size_t n);
void passed_close(struct passed *fds);
void wire_expose(bool yes);                   /* may the daemon take descriptors of ours? */
/* What a hello of a program that comes back adds: the number of its device or channel, and a descriptor; -1: none. */
struct coming {
	uint32_t name;
	int fd;
};
/* Like wire_open, for a connection that comes back. It prints nothing. */
int wire_return(uint32_t kind, const struct coming *b, sigmask outside, struct vrdma_welcome *w, int *control,
		int *fds, int want);
/* Locks the PROCESS connection, and unlocks it. */
void wire_lock(void);
void wire_unlock(void);
int wire_ask(uint32_t op, sigmask outside); /* a request without a body there: 0 or errno. Locked */
bool wire_sync(void);                         /* have the counter files brought up to date; false: nobody answers */
void wire_child(void);

/* ---- paths.c ---- */

enum node {
	NODE_OTHER,   /* not ours: use the path as it is */
	NODE_TREE,    /* in the device tree: use the new path */
	NODE_DEVICE,  /* /dev/infiniband/uverbs0 or rdma_cm */
	NODE_MISSING, /* below /dev/infiniband, and there is no such thing */
};
#define PATH_ROOM 4096
enum node path_map(const char *path, char out[PATH_ROOM], const char **use);
bool path_manager(const char *path); /* it names rdma_cm */
bool path_rdev(const char *path, unsigned *maj, unsigned *min); /* of a node; false: no device */
void path_refresh(int dirfd, const char *path); /* before counters are read */
void path_cwd(void);                            /* the working directory changed */

/* ---- memory.c, reclaim.c, advice.c, remap.c ---- */

bool memory_sound(uint64_t start, uint64_t length); /* can it be a range of addresses at all? */
/*
 * Extents under [start, start+length); returns their number. If held, the pages stay as they
 * are until memory_refused, or memory_registered and then memory_deregistered.
 */
struct shared; /* shared.h */
uint32_t memory_prepare(uint64_t start, uint64_t length, struct vrdma_extent *out, uint32_t room,
			struct shared *shared, bool *held);
void memory_registered(const struct file *f, uint32_t handle, uint64_t start, uint64_t length);
void memory_refused(uint64_t start, uint64_t length);
void memory_deregistered(const struct file *f, uint32_t handle);
bool memory_regions(const struct file *f); /* are there any? */
void memory_closed(const struct file *f);  /* there are none any more */
/* A system call failed with EFAULT: true if that may be because pages were being replaced. */
bool memory_retry(void);
/* All shared memory becomes private again. False: some could not. */
bool memory_reclaim(void);
/*
 * Makes all shared memory private. Regions stay registered. The function then is called while other threads are
 * stopped. False: nothing has changed.
 */
bool memory_leave(void (*then)(void));
bool memory_return(void); /* what memory_leave made private is shared again, in another memfd */
bool memory_alone(void (*then)(void)); /* then runs while other threads are stopped; false: they cannot be */
int memory_madvise(void *addr, size_t n, int advice);
int memory_munmap(void *addr, size_t n);
void *memory_mremap(void *old, size_t size, size_t new_size, int flags, void *to);

#endif
