/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One write() of the application is one command of the kernel's uverbs ABI. The
 * doorbell and the arming of a completion queue are handled here. A command that the
 * daemon is sure to accept is left in its mailbox. All others are forwarded unchanged,
 * except for three things: the descriptor in CREATE_CQ, the memory in REG_MR and
 * DEREG_MR, and the stores of the reply.
 */
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "shared.h"
#include "vrdma.h"

/* enum ib_uverbs_write_cmds, <rdma/ib_user_verbs.h> */
enum {
	CMD_REG_MR = 9,
	CMD_DEREG_MR = 13,
	CMD_CREATE_CQ = 18,
	CMD_REQ_NOTIFY_CQ = 23,
	CMD_POST_SEND = 28,
	CMD_EXTENDED = 0x80000000u,
	CMD_NUMBER = 0xff,
};
/* Byte offsets in a command, its 8 byte header included (extended: 24 bytes). */
enum {
	RESPONSE = 8, /* of REG_MR: where its answer goes, which begins with the handle */
	REG_MR_START = 16,
	REG_MR_LENGTH = 24,
	REG_MR_SIZE = 48,
	DEREG_MR_HANDLE = 8,
	DEREG_MR_SIZE = 12,
	CREATE_CQ_HANDLE = 16, /* user_handle: libibverbs' struct ibv_cq */
	CREATE_CQ_CHANNEL = 32,
	EX_CREATE_CQ_HANDLE = 24,
	EX_CREATE_CQ_CHANNEL = 40,
	NOTIFY_CQ = 8,
	NOTIFY_SOLICITED = 12,
	NOTIFY_SIZE = 16,
	POST_SEND_QP = 16,
	POST_SEND_COUNT = 20,
	POST_SEND_SIZE = 24,
};
/* struct rxe_queue_buf */
enum { RING_MASK = 4, RING_PRODUCER = 128, RING_CONSUMER = 256 };
#define BAD_CHANNEL 0x7fffffff
#define COMMAND_MAX 16384u /* in_words is 16 bits, but no command comes near */
#define EXTENTS_MAX 1900u  /* so that request, extents and command fit one message */
#define EVENT_DEVICE_FATAL 8
#define ASK_FROM (1ull << 30) /* bytes; below, a registration takes no longer than may be */

static uint32_t word(const void *command, size_t at)
{
	uint32_t v;
	memcpy(&v, (const char *)command + at, sizeof v);
	return v;
}

static uint64_t longword(const void *command, size_t at)
{
	uint64_t v;
	memcpy(&v, (const char *)command + at, sizeof v);
	return v;
}

/* ---- doorbell ---- */

/* Whether a doorbell is enough for a post: the daemon has no error to return. */
static bool ready(struct file *f, uint32_t qp)
{
	_Atomic uint64_t *bits = (_Atomic uint64_t *)(f->page + VRDMA_DB_READY);
	uint32_t bit = qp % VRDMA_DB_BITS;
	return atomic_load_explicit(&bits[bit / 64], memory_order_relaxed) >> (bit % 64) & 1;
}

/*
 * The releases keep the work request, which the provider has written, before its bit, the bit before the summary, and
 * the summary before any. any and armed are seq_cst on both sides (on arm64 STLR and LDAR, which keep their order):
 * either this thread sees armed, or the daemon, which has stored armed, sees any.
 */
static void ring(struct file *f, uint32_t qp)
{
	_Atomic uint32_t *armed = (_Atomic uint32_t *)(f->page + VRDMA_DB_ARMED);
	_Atomic uint32_t *any = (_Atomic uint32_t *)(f->page + VRDMA_DB_ANY);
	_Atomic uint64_t *summary = (_Atomic uint64_t *)(f->page + VRDMA_DB_SUMMARY);
	_Atomic uint64_t *bitmap = (_Atomic uint64_t *)(f->page + VRDMA_DB_BITMAP);
	uint32_t bit = qp % VRDMA_DB_BITS;

	atomic_fetch_or_explicit(&bitmap[bit / 64], 1ull << (bit % 64), memory_order_release);
	atomic_fetch_or_explicit(&summary[bit / 4096], 1ull << (bit / 64 % 64), memory_order_release);
	atomic_store_explicit(any, 1, memory_order_seq_cst);
	if (atomic_load_explicit(armed, memory_order_seq_cst) && atomic_exchange(armed, 0)) {
		uint64_t one = 1;
		sys(SYS_write, atomic_load(&f->bell), &one, sizeof one);
	}
}

