/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rdma_cm device: one write() is one command, forwarded as it is. The
 * application's descriptor is a socket that can be read while events are pending, so
 * poll and epoll need no help. Some commands are looked at on the way:
 *
 *   GET_EVENT   waits, unless the descriptor is non-blocking
 *   QUERY_ROUTE, INIT_QP_ATTR  may have been answered ahead (ahead.c)
 *   SET_OPTION  points to memory, which goes along
 *   MIGRATE_ID  names another descriptor of ours
 */
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "vrdma.h"

/* <rdma/rdma_user_cm.h>: numbers, and byte offsets with the 8 byte header. */
enum {
	CM_GET_EVENT = 12,
	CM_SET_OPTION = 14,
	CM_MIGRATE_ID = 18,
	GET_EVENT_SIZE = 8,
	GET_EVENT_ROOM = 336, /* sizeof(struct rdma_ucm_event_resp) */
	SET_OPTION_VALUE = 8,
	SET_OPTION_LENGTH = 28,
	SET_OPTION_SIZE = 32,
	MIGRATE_FD = 20,
	MIGRATE_SIZE = 24,
};
#define COMMAND_MAX 1024u
#define OPTION_MAX 4096u

int channel_open(int flags)
{
	struct vrdma_welcome w;
	struct stat st;
	int control, fd, e;

	if (other_process())
		return errno = ENODEV, -1;
	leave_opening();
	if ((e = wire_process(false)) || (e = wire_open(VRDMA_KIND_RDMACM, &w, &control, &fd, 1))) {
		leave_opened();
		return errno = e, -1;
	}
	struct file *f = file_new(FILE_CM);
	if (!f) {
		e = ENOMEM;
		fd_unhide(control);
		goto fail;
	}
	atomic_store(&f->control, control);
	f->id = w.id;
	f->rdev_major = w.rdev_major;
	f->rdev_minor = w.rdev_minor;
	f->inode = sys(SYS_fstat, fd, &st) == 0 ? st.st_ino : 0;
	if (!file_install(f, fd)) {
		e = EMFILE;
		file_put(f);
		goto fail;
	}
	if (!(flags & O_CLOEXEC))
		sys(SYS_fcntl, fd, F_SETFD, 0);
	if (flags & O_NONBLOCK)
		sys(SYS_fcntl, fd, F_SETFL, O_RDWR | O_NONBLOCK);
	leave_opened();
	return fd;
fail:
	leave_opened();
	sys(SYS_close, fd);
	return errno = e, -1;
}

/* The daemon's name for another channel. */
static uint32_t channel_name(uint32_t fd)
{
	struct file *f = file_get((int)fd);
	uint32_t id = ~0u;
	if (!f)
		return id;
	if (atomic_load(&f->kind) == FILE_CM && !atomic_load(&f->dead))
		id = f->id;
	file_put(f);
	return id;
}

/* One command. 0 or an errno. */
static int command(struct file *f, const unsigned char *buf, size_t n)
{
	struct vrdma_request q = {.op = VRDMA_OP_COMMAND, .command_len = (uint32_t)n};
	struct message m = {{&q, buf, NULL}, {sizeof q, n, 0}, 2, NULL};
	unsigned char patched[COMMAND_MAX];
	uint32_t number, value;
	struct passed fds;
	int e = EIO;

	memcpy(&number, buf, sizeof number);
	if (number == CM_MIGRATE_ID && n >= MIGRATE_SIZE) {
		memcpy(patched, buf, n);
		memcpy(&value, buf + MIGRATE_FD, sizeof value);
		value = channel_name(value);
		memcpy(patched + MIGRATE_FD, &value, sizeof value);
		m.part[1] = patched;
	} else if (number == CM_SET_OPTION && n >= SET_OPTION_SIZE) {
		uint64_t at;
		memcpy(&at, buf + SET_OPTION_VALUE, sizeof at);
		memcpy(&value, buf + SET_OPTION_LENGTH, sizeof value);
		if (value > OPTION_MAX)
			return EINVAL;
		m.part[2] = (const void *)(uintptr_t)at;
		m.length[2] = value;
		m.nparts = 3; /* from anywhere: only the kernel can tell whether it is there */
		q.command_len += value;
	}
	sigmask old = signals_block();
	file_lock(f);
	if (!atomic_load(&f->dead)) {
		m.mail = m.nparts < 3 ? f->mail : NULL;
		ssize_t got = wire_call(atomic_load(&f->control), old, &m, f->in, &fds);
		if (got == -EIO)
			atomic_store(&f->dead, true);
		e = got < 0 ? (int)-got : device_apply(f, (size_t)got, &fds);
	}
	file_unlock(f);
	signals_restore(old);
	return e;
}

