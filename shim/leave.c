/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NIC moves to another host, and the program with it, by CRIU. protocol.h, "Moving", has the conversation. The
 * daemon asks by a signal. The thread that gets it does all the work in the handler, and stays there until the
 * program is back: so a program that CRIU has restored continues by itself.
 *
 *   take       all devices and channels, and the PROCESS connection: other threads that make a command wait
 *   let go     make memory private (rejoin.c), put sockets of our own in the place of event files, close the rest
 *   (dump and restore)
 *   come back  connect again and again; then memory, devices, event files, channels
 *
 * Event files change while other threads are stopped. A thread that waits in such a file begins its system call
 * anew, so it waits in the next file. epoll sets refer to files, not to descriptors: what is in a set is removed
 * before, and added after.
 *
 * A signal handler runs anywhere. But signals are blocked while a lock of ours is held, so this thread holds none.
 * Nothing here allocates by malloc.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <ucontext.h>

#include "clock.h"
#include "vrdma.h"

#define WAIT_FIRST (1 * MS)  /* between two attempts to come back, at first */
#define WAIT_MOST (20 * MS)
#define WAIT_ALL (900000 * MS) /* then the devices are dead */
#define SETS_MAX 1024 /* epoll sets */

static _Atomic int opening; /* threads in device_open or channel_open */
static _Atomic bool under_way;
static _Atomic int installed; /* 0: not tried; 1: the handler is ours; -1: the program uses the signal */

void leave_opening(void)
{
	atomic_fetch_add(&opening, 1);
}

void leave_opened(void)
{
	atomic_fetch_sub(&opening, 1);
}

/* The state of a leave. Only the thread that has set under_way uses it. */
struct watch {
	int set, fd;
	uint32_t events;
	uint64_t data;
};
static struct {
	struct file **file; /* devices and channels first, which are locked; then event files */
	size_t n, locked, room;
	struct watch *watch;
	size_t watches, watch_room;
	int set[SETS_MAX];
	size_t sets;
	char text[65536];
} work;