/* A slot can be stale if the descriptor was closed by a bare system call. */
static bool is_arena(struct file *f, int fd)
{
	struct stat st;
	uint64_t was;
	do { /* it may be restored as another file meanwhile, see leave.c */
		was = atomic_load(&f->inode);
		if (sys(SYS_fstat, fd, &st) == 0 && st.st_ino == was)
			return true;
	} while (was != atomic_load(&f->inode));
	return false;
}

/* Makes a window of the arena visible, or fails; the arming thread then makes commands instead. */
static void view(struct file *f, int fd, uint32_t n)
{
	struct file *held = file_get(fd);
	if (held != f) {
		if (held)
			file_put(held);
		return;
	}
	sigmask old = signals_block();
	file_lock(f);
	unsigned char *at = atomic_load(&f->view[n]);
	if (!(atomic_load(&f->viewed) >> n & 1) && is_arena(f, fd)) {
		long r = sys(SYS_mmap, at, ARENA_VIEW, PROT_READ, at ? MAP_SHARED | MAP_FIXED : MAP_SHARED, fd,
			     n * ARENA_VIEW);
		if (r > 0 || r < -4095) {
			sys(SYS_madvise, r, ARENA_VIEW, MADV_DONTDUMP);
			atomic_store(&f->view[n], (unsigned char *)r);
			atomic_fetch_or(&f->viewed, 1ull << n);
		}
	}
	file_unlock(f);
	signals_restore(old);
	file_put(f);
}

static uint32_t in_ring(const unsigned char *ring, size_t at)
{
	return atomic_load_explicit((_Atomic uint32_t *)(ring + at), memory_order_acquire);
}

/*
 * Whether an armed queue holds completions that the program has not polled and that no event
 * announced: see protocol.h. If the ring moves meanwhile, the daemon answers that.
 */
static bool unannounced(struct file *f, int fd, unsigned char *line, bool solicited_only)
{
	uint32_t page = in_ring(line, VRDMA_ARM_RING);
	uint32_t n = (uint32_t)(page / (ARENA_VIEW / 4096));
	if (page == 0)
		return false;
	if (n >= ARENA_VIEWS)
		return true;
	if (unlikely(!(atomic_load_explicit(&f->viewed, memory_order_acquire) >> n & 1))) {
		view(f, fd, n);
		if (!(atomic_load(&f->viewed) >> n & 1))
			return true;
	}
	const unsigned char *ring = atomic_load(&f->view[n]) + page % (ARENA_VIEW / 4096) * 4096;
	uint32_t producer = in_ring(ring, RING_PRODUCER), consumer = in_ring(ring, RING_CONSUMER);
	uint32_t mask = in_ring(ring, RING_MASK);
	uint32_t woken = in_ring(line, VRDMA_ARM_WOKEN), urgent = in_ring(line, VRDMA_ARM_URGENT);
	if (in_ring(line, VRDMA_ARM_RING) != page)
		return true;
	if (producer == consumer || consumer == woken)
		return false;
	return !solicited_only || (urgent != VRDMA_ARM_NONE &&
				   ((urgent - consumer - 1) & mask) < ((producer - consumer) & mask));
}

/*
 * Arms a completion queue in the arena; false: the daemon wants the command. *look: the queue is
 * armed, and the daemon has to look at it. protocol.h has the rules. The fence keeps the look, and the
 * application's next poll, behind the bit: on arm64 a load can pass the store of the read-modify-write before it.
 * The loads of READY and by_command are only hints, so they need no order: the fetch_or reads READY again.
 */
