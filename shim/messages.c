/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversations with the daemon: connecting, greeting, one request and one reply
 * at a time. Everything here uses bare system calls, so it is neither a
 * cancellation point nor seen by our own hooks.
 *
 * Signals: the caller has blocked them, so no handler can run between a request
 * and its reply and nothing can put the two out of step. A daemon that does not
 * answer for a second gets the application's own signal mask back while we wait,
 * so that ^C still ends the program.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tracer.h"
#include "vrdma.h"

struct process process = {.socket = -1, .memory = -1};
static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;

extern char *program_invocation_short_name;

static void copy_text(char *to, size_t room, const char *from)
{
	size_t n = 0;
	while (from && n < room - 1 && from[n]) {
		to[n] = from[n];
		n++;
	}
	memset(to + n, 0, room - n);
}

void passed_close(struct passed *fds)
{
	for (int i = 0; i < fds->n; i++)
		sys(SYS_close, fds->fd[i]);
	fds->n = 0;
}

/* How long we sleep with the signals blocked: every receiving call ends then. */
static void set_patience(int socket, time_t seconds)
{
	struct timeval t = {.tv_sec = seconds};
	sys(SYS_setsockopt, socket, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
}

/* Waits until something can be read, or a signal has ended the program. */
static void wait_readable(int socket, sigmask outside)
{
	struct pollfd p = {.fd = socket, .events = POLLIN};

	while (sys(SYS_ppoll, &p, 1, NULL, &outside, 8) == -EINTR)
		;
}

/* Receives one message and its descriptors. Length, 0 at the end, or -errno. */
static ssize_t receive(int socket, sigmask outside, void *in, size_t room, struct passed *fds)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(VRDMA_MAX_FDS * sizeof(int))];
	} control;
	struct iovec iov = {in, room};
	struct msghdr h = {0};
	int looks = 0;
	ssize_t n;

	fds->n = 0;
	fds->truncated = false;
	do {
		h.msg_iov = &iov;
		h.msg_iovlen = 1;
		h.msg_control = control.bytes;
		h.msg_controllen = sizeof control.bytes;
		int look = looks++ < LOOKS ? MSG_DONTWAIT : 0;
		n = sys(SYS_recvmsg, socket, &h, MSG_CMSG_CLOEXEC | look);
		if (n == -EAGAIN && look)
			sys(SYS_sched_yield);
		else if (n == -EAGAIN)
			wait_readable(socket, outside);
	} while (n == -EAGAIN || n == -EINTR);
	if (n < 0)
		return n;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		fds->n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds->fd, CMSG_DATA(c), (size_t)fds->n * sizeof(int));
	}
	fds->truncated = (h.msg_flags & MSG_CTRUNC) != 0;
	return n;
}

/* Sends one message, with a descriptor unless fd is -1. */
static ssize_t transmit_with(int socket, const struct message *m, int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov[3];
	struct msghdr h = {0};
	ssize_t n;

	if (fd >= 0) {
		memset(&control, 0, sizeof control);
		h.msg_control = control.bytes;
		h.msg_controllen = sizeof control.bytes;
		struct cmsghdr *c = CMSG_FIRSTHDR(&h);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(c), &fd, sizeof fd);
	}

	for (int i = 0; i < m->nparts; i++)
		iov[i] = (struct iovec){(void *)(uintptr_t)m->part[i], m->length[i]};
	h.msg_iov = iov;
	h.msg_iovlen = (size_t)m->nparts;
	do
		n = sys(SYS_sendmsg, socket, &h, MSG_NOSIGNAL);
	while (n == -EINTR);
	return n;
}

static ssize_t transmit(int socket, const struct message *m)
{
	return transmit_with(socket, m, -1);
}

