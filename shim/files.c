/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files we answer for. One table says, for every descriptor number, which
 * struct file it refers to; calls look there first, without a lock. Slots change
 * by atomic exchange only:
 *
 *   open, dup     the slot is filled after the kernel gave the number
 *   close, dup2   the slot is emptied before the kernel frees the number
 *
 * so a slot never names a descriptor that the kernel already gave to someone
 * else. Hidden descriptors (control sockets, doorbells, the memfd) sit high and have
 * a slot too, which is how close-all loops pass over them.
 */
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "anonymous.h"
#include "vrdma.h"

#define HIGH 4096l /* hidden descriptors stay below */
#define ARMS (VRDMA_SHARED_SIZE - VRDMA_ARM_WORDS)

_Atomic(struct file *) file_table[FILE_TABLE];
static _Atomic unsigned top;
static struct file hidden = {.refs = 1, .kind = FILE_HIDDEN};

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
_Atomic(struct file *) file_pool;
#define pool file_pool
static _Atomic int owner;           /* the process the table describes */

bool other_process(void)
{
	int pid = (int)sys(SYS_getpid), mine = atomic_load(&owner);
	if (likely(pid == mine))
		return false;
	/* Before our constructor has run, no process owns the table. */
	return mine != 0 || !atomic_compare_exchange_strong(&owner, &mine, pid);
}

unsigned file_top(void)
{
	return atomic_load(&top);
}

/* ---- struct file: allocation and references ---- */