static void *more(void *old, size_t *room, size_t size)
{
	size_t n = *room ? 2 * *room : PAGE / size;
	long r = old ? sys(SYS_mremap, old, *room * size, n * size, MREMAP_MAYMOVE)
		     : sys(SYS_mmap, NULL, n * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (r < 0 && r > -4096)
		return NULL;
	*room = n;
	return (void *)r;
}

/* ---- taking everything ---- */

static bool is(struct file *f, enum file_kind k)
{
	return atomic_load(&f->kind) == (int)k;
}

static bool event_file(struct file *f)
{
	return is(f, FILE_ASYNC) || is(f, FILE_COMP);
}

/* Takes a reference to a file that has a descriptor. False: it has none any more. */
static bool hold_file(struct file *f)
{
	int n = atomic_load(&f->refs);
	while (n > 0)
		if (atomic_compare_exchange_weak(&f->refs, &n, n + 1))
			return true;
	return false;
}

static bool collect(bool (*wanted)(struct file *))
{
	for (struct file *f = atomic_load(&file_pool); f; f = f->next) {
		if (!wanted(f) || !hold_file(f))
			continue;
		if (!wanted(f) || atomic_load(&f->dead)) {
			file_put(f);
			continue;
		}
		if (work.n == work.room) {
			void *p = more(work.file, &work.room, sizeof *work.file);
			if (!p) {
				file_put(f);
				return false;
			}
			work.file = p;
		}
		work.file[work.n++] = f;
	}
	return true;
}

static void give(void)
{
	wire_unlock();
	for (size_t i = 0; i < work.n; i++) {
		if (i < work.locked)
			file_unlock(work.file[i]);
		file_put(work.file[i]);
	}
	work.n = work.locked = 0;
}

/* Locks all devices and channels, and the PROCESS connection. False: a device is being opened; the caller tries again. */
static bool take(void)
{
	work.n = work.locked = 0;
	bool ok = collect(file_is_node);
	size_t nodes = work.n;
	for (; work.locked < nodes; work.locked++)
		file_lock(work.file[work.locked]);
	wire_lock();
	ok = ok && atomic_load(&opening) == 0 && atomic_load(&process.socket) >= 0;
	/* A device that was opened meanwhile is not locked. */
	size_t now = 0;
	for (struct file *f = atomic_load(&file_pool); f; f = f->next)
		now += file_is_node(f) && !atomic_load(&f->dead);
	ok = ok && now == nodes && collect(event_file);
	if (!ok)
		give();
	return ok;
}

/* ---- event files ---- */

/* Returns the first descriptor of a file that is at least at; -1: there is none. */
static int number_of(const struct file *f, unsigned at)
{
	for (; at <= file_top(); at++)
		if (file_at((int)at) == f)
			return (int)at;
	return -1;
}

static uint64_t hex(const char **at)
{
	uint64_t v = 0;
	for (;; (*at)++) {
		char c = **at;
		if (c >= '0' && c <= '9')
			v = v << 4 | (uint64_t)(c - '0');
		else if (c >= 'a' && c <= 'f')
			v = v << 4 | (uint64_t)(c - 'a' + 10);
		else
			return v;
	}
}

/* Where the value of a field begins in a line; NULL: it has none. */
static const char *field(const char *line, const char *name)
{
	const char *at = strstr(line, name);
	if (!at)
		return NULL;
	for (at += strlen(name); *at == ' '; at++)
		;
	return at;
}

/* A line of an epoll set's fdinfo: "tfd:       5 events:       19 data:   560000 ...". */
static bool note(int set, const char *line)
{
	const char *fd = field(line, "tfd:"), *events = field(line, "events:"), *data = field(line, "data:");
	struct watch w = {.set = set};
	if (!fd || !events || !data)
		return true;
	for (; *fd >= '0' && *fd <= '9'; fd++)
		w.fd = w.fd * 10 + (*fd - '0');
	struct file *f = file_at(w.fd);
	if (!f || !(event_file(f) || is(f, FILE_CM)))
		return true;
	w.events = (uint32_t)hex(&events);
	w.data = hex(&data);
	if (work.watches == work.watch_room) {
		void *p = more(work.watch, &work.watch_room, sizeof *work.watch);
		if (!p)
			return false;
		work.watch = p;
	}
	work.watch[work.watches++] = w;
	return true;
}

static void number(char *to, unsigned n)
{
	char digits[12];
	int i = 0;
	do
		digits[i++] = (char)('0' + n % 10);
	while (n /= 10);
	while (i)
		*to++ = digits[--i];
	*to = 0;
}

/* Notes which of our event files are in a set. */
static bool read_set(int set)
{
	char path[40] = "/proc/self/fdinfo/";
	size_t have = 0;
	bool ok = true;
	number(path + strlen(path), (unsigned)set);
	long fd = sys(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	for (;;) {
		long n = sys(SYS_read, fd, work.text + have, sizeof work.text - 1 - have);
		if (n <= 0) {
			ok = ok && n == 0;
			break;
		}
		have += (size_t)n;
		work.text[have] = 0;
		char *line = work.text, *end;
		while ((end = memchr(line, '\n', have - (size_t)(line - work.text)))) {
			*end = 0;
			ok = note(set, line) && ok;
			line = end + 1;
		}
		have -= (size_t)(line - work.text);
		memmove(work.text, line, have);
	}
	sys(SYS_close, fd);
	return ok;
}

/* Finds the epoll sets of the process. */
static bool find_sets(void)
{
	static const char epoll[] = "anon_inode:[eventpoll]";
	struct {
		uint64_t ino, off;
		uint16_t reclen;
		uint8_t type;
		char name[];
	} __attribute__((packed)) *e;
	char list[2048], path[40] = "/proc/self/fd/", to[40];
	size_t prefix = strlen(path);

	work.sets = 0;
	long fd = sys(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC), n;
	if (fd < 0)
		return false;
	while ((n = sys(SYS_getdents64, fd, list, sizeof list)) > 0)
		for (long i = 0; i < n; i += e->reclen) {
			e = (void *)(list + i);
			if (e->name[0] < '0' || e->name[0] > '9' || strlen(e->name) > 10)
				continue;
			memcpy(path + prefix, e->name, strlen(e->name) + 1);
			long got = sys(SYS_readlinkat, AT_FDCWD, path, to, sizeof to - 1);
			if (got != sizeof epoll - 1 || memcmp(to, epoll, sizeof epoll - 1) || work.sets == SETS_MAX)
				continue;
			int set = 0;
			for (const char *c = e->name; *c; c++)
				set = set * 10 + (*c - '0');
			work.set[work.sets++] = set;
		}
	sys(SYS_close, fd);
	return n == 0;
}

/* Replaces all descriptors of a file by duplicates of f->fresh. */
static void replace_file(struct file *f)
{
	struct stat st;
	for (int fd = number_of(f, 0); fd >= 0; fd = number_of(f, (unsigned)fd + 1)) {
		long flags = sys(SYS_fcntl, fd, F_GETFL), close = sys(SYS_fcntl, fd, F_GETFD);
		if (flags < 0)
			continue; /* closed by a bare system call */
		sys(SYS_dup3, f->fresh, fd, close > 0 && (close & FD_CLOEXEC) ? O_CLOEXEC : 0);
		sys(SYS_fcntl, fd, F_SETFL, flags);
	}
	if (is(f, FILE_CM) && sys(SYS_fstat, f->fresh, &st) == 0)
		atomic_store(&f->inode, st.st_ino);
	sys(SYS_close, f->fresh);
	f->fresh = -1;
}

/* Replaces all files that have a fresh one. Other threads are stopped. */
static void replace_files(void)
{
	work.watches = 0;
	if (find_sets())
		for (size_t i = 0; i < work.sets; i++)
			read_set(work.set[i]);
	for (size_t i = 0; i < work.watches; i++) {
		struct watch *w = &work.watch[i];
		if (file_at(w->fd)->fresh < 0 || sys(SYS_epoll_ctl, w->set, EPOLL_CTL_DEL, w->fd, NULL) < 0)
			w->set = -1; /* the set has another file of this number */
	}
	for (size_t i = 0; i < work.n; i++)
		if (work.file[i]->fresh >= 0)
			replace_file(work.file[i]);
	for (size_t i = 0; i < work.watches; i++) {
		struct watch *w = &work.watch[i];
		struct epoll_event e = {.events = w->events, .data = {.u64 = w->data}};
		if (w->set >= 0)
			sys(SYS_epoll_ctl, w->set, EPOLL_CTL_ADD, w->fd, &e);
	}
}

static void close_fresh(void)
{
	for (size_t i = 0; i < work.n; i++) {
		struct file *f = work.file[i];
		if (f->fresh >= 0)
			sys(SYS_close, f->fresh);
		f->fresh = -1;
	}
}

static void close_peers(void)
{
	for (size_t i = 0; i < work.n; i++) {
		struct file *f = work.file[i];
		if (f->peer >= 0)
			fd_unhide(f->peer);
		f->peer = -1;
	}
}

/* Makes a socket pair for each event file: CRIU dumps what has both ends in the process. */
static bool make_pairs(void)
{
	for (size_t i = 0; i < work.n; i++) {
		struct file *f = work.file[i];
		int pair[2];
		if (is(f, FILE_DEVICE) || f->peer >= 0)
			continue; /* it has one since an attempt to come back that failed */
		if (sys(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
			return false;
		if (!fd_hide(&pair[1])) {
			sys(SYS_close, pair[0]);
			sys(SYS_close, pair[1]);
			return false;
		}
		f->fresh = pair[0];
		f->peer = pair[1];
	}
	return true;
}

/* ---- letting go ---- */

static void hang_up(_Atomic int *socket)
{
	int fd = atomic_exchange(socket, -1);
	if (fd >= 0)
		fd_unhide(fd);
}

/* A mailbox is a page that the daemon has, too. Other threads may look at it: so a page of zeros, which is shut, stays. */
static void end_mail(struct file *f)
{
	size_t n = atomic_load(&f->ahead) ? VRDMA_AHEAD_SIZE : VRDMA_MAIL_SIZE;
	if (!f->mail || f->mail_ended)
		return;
	sys(SYS_mmap, f->mail, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	atomic_store(&f->ahead, NULL); /* its memory stays, for those who look there */
	f->mail_ended = true;
}

static void close_sockets(void)
{
	for (size_t i = 0; i < work.locked; i++) {
		end_mail(work.file[i]);
		hang_up(&work.file[i]->control);
	}
	hang_up(&process.memory);
	hang_up(&process.socket); /* last: the daemon sees that we have let go */
}

static bool let_go(void)
{
	if (make_pairs() && memory_leave(replace_files)) {
		close_sockets();
		return true;
	}
	close_fresh();
	close_peers();
	return false;
}

/* ---- coming back ---- */

static const sigmask none = {~0ull}; /* no signal is taken while we wait */

/* Sends a RETURN request of a device. *fd is the descriptor in the answer; -1: none. Returns 0 or an errno. */
static int ask_for(struct file *f, uint32_t kind, uint32_t id, int *fd)
{
	struct vrdma_return r = {kind, id};
	struct vrdma_request q = {.op = VRDMA_OP_RETURN, .command_len = sizeof r};
	struct message m = {{&q, &r}, {sizeof q, sizeof r}, 2, NULL};
	struct vrdma_reply reply;
	struct passed fds;

	*fd = -1;
	ssize_t n = wire_call(atomic_load(&f->control), none, &m, f->in, &fds);
	if (n < 0)
		return (int)-n;
	memcpy(&reply, f->in, sizeof reply);
	if (reply.error == 0 && fds.n == 1 && kind)
		*fd = fds.fd[0];
	else
		passed_close(&fds);
	return reply.error;
}

static int return_device(struct file *f)
{
	struct coming c = {f->name, number_of(f, 0)};
	struct vrdma_welcome w;
	struct stat st;
	int control, bell, fd;

	int e = wire_return(VRDMA_KIND_UVERBS, &c, none, &w, &control, &bell, 1);
	if (e)
		return e;
	atomic_store(&f->control, control);
	sys(SYS_dup3, bell, atomic_load(&f->bell), O_CLOEXEC);
	sys(SYS_close, bell);
	if (c.fd >= 0 && sys(SYS_fstat, c.fd, &st) == 0)
		atomic_store(&f->inode, st.st_ino);
	for (size_t i = work.locked; i < work.n; i++) {
		struct file *g = work.file[i];
		if (g->name != f->name)
			continue;
		e = ask_for(f, is(g, FILE_ASYNC) ? VRDMA_FD_ASYNC : VRDMA_FD_COMP, g->id, &fd);
		if (e && e != EBADF)
			return e;
		if (e == 0)
			g->fresh = fd;
	}
	return ask_for(f, 0, 0, &fd);
}

static int return_channel(struct file *f)
{
	struct coming c = {f->id, -1};
	struct vrdma_welcome w;
	int control, fd;

	int e = wire_return(VRDMA_KIND_RDMACM, &c, none, &w, &control, &fd, 1);
	if (e)
		return e;
	atomic_store(&f->control, control);
	f->fresh = fd;
	return 0;
}

/* Opens the PROCESS connection again, with a memfd. Returns 0, or an errno: the caller tries again. */
static int return_process(void)
{
	struct coming c = {0, -1};
	struct vrdma_welcome w;
	struct stat st;
	int socket, memory;

	int e = wire_return(VRDMA_KIND_PROCESS, &c, none, &w, &socket, &memory, 1);
	if (e)
		return e;
	if (memcmp(w.token, process.token, sizeof process.token) || sys(SYS_fstat, memory, &st) < 0 || !fd_hide(&memory)) {
		sys(SYS_close, memory);
		fd_unhide(socket);
		return EAGAIN;
	}
	process.device = st.st_dev;
	process.inode = st.st_ino;
	atomic_store(&process.maps, w.id);
	atomic_store(&process.memory, memory);
	atomic_store(&process.socket, socket);
	return 0;
}

/* Returns memory, devices and channels to the daemon. Returns 0 or an errno. */
static int return_rest(void)
{
	int e = memory_return() ? 0 : ENOMEM;
	for (size_t i = 0; !e && i < work.locked; i++)
		e = is(work.file[i], FILE_DEVICE) ? return_device(work.file[i]) : return_channel(work.file[i]);
	if (!e && !memory_alone(replace_files))
		e = EBUSY;
	if (!e) {
		close_peers();
		e = wire_ask(VRDMA_OP_RETURN, none);
	}
	return e;
}

/*
 * Does the daemon at the socket expect programs? Until it does, this thread connects to nothing: CRIU could not dump the
 * connection.
 */
static bool expected(void)
{
	char path[1024 + 32];
	size_t n = strlen(settings()->socket);
	memcpy(path, settings()->socket, n);
	memcpy(path + n, VRDMA_ARRIVING, sizeof VRDMA_ARRIVING);
	return sys(SYS_faccessat, AT_FDCWD, path, 0) == 0;
}

static void give_up(void)
{
	complain("the RDMA device is lost: its NIC has left this host, and no daemon has it now");
	for (size_t i = 0; i < work.n; i++)
		atomic_store(&work.file[i]->dead, true);
	close_peers(); /* those who read event files see their end */
	memset(process.token, 0, sizeof process.token);
}

static void come_back(void)
{
	uint64_t wait = WAIT_FIRST;
	for (uint64_t waited = 0; waited < WAIT_ALL; waited += wait) {
		int e = expected() ? return_process() : EAGAIN;
		if (e == 0) {
			e = return_rest();
			if (e == 0)
				return;
			close_fresh();
			if (!let_go()) { /* memory stays that of a memfd that no daemon has */
				close_sockets();
				break;
			}
		}
		clock_sleep(wait);
		wait = 2 * wait < WAIT_MOST ? 2 * wait : WAIT_MOST;
	}
	give_up();
}

/* ---- the signal ---- */

/* musl has none of these. The library is loaded there, too, to say that it does not work (messages.c). */
#pragma weak getcontext
#pragma weak makecontext
#pragma weak swapcontext

/* Under under_way. */
static ucontext_t here, elsewhere;

static void leave_elsewhere(void)
{
	if (!take())
		return;
	if (wire_ask(VRDMA_OP_LEAVE, none) == 0) {
		if (let_go())
			come_back();
		else
			wire_ask(VRDMA_OP_STAY, none);
	}
	give();
}

/*
 * The work has a stack of its own: memory of the thread's stack may be registered, and no thread can replace the pages that it
 * runs on.
 */
static void leave(void)
{
	static unsigned char stack[256 << 10] __attribute__((aligned(16)));
	if (other_process() || atomic_load(&process.socket) < 0 || atomic_exchange(&under_way, true))
		return;
	if (getcontext && getcontext(&elsewhere) == 0) {
		elsewhere.uc_stack.ss_sp = stack;
		elsewhere.uc_stack.ss_size = sizeof stack;
		elsewhere.uc_link = &here;
		makecontext(&elsewhere, leave_elsewhere, 0);
		swapcontext(&here, &elsewhere);
	}
	atomic_store(&under_way, false);
}

/*
 * The signal has interrupted a system call that the kernel does not begin anew (poll, epoll_wait): it returns EINTR.
 * calls.c repeats it, because many programs do not expect that.
 */
static __thread bool interrupted __attribute__((tls_model("initial-exec")));

bool leave_interrupted(void)
{
	bool was = interrupted;
	interrupted = false;
	return was;
}

static bool returns_eintr(const ucontext_t *c)
{
#if defined(__x86_64__)
	return c->uc_mcontext.gregs[REG_RAX] == -EINTR;
#elif defined(__aarch64__)
	return (int64_t)c->uc_mcontext.regs[0] == -EINTR;
#endif
}

static void asked(int signal, siginfo_t *info, void *context)
{
	int e = errno;
	(void)signal;
	(void)info;
	if (returns_eintr(context))
		interrupted = true;
	leave();
	errno = e;
}

bool leave_ready(void)
{
	struct sigaction now, ours = {.sa_sigaction = asked, .sa_flags = SA_RESTART | SA_SIGINFO};
	int is = atomic_load(&installed);
	if (is)
		return is > 0;
	sigfillset(&ours.sa_mask);
	is = sigaction(VRDMA_LEAVE_SIGNAL, NULL, &now) == 0 && now.sa_handler == SIG_DFL &&
	     sigaction(VRDMA_LEAVE_SIGNAL, &ours, NULL) == 0 ? 1 : -1;
	atomic_store(&installed, is);
	return is > 0;
}