/*
 * ---- the mailbox: protocol.h says how it is used ----
 *
 * Requests, answers and their lengths are plain bytes. The owner writes them before it changes the state with a release, and
 * the other side reads them after it has read the state with an acquire: read-modify-writes here are seq_cst, and so are
 * those of the daemon. The first load of the state is only a hint; the compare-exchange decides. wire_leave stores the length,
 * then loads the state; the daemon closes the state, then loads the length. All four are seq_cst, so that at least one
 * sees the other also on arm64. TestMailbox of package armcheck checks it.
 */

static _Atomic uint32_t *mail_state(unsigned char *mail)
{
	return (_Atomic uint32_t *)(void *)(mail + VRDMA_MAIL_STATE);
}

/* Leaves a request in the mailbox; false: the daemon does not look there, or it is too long. */
static bool mail_ask(unsigned char *mail, const struct message *m)
{
	uint32_t open = VRDMA_MAIL_OPEN, at = VRDMA_MAIL_REQUEST, length;

	if (!mail || atomic_load_explicit(mail_state(mail), memory_order_relaxed) != VRDMA_MAIL_OPEN)
		return false;
	for (int i = 0; i < m->nparts; i++) {
		if (m->length[i] > VRDMA_MAIL_LEFT - at)
			return false;
		memcpy(mail + at, m->part[i], m->length[i]);
		at += (uint32_t)m->length[i];
	}
	length = at - VRDMA_MAIL_REQUEST;
	memcpy(mail + VRDMA_MAIL_ASKED_LEN, &length, sizeof length);
	return atomic_compare_exchange_strong(mail_state(mail), &open,
					      VRDMA_MAIL_OPEN | VRDMA_MAIL_ASKED);
}

/* Waits for the answer. Its length; 0: it comes through the socket. */
static ssize_t mail_await(unsigned char *mail, void *in)
{
	const uint32_t done = VRDMA_MAIL_ANSWERED | VRDMA_MAIL_SENT;
	uint32_t w = 0, length;

	for (int i = 0; i < GLANCES + LOOKS; i++) {
		w = atomic_load_explicit(mail_state(mail), memory_order_acquire);
		if (w & done)
			break;
		look_away(i);
	}
	if (!(w & done))
		w = atomic_fetch_or(mail_state(mail), VRDMA_MAIL_ASLEEP);
	if (!(w & VRDMA_MAIL_ANSWERED))
		return 0;
	memcpy(&length, mail + VRDMA_MAIL_REPLY_LEN, sizeof length);
	if (length > VRDMA_MAIL_SIZE - VRDMA_MAIL_REPLY)
		length = VRDMA_MAIL_SIZE - VRDMA_MAIL_REPLY;
	memcpy(in, mail + VRDMA_MAIL_REPLY, length);
	return length;
}

/* The mailbox is ours again. */
static void mail_end(unsigned char *mail)
{
	atomic_fetch_and(mail_state(mail), VRDMA_MAIL_OPEN);
}

bool wire_leave(unsigned char *mail, const void *command, size_t n)
{
	const uint32_t room = VRDMA_MAIL_REPLY - VRDMA_MAIL_LEFT;
	uint32_t was, now;

	if (!mail || atomic_load_explicit(mail_state(mail), memory_order_relaxed) != VRDMA_MAIL_OPEN)
		return false;
	_Atomic uint32_t *length = (_Atomic uint32_t *)(void *)(mail + VRDMA_MAIL_LEFT_LEN);
	was = atomic_load(length);
	do {
		if (was > room || n > room - was)
			return false;
		memcpy(mail + VRDMA_MAIL_LEFT + was, command, n);
		now = was + (uint32_t)n;
	} while (!atomic_compare_exchange_strong(length, &was, now));
	/* If the daemon has closed the mailbox, the command is taken back, unless the daemon took it first. */
	return atomic_load(mail_state(mail)) & VRDMA_MAIL_OPEN ||
	       !atomic_compare_exchange_strong(length, &now, was);
}