static bool arm(struct file *f, int fd, uint32_t cq, bool solicited_only, bool *look)
{
	_Atomic uint32_t *by_command = (_Atomic uint32_t *)(f->page + VRDMA_ARM_BY_COMMAND);
	if (cq >= VRDMA_ARM_CQS || atomic_load_explicit(by_command, memory_order_relaxed))
		return false;
	unsigned char *line = f->arms + (size_t)cq * VRDMA_ARM_STRIDE;
	_Atomic uint32_t *word = (_Atomic uint32_t *)line;
	if (!(atomic_load_explicit(word, memory_order_relaxed) & VRDMA_ARM_READY))
		return false;
	uint32_t was = atomic_fetch_or(word, solicited_only ? VRDMA_ARM_SOLICITED : VRDMA_ARM_ALL);
	atomic_thread_fence(memory_order_seq_cst);
	if (!(was & VRDMA_ARM_READY))
		return false; /* it was destroyed meanwhile: the daemon says so */
	/* Another thread may have armed it for all, and been misled by a consumer index that this thread
	 * had changed but not yet made visible. So this thread looks for both. */
	*look = unannounced(f, fd, line, solicited_only && !(was & VRDMA_ARM_ALL));
	return true;
}

/* Whether the daemon is sure to accept a command, and has nothing to say to it: see protocol.h. */
static bool sure(struct file *f, const unsigned char *command, size_t n)
{
	const unsigned char *value = f->page + VRDMA_SURE_VALUE, *mask = f->page + VRDMA_SURE_MASK;
	_Atomic uint32_t *by_command = (_Atomic uint32_t *)(f->page + VRDMA_ARM_BY_COMMAND);
	_Atomic uint64_t *bits = (_Atomic uint64_t *)(f->page + VRDMA_SURE_BITS);
	uint32_t at = word(f->page, VRDMA_SURE_HANDLE_AT);

	if (n != word(f->page, VRDMA_SURE_LENGTH) || n > VRDMA_SURE_MAX || at > n - 4 ||
	    atomic_load_explicit(by_command, memory_order_relaxed))
		return false;
	for (size_t i = 0; i < n; i++)
		if ((command[i] & mask[i]) != value[i])
			return false;
	uint32_t handle = word(command, at);
	return handle < VRDMA_SURE_HANDLES &&
	       (atomic_load_explicit(&bits[handle / 64], memory_order_relaxed) >> (handle % 64) & 1);
}

/* ---- commands ---- */

/* The daemon knows completion channels by its own names, not by our numbers. */
static int32_t channel_id(int32_t fd)
{
	if (fd == -1)
		return -1;
	struct file *f = file_get(fd);
	if (!f)
		return BAD_CHANNEL;
	int32_t id = atomic_load(&f->kind) == FILE_COMP && !atomic_load(&f->dead) ? (int32_t)f->id
										  : BAD_CHANNEL;
	file_put(f);
	return id;
}

/* Where a command names a completion channel; 0: it does not. */
static size_t channel_at(uint32_t command, size_t n)
{
	size_t at = 0;
	if ((command & CMD_NUMBER) == CMD_CREATE_CQ)
		at = command & CMD_EXTENDED ? EX_CREATE_CQ_CHANNEL : CREATE_CQ_CHANNEL;
	return at && at + 4 <= n ? at : 0;
}

struct reader {
	const unsigned char *at, *end;
};

static const void *take(struct reader *r, size_t n)
{
	const void *p = r->at;
	if ((size_t)(r->end - r->at) < n)
		return NULL;
	r->at += n;
	return p;
}