/* Returns the channel behind fd, with a reference. Unless opened is 0, it must be the channel with this number of opening. */
static struct file *channel_get(int fd, uint64_t opened)
{
	struct file *f = file_get(fd);
	if (!f)
		return NULL;
	if (atomic_load(&f->kind) == FILE_CM && (!opened || f->opened == opened))
		return f;
	file_put(f);
	return NULL;
}

/*
 * Waits until events are pending. It looks at the socket without taking anything,
 * so a non-blocking descriptor, signals and cancellation have their usual effect.
 * Nothing is held meanwhile that a cancelled thread could keep.
 */
static int await_event(int fd, uint64_t opened)
{
	char byte;
	ssize_t r = REAL(recv)(fd, &byte, 1, MSG_PEEK);
	int e = r > 0 ? 0 : r < 0 ? errno : EIO; /* at its end the daemon is gone, */
	struct file *f = channel_get(fd, opened);
	if (f) {
		file_put(f);
		return e;
	}
	/* or another thread has closed the channel: a thread that waits there waits for ever. */
	REAL(pause)();
	return EINTR;
}

/*
 * Delays repeated commands after the daemon has ended. poll then always reports an event, and
 * librdmacm's thread would ask for it in a busy loop.
 */
static void slow_down(int fd, uint64_t opened)
{
	static const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
	struct file *f = channel_get(fd, opened);
	if (!f)
		return;
	bool again = atomic_exchange(&f->fatal_told, true);
	file_put(f);
	if (again)
		sys(SYS_nanosleep, &pause, NULL);
}

/* A slot can be stale if the descriptor was closed by a bare system call. */
static bool is_channel(struct file *f, int fd)
{
	struct stat st;
	uint64_t was;
	do { /* another socket may take the place of the first one meanwhile */
		was = atomic_load(&f->inode);
		if (sys(SYS_fstat, fd, &st) == 0 && st.st_ino == was)
			return true;
	} while (was != atomic_load(&f->inode));
	return false;
}

/*
 * Whether a GET_EVENT is well-formed, so that it can only wait or succeed: then there is no
 * use in asking for an event before there is one.
 */
static bool will_wait(const void *buf, size_t n)
{
	struct {
		uint32_t command;
		uint16_t in, out;
	} h;
	memcpy(&h, buf, sizeof h);
	return h.command == CM_GET_EVENT && h.in == GET_EVENT_SIZE && n == sizeof h + h.in &&
	       h.out >= GET_EVENT_ROOM;
}

/* A GET_EVENT that will_wait, of an event that is laid out for us. */
static bool take_event(struct file *f, const void *buf)
{
	uint64_t response;
	uint16_t room;
	memcpy(&room, (const char *)buf + 6, sizeof room);
	memcpy(&response, (const char *)buf + 8, sizeof response);
	return ahead_take(f, (void *)(uintptr_t)response, room);
}

ssize_t channel_write(int fd, const void *buf, size_t n)
{
	uint32_t number;
	uint64_t opened = 0;
	int e;

	if (n < 8 || n > COMMAND_MAX)
		return errno = EINVAL, -1;
	if (other_process())
		return errno = EIO, -1;
	memcpy(&number, buf, sizeof number);
	bool wait = will_wait(buf, n);
	do {
		struct file *f = channel_get(fd, opened);
		if (!f)
			return errno = EBADF, -1;
		opened = f->opened;
		if (!is_channel(f, fd)) {
			file_put(f);
			return errno = EBADF, -1;
		}
		if (wait && take_event(f, buf))
			e = 0;
		else if (wait && !ahead_events(f))
			e = EAGAIN;
		else
			e = ahead_answer(f, buf, n) ? 0 : command(f, buf, n);
		wait = false;
		file_put(f);
	} while (e == EAGAIN && number == CM_GET_EVENT && (e = await_event(fd, opened)) == 0);
	if (e == EIO && number == CM_GET_EVENT)
		slow_down(fd, opened);
	return e ? (errno = e, -1) : (ssize_t)n;
}