ssize_t wire_call(int socket, sigmask outside, const struct message *m, void *in, struct passed *fds)
{
	bool asked = mail_ask(m->mail, m);
	ssize_t n = asked ? mail_await(m->mail, in) : transmit(socket, m);
	fds->n = 0;
	fds->truncated = false;
	if (n == -EFAULT || n == -EMSGSIZE || n == -ENOMEM || n == -ENOBUFS)
		return n; /* nothing was sent: the conversation is in step */
	if (n < 0)
		return -EIO;
	if (!asked || n == 0)
		n = receive(socket, outside, in, VRDMA_MAX_MESSAGE, fds);
	if (asked)
		mail_end(m->mail);
	if (n < (ssize_t)sizeof(struct vrdma_reply)) {
		passed_close(fds);
		return -EIO;
	}
	return n;
}

/* ---- connecting ---- */

/* A path longer than sun_path is reached through a descriptor of its directory. */
static long connect_path(int socket, const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	size_t n = strlen(path);
	long dir = -1, r;

	if (n < sizeof a.sun_path) {
		memcpy(a.sun_path, path, n + 1);
	} else {
		char parent[1024];
		const char *slash = strrchr(path, '/');
		if (!slash || (size_t)(slash - path) >= sizeof parent)
			return -ENAMETOOLONG;
		memcpy(parent, path, (size_t)(slash - path));
		parent[slash - path] = 0;
		dir = sys(SYS_openat, AT_FDCWD, parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (dir < 0)
			return dir;
		if (snprintf(a.sun_path, sizeof a.sun_path, "/proc/self/fd/%ld/%s", dir,
			     slash + 1) >= (int)sizeof a.sun_path) {
			sys(SYS_close, dir);
			return -ENAMETOOLONG;
		}
	}
	/* A stopped daemon accepts no connection, and our signals are blocked: do not wait for ever. */
	struct timeval patience = {.tv_sec = 10}, forever = {0};
	sys(SYS_setsockopt, socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
	do
		r = sys(SYS_connect, socket, &a, sizeof a);
	while (r == -EINTR);
	sys(SYS_setsockopt, socket, SOL_SOCKET, SO_SNDTIMEO, &forever, sizeof forever);
	if (dir >= 0)
		sys(SYS_close, dir);
	return r;
}

static int too_few(void)
{
	struct rlimit r = {0};
	sys(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &r);
	complain("too few file descriptors: raise ulimit -n (now %lu)", (unsigned long)r.rlim_cur);
	return EMFILE;
}

static int explain_connect(long error, bool quiet)
{
	const char *path = settings()->socket;
	switch (error) {
	case ENOENT:
	case ENOTDIR:
		if (!quiet && in_container())
			complain("no RDMA device: the vrdma daemon on this container's host is not running; it has to be "
				 "started there, and then new programs have the device");
		else if (!quiet)
			complain("no RDMA device: there is no vrdma daemon at %s; start the program "
				 "with 'vrdma run -- PROGRAM', or set VRDMA_SOCKET (in a container: "
				 "bind-mount the daemon's directory at the same place)", path);
		return ENODEV;
	case ECONNREFUSED:
		if (!quiet && in_container())
			complain("no RDMA device: the vrdma daemon on this container's host has ended; it has to be "
				 "started there, and then new programs have the device");
		else if (!quiet)
			complain("no RDMA device: nobody listens at %s (the daemon has ended); start "
				 "one with 'vrdma daemon --socket %s'", path, path);
		return ECONNREFUSED;
	case EACCES:
	case EPERM:
		if (!quiet && in_container())
			complain("no RDMA device: user %lu may not open this container's NIC; run the program as "
				 "root, or have spec.open of the NIC name the user",
				 (unsigned long)sys(SYS_geteuid));
		else if (!quiet)
			complain("no RDMA device: this user may not connect to the daemon at %s", path);
		return EACCES;
	case EAGAIN:
		if (!quiet)
			complain("no RDMA device: the daemon at %s does not answer", path);
		return ETIMEDOUT;
	default:
		if (!quiet)
			complain("no RDMA device: cannot connect to the daemon at %s (errno %ld)", path,
				 error);
		return (int)error;
	}
}

/* The process at the other end, as our pid namespace numbers it; 0: it is not in there. */
static long peer_pid(int socket)
{
	struct ucred who = {.pid = 0};
	socklen_t n = sizeof who;
	if (sys(SYS_getsockopt, socket, SOL_SOCKET, SO_PEERCRED, &who, &n) < 0)
		return 0;
	return who.pid;
}

/* Opens a connection of one kind. Returns 0 and a hidden socket, or an errno. back: of what comes back, else NULL. */
static int greet(uint32_t kind, const struct coming *back, sigmask outside, bool quiet, struct vrdma_welcome *w,
		 int *out, int *fds, int want)
{
	const struct settings *s = settings();
	struct vrdma_hello hello = {.magic = VRDMA_MAGIC, .protocol = VRDMA_PROTOCOL, .kind = kind,
				     .flags = VRDMA_HELLO_MAIL | VRDMA_HELLO_AHEAD};
	struct message m = {{&hello}, {sizeof hello}, 1, NULL};
	struct passed got = {.n = 0};
	ssize_t n;
	long r;
	int socket = (int)sys(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (socket == -EMFILE || socket == -ENFILE)
		return too_few();
	if (socket < 0)
		return -socket;
	if (!fd_hide(&socket)) {
		sys(SYS_close, socket);
		return too_few();
	}
	set_patience(socket, 1);
	r = connect_path(socket, s->socket);
	if (r < 0) {
		fd_unhide(socket);
		return explain_connect(-r, quiet);
	}
	memcpy(hello.token, process.token, sizeof hello.token);
	copy_text(hello.vnic, sizeof hello.vnic, s->vnic);
	copy_text(hello.label, sizeof hello.label, s->label);
	copy_text(hello.program, sizeof hello.program, program_invocation_short_name);
	if (kind == VRDMA_KIND_PROCESS && leave_ready())
		hello.flags |= VRDMA_HELLO_MOVES;
	if (back) {
		hello.flags |= VRDMA_HELLO_RETURN;
		m.part[1] = &back->name;
		m.length[1] = sizeof back->name;
		m.nparts = 2;
	} else if (kind == VRDMA_KIND_PROCESS && s->faults[0]) {
		hello.flags |= VRDMA_HELLO_FAULTS;
		m.part[1] = s->faults;
		m.length[1] = strlen(s->faults) + 1;
		m.nparts = 2;
	}
	if (kind == VRDMA_KIND_PROCESS)
		tracer_allow(peer_pid(socket)); /* it opens memory that it cannot map */
	n = transmit_with(socket, &m, back ? back->fd : -1);
	if (n >= 0)
		n = receive(socket, outside, w, sizeof *w, &got);
	if (kind == VRDMA_KIND_PROCESS)
		tracer_forbid();
	if (n == (ssize_t)sizeof *w && w->magic == VRDMA_MAGIC && w->error == 0 && got.n == want) {
		memcpy(fds, got.fd, (size_t)want * sizeof(int));
		*out = socket;
		return 0;
	}
	passed_close(&got);
	fd_unhide(socket);
	if (got.truncated)
		return too_few();
	if (n <= 0)
		return explain_connect(ECONNREFUSED, quiet); /* it ended just now */
	if (n != (ssize_t)sizeof *w || w->magic != VRDMA_MAGIC) {
		if (!quiet)
			complain("what listens at %s does not speak vrdma protocol %u; is the daemon of "
				 "another version?", s->socket, VRDMA_PROTOCOL);
		return ENODEV;
	}
	w->text[sizeof w->text - 1] = 0;
	if (!quiet && w->text[0])
		complain("%s", w->text);
	return w->error > 0 ? w->error : ENODEV;
}

void wire_expose(bool yes)
{
	if (yes)
		tracer_allow(peer_pid(atomic_load(&process.socket)));
	else
		tracer_forbid();
}

static int process_connect(sigmask outside, bool quiet)
{
	struct vrdma_welcome w;
	struct stat st;
	int socket, memory;
	int e = greet(VRDMA_KIND_PROCESS, NULL, outside, quiet, &w, &socket, &memory, 1);

	if (e)
		return e;
	if (!fd_hide(&memory)) {
		sys(SYS_close, memory);
		fd_unhide(socket);
		return too_few();
	}
	if (sys(SYS_fstat, memory, &st) == 0) {
		process.device = st.st_dev;
		process.inode = st.st_ino;
	}
	memcpy(process.token, w.token, sizeof process.token);
	atomic_store(&process.maps, w.id);
	atomic_store(&process.memory, memory);
	atomic_store(&process.socket, socket);
	return 0;
}

/* The daemon ended, and perhaps another one runs: begin anew, with memory that is ours again. */
static void process_forget(void)
{
	struct pollfd p = {.fd = atomic_load(&process.socket)};
	struct timespec zero = {0};
	if (p.fd < 0 || sys(SYS_ppoll, &p, 1, &zero, NULL, 8) != 1 || !(p.revents & (POLLHUP | POLLERR)))
		return;
	if (!memory_reclaim())
		return;
	fd_unhide(atomic_exchange(&process.socket, -1));
	fd_unhide(atomic_exchange(&process.memory, -1));
	memset(process.token, 0, sizeof process.token);
}

int wire_process(bool quiet)
{
	int e = 0;
	sigmask old = signals_block();
	pthread_mutex_lock(&process_lock);
	process_forget();
	if (atomic_load(&process.socket) < 0)
		e = process_connect(old, quiet);
	pthread_mutex_unlock(&process_lock);
	signals_restore(old);
	return e;
}

int wire_open(uint32_t kind, struct vrdma_welcome *w, int *control, int *fds, int want)
{
	sigmask old = signals_block();
	int e = greet(kind, NULL, old, false, w, control, fds, want);
	signals_restore(old);
	return e;
}

int wire_return(uint32_t kind, const struct coming *back, sigmask outside, struct vrdma_welcome *w, int *control,
		int *fds, int want)
{
	return greet(kind, back, outside, true, w, control, fds, want);
}

int wire_netlink(bool quiet, int *socket)
{
	struct vrdma_welcome w;
	int none;
	sigmask old = signals_block();
	int e = greet(VRDMA_KIND_NETLINK, NULL, old, quiet, &w, socket, &none, 0);
	if (!e)
		set_patience(*socket, 0);
	signals_restore(old);
	return e;
}

void wire_lock(void)
{
	pthread_mutex_lock(&process_lock);
}

void wire_unlock(void)
{
	pthread_mutex_unlock(&process_lock);
}

int wire_ask(uint32_t op, sigmask outside)
{
	struct vrdma_request q = {.op = op};
	struct message m = {{&q}, {sizeof q}, 1, NULL};
	static unsigned char in[VRDMA_MAX_MESSAGE]; /* guarded by process_lock */
	struct vrdma_reply reply;
	struct passed fds;

	ssize_t n = wire_call(atomic_load(&process.socket), outside, &m, in, &fds);
	if (n < 0)
		return (int)-n;
	passed_close(&fds);
	memcpy(&reply, in, sizeof reply);
	return reply.error;
}

bool wire_sync(void)
{
	if (other_process() || wire_process(true))
		return false;
	sigmask old = signals_block();
	pthread_mutex_lock(&process_lock);
	bool heard = wire_ask(VRDMA_OP_SYNC, old) != EIO;
	pthread_mutex_unlock(&process_lock);
	signals_restore(old);
	return heard;
}

void wire_child(void)
{
	pthread_mutex_init(&process_lock, NULL);
	atomic_store(&process.socket, -1);
	atomic_store(&process.memory, -1);
	memset(process.token, 0, sizeof process.token);
}