static int store_all(struct reader *r, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct vrdma_store s;
		const void *p = take(r, sizeof s);
		if (!p)
			return EIO;
		memcpy(&s, p, sizeof s);
		const void *bytes = take(r, ((size_t)s.length + 7) & ~7ul);
		if (!bytes)
			return EIO;
		memcpy((void *)(uintptr_t)s.address, bytes, s.length);
	}
	return 0;
}

/* The daemon has a mailbox for us. Without one, everything goes on as before. */
static void install_mail(struct file *f, const struct vrdma_fd *d, int fd)
{
	bool none = !f->mail || f->mail_ended;
	if (none && d->id == VRDMA_MAIL_AHEAD && atomic_load(&f->kind) == FILE_CM &&
	    ahead_install(f, fd)) {
		f->mail_ended = false;
		sys(SYS_close, fd);
		return;
	}
	long r = sys(SYS_mmap, NULL, VRDMA_MAIL_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (none && (r >= 0 || r < -4095)) {
		f->mail = (unsigned char *)r; /* its first page will do */
		f->mail_ended = false;
	}
	sys(SYS_close, fd);
}

static int install_all(struct file *owner, struct reader *r, uint32_t count, struct passed *fds)
{
	int used = 0, e = 0;
	bool lacking = fds->truncated || (int)count > fds->n;
	for (uint32_t i = 0; !e && i < count; i++) {
		struct vrdma_fd d;
		const void *p = take(r, sizeof d);
		struct file *f = NULL;
		if (!p) {
			e = EIO;
			break;
		}
		memcpy(&d, p, sizeof d);
		if (d.kind == VRDMA_FD_MAIL) {
			if (!lacking)
				install_mail(owner, &d, fds->fd[used++]);
			continue; /* nobody asked for it: the command has not failed */
		}
		if (lacking) {
			complain("too few file descriptors: raise ulimit -n");
			e = EMFILE;
			break;
		}
		f = file_new(d.kind == VRDMA_FD_ASYNC ? FILE_ASYNC : FILE_COMP);
		if (!f) {
			e = ENOMEM;
			break;
		}
		f->id = d.id;
		f->name = owner->name;
		if (!file_install(f, fds->fd[used])) {
			file_put(f);
			e = EMFILE;
			break;
		}
		int32_t number = fds->fd[used++];
		memcpy((void *)(uintptr_t)d.address, &number, sizeof number);
	}
	for (int i = used; i < fds->n; i++)
		sys(SYS_close, fds->fd[i]);
	return e;
}

int device_apply(struct file *f, size_t n, struct passed *fds)
{
	struct reader r = {f->in, f->in + n};
	struct vrdma_reply reply;
	memcpy(&reply, take(&r, sizeof reply), sizeof reply);
	int e = store_all(&r, reply.nstores);
	if (e)
		passed_close(fds);
	else
		e = install_all(f, &r, reply.nfds, fds);
	if (!e && !reply.error)
		ahead_keep(f, r.at, r.end, reply.nahead);
	return reply.error ? reply.error : e;
}

/* The word that a reply stores at address. */
static bool stored(struct file *f, size_t n, uint64_t address, uint32_t *out)
{
	struct reader r = {f->in, f->in + n};
	struct vrdma_reply reply;
	memcpy(&reply, take(&r, sizeof reply), sizeof reply);
	for (uint32_t i = 0; i < reply.nstores; i++) {
		struct vrdma_store s;
		const void *p = take(&r, sizeof s);
		if (!p)
			return false;
		memcpy(&s, p, sizeof s);
		p = take(&r, ((size_t)s.length + 7) & ~7ul);
		if (!p)
			return false;
		if (s.address == address && s.length >= sizeof *out) {
			memcpy(out, p, sizeof *out);
			return true;
		}
	}
	return false;
}

/* Sends a command with the extents in f->out. *reply is the length of what came back. */
static int exchange(struct file *f, sigmask outside, const void *buf, size_t n, uint32_t extents,
		    size_t *reply)
{
	struct vrdma_request q = {.op = VRDMA_OP_COMMAND, .command_len = (uint32_t)n, .nextents = extents};
	struct message m = {{&q, f->out, buf}, {sizeof q, extents * sizeof(struct vrdma_extent), n}, 3, f->mail};
	struct passed fds;
	ssize_t got = wire_call(atomic_load(&f->control), outside, &m, f->in, &fds);
	if (got == -EIO)
		atomic_store(&f->dead, true);
	*reply = got < 0 ? 0 : (size_t)got;
	return got < 0 ? (int)-got : device_apply(f, (size_t)got, &fds);
}

/* Whether the daemon would take a region of this length: what it says of one that it would not is final. */
static bool has_room(struct file *f, sigmask outside, const struct vrdma_extent *e)
{
	struct vrdma_request q = {.op = VRDMA_OP_ROOM, .nextents = 1};
	struct message m = {{&q, e}, {sizeof q, sizeof *e}, 2, NULL};
	struct passed fds;
	ssize_t got = wire_call(atomic_load(&f->control), outside, &m, f->in, &fds);
	if (got == -EIO)
		atomic_store(&f->dead, true);
	return got < 0 || device_apply(f, (size_t)got, &fds) != ENOMEM;
}

/*
 * Writes the extents of a buffer to f->out. Making terabytes shared takes long. If the daemon would
 * refuse a buffer because it is too large, its pages are not replaced, and it is one FOREIGN extent.
 */
static uint32_t prepare(struct file *f, sigmask outside, uint64_t start, uint64_t length,
			struct shared *shared, bool *held)
{
	struct vrdma_extent *out = (struct vrdma_extent *)(void *)f->out;
	struct vrdma_extent all = {start, length, VRDMA_EXTENT_FOREIGN, VRDMA_PROT_READ | VRDMA_PROT_WRITE};
	*held = false;
	if (length < ASK_FROM || !memory_sound(start, length) || has_room(f, outside, &all))
		return memory_prepare(start, length, out, EXTENTS_MAX, shared, held);
	*out = all;
	return 1;
}

/* The pages of a buffer are held from before the daemon gets their extents... */
static int reg_mr(struct file *f, sigmask outside, const void *buf, size_t n)
{
	uint64_t start = longword(buf, REG_MR_START), length = longword(buf, REG_MR_LENGTH);
	uint32_t handle = ~0u;
	size_t reply;
	struct shared shared = {.n = 0};
	bool held;
	uint32_t extents = prepare(f, outside, start, length, &shared, &held);
	bool expose = shared_offers((const struct vrdma_extent *)(const void *)f->out, extents);
	if (expose)
		wire_expose(true);
	int e = exchange(f, outside, buf, n, extents, &reply);
	if (expose)
		wire_expose(false);
	shared_end(&shared);
	if (held && e) {
		memory_refused(start, length);
	} else if (held) {
		stored(f, reply, longword(buf, RESPONSE), &handle);
		memory_registered(f, handle, start, length);
	}
	return e;
}

/* ...until the daemon has released them: it has replied to DEREG_MR, or has ended. */
static int dereg_mr(struct file *f, sigmask outside, const void *buf, size_t n)
{
	size_t reply;
	int e = atomic_load(&f->dead) ? EIO : exchange(f, outside, buf, n, 0, &reply);
	if (e == 0 || atomic_load(&f->dead))
		memory_deregistered(f, word(buf, DEREG_MR_HANDLE));
	return e;
}

/* Under f->lock. 0 or an errno. */
static int command(struct file *f, sigmask outside, const void *buf, size_t n)
{
	unsigned char patched[COMMAND_MAX];
	uint32_t number = word(buf, 0);
	size_t at = channel_at(number, n), reply;

	if (number == CMD_DEREG_MR && n >= DEREG_MR_SIZE)
		return dereg_mr(f, outside, buf, n);
	if (atomic_load(&f->dead))
		return EIO;
	if (sure(f, buf, n) && wire_leave(f->mail, buf, n))
		return 0;
	if (number == CMD_REG_MR && n >= REG_MR_SIZE)
		return reg_mr(f, outside, buf, n);
	if (at) {
		int32_t id = channel_id((int32_t)word(buf, at));
		memcpy(patched, buf, n);
		memcpy(patched + at, &id, sizeof id);
		buf = patched;
	}
	return exchange(f, outside, buf, n, 0, &reply);
}

ssize_t device_write(struct file *f, int fd, const void *buf, size_t n)
{
	if (unlikely(atomic_load_explicit(&f->kind, memory_order_relaxed) == FILE_CM))
		return channel_write(fd, buf, n);
	if (atomic_load_explicit(&f->kind, memory_order_relaxed) != FILE_DEVICE)
		return errno = atomic_load(&f->kind) == FILE_HIDDEN ? EBADF : EINVAL, -1;
	if (n < 8 || n > COMMAND_MAX)
		return errno = EINVAL, -1;
	if (likely(word(buf, 0) == CMD_POST_SEND && n >= POST_SEND_SIZE &&
		   word(buf, POST_SEND_COUNT) == 0 && ready(f, word(buf, POST_SEND_QP)))) {
		if (unlikely(atomic_load_explicit(&f->dead, memory_order_relaxed)))
			return errno = EIO, -1;
		ring(f, word(buf, POST_SEND_QP));
		return (ssize_t)n;
	}
	unsigned char looking[NOTIFY_SIZE];
	bool look = false;
	if (word(buf, 0) == CMD_REQ_NOTIFY_CQ && n == NOTIFY_SIZE && word(buf, 4) == NOTIFY_SIZE / 4 &&
	    !atomic_load_explicit(&f->dead, memory_order_relaxed) &&
	    arm(f, fd, word(buf, NOTIFY_CQ), word(buf, NOTIFY_SOLICITED), &look)) {
		if (likely(!look))
			return (ssize_t)n;
		const uint32_t value = VRDMA_NOTIFY_LOOK;
		memcpy(looking, buf, n);
		memcpy(looking + NOTIFY_SOLICITED, &value, sizeof value);
		buf = looking;
	}
	if (other_process())
		return errno = EIO, -1;
	f = file_get(fd);
	if (!f)
		return errno = EBADF, -1;
	int e;
	if (is_arena(f, fd)) {
		sigmask old = signals_block();
		file_lock(f);
		e = command(f, old, buf, n);
		file_unlock(f);
		signals_restore(old);
		if (e == 0 && channel_at(word(buf, 0), n))
			poll_found(fd, longword(buf, word(buf, 0) & CMD_EXTENDED ? EX_CREATE_CQ_HANDLE : CREATE_CQ_HANDLE));
	} else {
		e = EBADF;
	}
	file_put(f);
	return e ? (errno = e, -1) : (ssize_t)n;
}

/*
 * What a read() of an event file returns, given what the socket returned. Its end
 * means that the daemon is gone: an asynchronous file says so once. After that poll always
 * reports an event, as with a device that the kernel removed. Some programs only log the error
 * and poll again; the pause keeps them from using a whole processor.
 */
ssize_t device_event(struct file *f, ssize_t got, void *buf, size_t n)
{
	struct {
		uint64_t element;
		uint32_t event_type, reserved;
	} fatal = {0, EVENT_DEVICE_FATAL, 0};

	if (got > 0 || n == 0)
		return got;
	if (got < 0 && errno != ECONNRESET && errno != EPIPE)
		return got;
	if (atomic_load(&f->kind) == FILE_ASYNC && n >= sizeof fatal &&
	    !atomic_exchange(&f->fatal_told, true)) {
		memcpy(buf, &fatal, sizeof fatal);
		return sizeof fatal;
	}
	static const struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
	if (atomic_load(&f->kind) == FILE_ASYNC ? atomic_load(&f->fatal_told)
						: atomic_exchange(&f->fatal_told, true))
		sys(SYS_nanosleep, &pause, NULL);
	return errno = EIO, -1;
}