static bool file_map(struct file *f)
{
	size_t size = VRDMA_DB_SIZE + 2 * VRDMA_MAX_MESSAGE;
	long r = sys(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (r < 0 && r > -4096)
		return false;
	f->page = (unsigned char *)r;
	f->out = f->page + VRDMA_DB_SIZE;
	f->in = f->out + VRDMA_MAX_MESSAGE;
	return true;
}

/* Files that commands are written to need buffers. */
static bool talks(enum file_kind kind)
{
	return kind == FILE_DEVICE || kind == FILE_CM;
}

static struct file *pool_take(enum file_kind kind)
{
	struct file *f;
	for (f = atomic_load(&pool); f; f = f->next)
		if (atomic_load(&f->kind) == FILE_FREE && (f->page || !talks(kind)))
			return f;
	long r = sys(SYS_mmap, NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (r < 0 && r > -4096)
		return NULL;
	f = (struct file *)r;
	for (size_t i = 0; i < PAGE / sizeof *f; i++) {
		pthread_mutex_init(&f[i].lock, NULL);
		f[i].next = atomic_load(&pool);
		atomic_store(&pool, &f[i]);
	}
	return atomic_load(&pool);
}

struct file *file_new(enum file_kind kind)
{
	static uint64_t opened; /* guarded by pool_lock */
	sigmask old = signals_block();
	pthread_mutex_lock(&pool_lock);
	struct file *f = pool_take(kind);
	if (f && talks(kind) && !f->page && !file_map(f))
		f = NULL;
	if (f) {
		atomic_store(&f->dead, false);
		atomic_store(&f->fatal_told, false);
		atomic_store(&f->control, -1);
		atomic_store(&f->bell, -1);
		f->fresh = f->peer = -1;
		f->mail_ended = false;
		f->opened = ++opened;
		atomic_store(&f->kind, (int)kind);
		atomic_store(&f->refs, 1);
	}
	pthread_mutex_unlock(&pool_lock);
	signals_restore(old);
	return f;
}

static bool reference(struct file *f)
{
	int n = atomic_load(&f->refs);
	while (n > 0)
		if (atomic_compare_exchange_weak(&f->refs, &n, n + 1))
			return true;
	return false;
}

struct file *file_get(int fd)
{
	struct file *f = file_at(fd);
	if (!f || f == &hidden || !reference(f))
		return NULL;
	if (file_at(fd) == f)
		return f;
	file_put(f);
	return NULL;
}

/*
 * Threads of a program share a connection, and a command takes a few microseconds. A thread that
 * has to wait polls a few times first, because sleeping and waking takes longer for both.
 */
void file_lock(struct file *f)
{
	for (int i = 0; i < GLANCES + LOOKS && atomic_load_explicit(&f->busy, memory_order_relaxed); i++)
		look_away(i);
	pthread_mutex_lock(&f->lock);
	atomic_store_explicit(&f->busy, true, memory_order_relaxed);
}

void file_unlock(struct file *f)
{
	atomic_store_explicit(&f->busy, false, memory_order_relaxed);
	pthread_mutex_unlock(&f->lock);
}

/*
 * The application closed a device with regions. The daemon hangs up when it has let go of
 * them; should it not, they stay as they are.
 */
static void give_up_regions(struct file *f)
{
	struct pollfd p = {.fd = atomic_load(&f->control)};
	struct timespec patience = {.tv_sec = 5};
	if (p.fd < 0 || !memory_regions(f))
		return;
	sigmask old = signals_block();
	sys(SYS_shutdown, p.fd, SHUT_WR);
	long r = sys(SYS_ppoll, &p, 1, &patience, NULL, 8);
	signals_restore(old);
	if (r == 1)
		memory_closed(f);
}

void file_put(struct file *f)
{
	if (atomic_fetch_sub(&f->refs, 1) != 1)
		return;
	if (atomic_load(&f->kind) == FILE_DEVICE)
		give_up_regions(f);
	int control = atomic_exchange(&f->control, -1), bell = atomic_exchange(&f->bell, -1);
	if (control >= 0)
		fd_unhide(control);
	if (bell >= 0)
		fd_unhide(bell);
	if (f->peer >= 0)
		fd_unhide(f->peer);
	if (atomic_load(&f->kind) == FILE_DEVICE) {
		sys(SYS_mmap, f->page, VRDMA_DB_SIZE, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		if (f->arms)
			sys(SYS_mmap, f->arms, ARMS, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		uint64_t viewed = atomic_exchange(&f->viewed, 0);
		for (unsigned i = 0; i < ARENA_VIEWS; i++)
			if (viewed >> i & 1)
				sys(SYS_mmap, atomic_load(&f->view[i]), ARENA_VIEW, PROT_READ,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	}
	if (f->mail)
		sys(SYS_munmap, f->mail, atomic_load(&f->ahead) ? VRDMA_AHEAD_SIZE : VRDMA_MAIL_SIZE);
	f->mail = NULL;
	ahead_forget(f);
	atomic_store(&f->kind, FILE_FREE);
}

/* ---- the table ---- */

static bool slot_set(int fd, struct file *f)
{
	if ((unsigned)fd >= FILE_TABLE)
		return false;
	unsigned t = atomic_load(&top);
	while ((unsigned)fd > t && !atomic_compare_exchange_weak(&top, &t, (unsigned)fd))
		;
	struct file *stale = atomic_exchange(&file_table[fd], f);
	if (stale && stale != &hidden)
		file_put(stale); /* closed behind our back: by a bare system call */
	return true;
}

bool file_install(struct file *f, int fd)
{
	return slot_set(fd, f);
}

struct file *file_remove(int fd)
{
	return atomic_exchange(&file_table[fd], NULL);
}

/* ---- hidden descriptors ---- */

/*
 * As high as the limit allows, but not higher than HIGH: the kernel's table is as long
 * as the highest number, for every process and every fork.
 */
static long dup_high(int fd)
{
	struct rlimit limit = {.rlim_cur = 1024};
	long r = -EMFILE;
	sys(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &limit);
	long end = limit.rlim_cur < HIGH ? (long)limit.rlim_cur : HIGH;
	for (long room = 64; r < 0 && room < 2 * end; room *= 4)
		r = sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, end > room ? end - room : 3);
	if (r >= (long)FILE_TABLE) {
		sys(SYS_close, r);
		r = -EMFILE;
	}
	return r;
}

bool fd_hide(int *fd)
{
	long high = dup_high(*fd);
	if (high < 0)
		return false;
	slot_set((int)high, &hidden);
	sys(SYS_close, *fd);
	*fd = (int)high;
	return true;
}

void fd_unhide(int fd)
{
	file_remove(fd);
	sys(SYS_close, fd);
}

/* The variable that holds this hidden descriptor. */
static _Atomic int *holder(int fd)
{
	if (atomic_load(&process.socket) == fd)
		return &process.socket;
	if (atomic_load(&process.memory) == fd)
		return &process.memory;
	for (struct file *f = atomic_load(&pool); f; f = f->next) {
		if (atomic_load(&f->control) == fd)
			return &f->control;
		if (atomic_load(&f->bell) == fd)
			return &f->bell;
	}
	return anonymous_holder(fd);
}

bool fd_vacate(int fd)
{
	_Atomic int *h = holder(fd);
	long moved = h ? dup_high(fd) : -EBADF;
	if (moved < 0)
		return false;
	slot_set((int)moved, &hidden);
	atomic_store(h, (int)moved);
	file_remove(fd);
	return true;
}

void files_child(void)
{
	atomic_store(&owner, (int)sys(SYS_getpid));
	pthread_mutex_init(&pool_lock, NULL);
	for (struct file *f = atomic_load(&pool); f; f = f->next) {
		pthread_mutex_init(&f->lock, NULL);
		atomic_store(&f->busy, false);
		atomic_store(&f->dead, true);
		atomic_store(&f->control, -1);
		atomic_store(&f->bell, -1);
	}
	for (unsigned fd = 0; fd <= atomic_load(&top); fd++)
		if (atomic_load(&file_table[fd]) == &hidden && !anonymous_holder((int)fd))
			fd_unhide((int)fd);
}

/* ---- opening the device ---- */

int device_open(int flags)
{
	struct vrdma_welcome w;
	struct stat st;
	int control, fds[2], e;

	if (other_process())
		return errno = ENODEV, -1;
	leave_opening();
	if ((e = wire_process(false)) || (e = wire_open(VRDMA_KIND_UVERBS, &w, &control, fds, 2))) {
		leave_opened();
		return errno = e, -1;
	}
	struct file *f = file_new(FILE_DEVICE);
	if (f)
		atomic_store(&f->control, control); /* file_put closes it */
	if (!f || !fd_hide(&fds[1])) {
		e = f ? EMFILE : ENOMEM;
		sys(SYS_close, fds[1]);
		goto fail;
	}
	atomic_store(&f->bell, fds[1]);
	f->rdev_major = w.rdev_major;
	f->rdev_minor = w.rdev_minor;
	f->name = w.id;
	f->inode = sys(SYS_fstat, fds[0], &st) == 0 ? st.st_ino : 0;
	long r = sys(SYS_mmap, f->page, VRDMA_DB_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		     fds[0], 0);
	if (r >= 0 || r < -4095)
		r = sys(SYS_mmap, f->arms, ARMS, PROT_READ | PROT_WRITE, f->arms ? MAP_SHARED | MAP_FIXED : MAP_SHARED,
			fds[0], VRDMA_ARM_WORDS);
	if (r < 0 && r > -4096) {
		e = (int)-r;
		goto fail;
	}
	f->arms = (unsigned char *)r;
	if (!file_install(f, fds[0])) {
		e = EMFILE;
		goto fail;
	}
	if (!(flags & O_CLOEXEC))
		sys(SYS_fcntl, fds[0], F_SETFD, 0);
	leave_opened();
	return fds[0];
fail:
	leave_opened();
	sys(SYS_close, fds[0]);
	if (f)
		file_put(f);
	else
		fd_unhide(control);
	return errno = e, -1;
}

bool device_alive(struct file *f)
{
	struct pollfd p = {.fd = atomic_load(&f->control), .events = 0};
	struct timespec now = {0};
	if (atomic_load(&f->dead))
		return false;
	if (sys(SYS_ppoll, &p, 1, &now, NULL, 8) == 1 && (p.revents & (POLLHUP | POLLERR)))
		atomic_store(&f->dead, true);
	return !atomic_load(&f->dead);
}
