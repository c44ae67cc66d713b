/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel reads and writes a program's pages while they are registered and deregistered:
 * O_DIRECT, Linux AIO, io_uring with plain and with registered buffers, zero-copy sends and
 * vmsplice. The bytes of every operation that succeeds are in the program's buffer.
 */
#include "mem.h"
#include "uring.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

enum { BLOCKS = 16 };
#define BLOCK (128ul << 10)

static _Atomic int stop;

/* ---- reads with O_DIRECT in another thread ---- */

struct reader {
	int fd;
	char *to;
	size_t len;
	_Atomic long reads;
};

static void *read_direct(void *arg)
{
	struct reader *r = arg;

	for (int k = 0; !atomic_load(&stop); k = (k + 1) % BLOCKS) {
		memset(r->to, 0, r->len);
		ssize_t n = pread(r->fd, r->to, r->len, (off_t)((size_t)k * BLOCK));
		CHECK(n == (ssize_t)r->len, "a read with O_DIRECT returns %zd (%s), want %zu", n, strerror(errno), r->len);
		CHECK(all_bytes(r->to, r->len, k + 1), "read %ld with O_DIRECT succeeded, and its bytes are not in the buffer", (long)r->reads);
		r->reads++;
	}
	return NULL;
}

static void direct(bool neighbour)
{
	struct loop l = loop_open();
	char *p = anonymous(BLOCK + PAGE, 0);
	struct reader r = {.fd = file_of_blocks(BLOCK, BLOCKS, O_DIRECT), .to = neighbour ? p + BLOCK : p, .len = neighbour ? 512 : BLOCK};
	pthread_t t = thread_new(read_direct, &r);

	for (long n = rounds(200); n > 0 || r.reads < 20; n--) {
		struct buf b = neighbour ? reg(&l, p + BLOCK + 1024, 2048) : reg(&l, p, BLOCK);

		if (neighbour && n % 16 == 0)
			prove(&l, &b, "beside a buffer of O_DIRECT");
		unreg(&b);
		usleep(100);
	}
	atomic_store(&stop, 1);
	pthread_join(t, NULL);
	struct buf b = reg(&l, p, BLOCK);
	prove(&l, &b, "after the reads");
	unreg(&b);
	printf("%ld reads\n", (long)r.reads);
	loop_close(&l);
}

static void direct_buffer(void)
{
	direct(false);
}

static void direct_neighbour(void)
{
	direct(true);
}

/* ---- AIO ---- */

static void aio(bool threads)
{
	struct loop l = loop_open();
	aio_context_t c = aio_open();
	int fd = file_of_blocks(BLOCK, BLOCKS, O_DIRECT);

	if (threads)
		idle_threads(2);
	for (long n = rounds(60); n > 0; n--) {
		char *p = anonymous(BLOCK, 0);
		struct buf b = {.mr = NULL};
		struct iocb cb;
		int k = (int)(n % BLOCKS);

		if (n % 3 == 0) /* in flight at the deregistration */
			b = reg(&l, p, BLOCK);
		aio_read(c, &cb, fd, p, BLOCK, (size_t)k * BLOCK);
		if (b.mr)
			unreg(&b);
		else
			b = reg(&l, p, BLOCK);
		long got = aio_wait(c);
		CHECK(got == (long)BLOCK, "AIO returns %ld, want %zu", got, BLOCK);
		CHECK(all_bytes(p, BLOCK, k + 1), "round %ld: a read of AIO succeeded, and its bytes are not in the buffer", n);
		if (b.mr) {
			prove(&l, &b, "after a read of AIO");
			unreg(&b);
		}
		CHECK(all_bytes(p, BLOCK, k + 1), "round %ld: the bytes are gone after the deregistration", n);
		munmap(p, BLOCK);
	}
	loop_close(&l);
}

static void aio_alone(void)
{
	aio(false);
}

static void aio_threads(void)
{
	aio(true);
}

/* ---- io_uring: an operation with a plain buffer is pending ---- */

/* A process that sends a block of one byte some microseconds after it is told to. */
static pid_t sender_new(int from[2], int go[2])
{
	ZERO(socketpair(AF_UNIX, SOCK_STREAM, 0, from));
	ZERO(pipe(go));
	pid_t pid = fork();
	CHECK(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0) {
		unsigned us;
		char data[PAGE];

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(go[1]);
		close(from[0]);
		while (read(go[0], &us, sizeof(us)) == sizeof(us)) {
			double until = vt_now() + us / 1e6;

			while (vt_now() < until)
				;
			memset(data, 0xab, sizeof(data));
			if (write(from[1], data, sizeof(data)) < 0)
				break;
		}
		_exit(0);
	}
	close(from[1]);
	close(go[0]);
	return pid;
}

static void pending(int op, int flags, int threads)
{
	const size_t len = 1 << 20, at = len - 2 * PAGE;
	int from[2], go[2];
	pid_t pid = sender_new(from, go);
	struct loop l = loop_open();
	struct ring r = ring_open();

	idle_threads(threads);
	for (long n = rounds(80); n > 0; n--) {
		char *p = anonymous(len, 1);
		unsigned us = (unsigned)(n * 37 % 1500);

		ring_submit(&r, op, flags, from[0], p + at, PAGE, 0);
		send_all(go[1], &us, sizeof(us));
		struct buf b = reg(&l, p, len);
		if (n % 4 == 0) { /* the data may come at the deregistration as well */
			unreg(&b);
			b = reg(&l, p, len);
		}
		int got = ring_wait(&r);
		CHECK(got == PAGE, "round %ld: io_uring returns %d (%s), want %d", n, got, got < 0 ? strerror(-got) : "short", PAGE);
		CHECK(all_bytes(p + at, PAGE, 0xab), "round %ld: an operation of io_uring succeeded, and its bytes are not in the buffer", n);
		if (n % 8 == 0)
			prove(&l, &b, "after an operation of io_uring");
		unreg(&b);
		CHECK(all_bytes(p + at, PAGE, 0xab) && all_bytes(p, at, 1), "round %ld: bytes changed with the deregistration", n);
		munmap(p, len);
	}
	ring_close(&r);
	close(go[1]);
	reap(pid, "sender");
	loop_close(&l);
}

static void pending_recv_alone(void)
{
	pending(IORING_OP_RECV, 0, 0);
}

static void pending_recv_thread(void)
{
	pending(IORING_OP_RECV, 0, 1);
}

static void pending_read_alone(void)
{
	pending(IORING_OP_READ, 0, 0);
}

static void pending_read_thread(void)
{
	pending(IORING_OP_READ, 0, 1);
}

/* By a worker thread of the kernel, which blocks in the read. */
static void pending_read_worker(void)
{
	pending(IORING_OP_READ, IOSQE_ASYNC, 1);
}

/* ---- io_uring: buffers that it has pinned ---- */

/* READ_FIXED into [off, off + len) of a pinned buffer arrives there. */
static void fixed_read(struct ring *r, int fd, char *p, size_t off, size_t len, int k, const char *when)
{
	memset(p + off, 0, len);
	ring_submit(r, IORING_OP_READ_FIXED, 0, fd, p + off, len, (size_t)k * BLOCK);
	int got = ring_wait(r);
	CHECK(got == (int)len, "%s: READ_FIXED returns %d (%s), want %zu", when, got, got < 0 ? strerror(-got) : "short", len);
	CHECK(all_bytes(p + off, len, k + 1), "%s: READ_FIXED succeeded, and its bytes are not in the buffer", when);
}

/* What RDMA puts into a pinned buffer, io_uring writes to a file. */
static void fixed_write(struct loop *l, struct ring *r, struct buf *b, size_t off, const char *when)
{
	char name[] = "/var/tmp/vrdma-mem-XXXXXX", back[512];
	int fd = mkstemp(name);

	CHECK(fd >= 0, "%s: %s", name, strerror(errno));
	unlink(name);
	fill(l->peer.p, sizeof(back), 77);
	move_rdma(l, IBV_WR_RDMA_WRITE, &l->peer, 0, sizeof(back), b, off, when);
	ring_submit(r, IORING_OP_WRITE_FIXED, 0, fd, b->p + off, sizeof(back), 0);
	CHECK(ring_wait(r) == (int)sizeof(back), "%s: WRITE_FIXED failed", when);
	CHECK(pread(fd, back, sizeof(back), 0) == (ssize_t)sizeof(back), "%s: pread: %s", when, strerror(errno));
	expect_fill(back, sizeof(back), 77, when);
	close(fd);
}

enum { PIN_FIRST, REG_FIRST };

static void fixed(int order, size_t pinned_at, size_t pinned, int flags, int threads)
{
	struct loop l = loop_open();
	struct ring r = ring_open();
	int fd = file_of_blocks(BLOCK, BLOCKS, flags);
	size_t len = 8 * BLOCK;
	struct buf b;

	idle_threads(threads);
	for (long n = rounds(6); n > 0; n--) {
		char *p = anonymous(len, 9);

		if (order == REG_FIRST)
			b = reg(&l, p, len);
		ring_pin(&r, p + pinned_at, pinned);
		if (order == PIN_FIRST)
			b = reg(&l, p, len);
		fixed_read(&r, fd, p, pinned_at, pinned, (int)(n % BLOCKS), "registered");
		fixed_write(&l, &r, &b, pinned_at, "registered");
		prove(&l, &b, "pinned");
		unreg(&b);
		fixed_read(&r, fd, p, pinned_at, pinned, (int)(n + 1) % BLOCKS, "deregistered");
		b = reg(&l, p, len);
		fixed_read(&r, fd, p, pinned_at, pinned, (int)(n + 2) % BLOCKS, "registered again");
		prove(&l, &b, "registered again");
		ring_unpin(&r);
		prove(&l, &b, "unpinned");
		unreg(&b);
		CHECK(all_bytes(p + pinned_at, pinned, (int)(n + 2) % BLOCKS + 1), "bytes changed with the deregistration");
		munmap(p, len);
	}
	ring_close(&r);
	close(fd);
	loop_close(&l);
}

static void fixed_then_reg(void)
{
	fixed(PIN_FIRST, 0, BLOCK, 0, 0);
}

static void fixed_then_reg_direct(void)
{
	fixed(PIN_FIRST, 0, BLOCK, O_DIRECT, 0);
}

static void fixed_page_then_reg(void)
{
	fixed(PIN_FIRST, 3 * BLOCK + PAGE, PAGE, 0, 0);
}

static void fixed_then_reg_threads(void)
{
	fixed(PIN_FIRST, BLOCK, BLOCK, 0, 2);
}

static void reg_then_fixed(void)
{
	fixed(REG_FIRST, 0, BLOCK, 0, 0);
}

static void reg_then_fixed_threads(void)
{
	fixed(REG_FIRST, BLOCK, BLOCK, O_DIRECT, 2);
}

/* A thread pins and reads while another registers and deregisters. */
struct pinner {
	char *p;
	int fd;
	_Atomic long reads;
};

static void *pin_and_read(void *arg)
{
	struct pinner *f = arg;
	struct ring r = ring_open();

	for (int k = 0; !atomic_load(&stop); k = (k + 1) % BLOCKS) {
		ring_pin(&r, f->p, BLOCK);
		fixed_read(&r, f->fd, f->p, 0, BLOCK, k, "in another thread");
		ring_unpin(&r);
		f->reads++;
	}
	ring_close(&r);
	return NULL;
}

static void fixed_during(void)
{
	struct loop l = loop_open();
	struct pinner f = {.p = anonymous(2 * BLOCK, 0), .fd = file_of_blocks(BLOCK, BLOCKS, O_DIRECT)};
	pthread_t t = thread_new(pin_and_read, &f);

	for (long n = rounds(150); n > 0 || f.reads < 20; n--) {
		struct buf b = reg(&l, f.p, 2 * BLOCK);

		if (n % 16 == 0)
			prove_piece(&l, &b, BLOCK, PIECE, "beside pinned pages");
		unreg(&b);
		usleep(100);
	}
	atomic_store(&stop, 1);
	pthread_join(t, NULL);
	printf("%ld reads\n", (long)f.reads);
	loop_close(&l);
}

/* The pin is the only user of the pages that is left: the ring is in a child. */
static void fixed_in_child(void)
{
	struct loop l = loop_open();
	int fd = file_of_blocks(BLOCK, BLOCKS, 0);
	char *p = anonymous(2 * BLOCK, 5);
	struct ring r = ring_open();
	struct buf b;

	ring_pin(&r, p, BLOCK);
	pid_t pid = fork();
	CHECK(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0)
		_exit(0);
	reap(pid, "child");
	b = reg(&l, p, 2 * BLOCK);
	fixed_read(&r, fd, p, 0, BLOCK, 3, "after a fork");
	prove(&l, &b, "after a fork");
	unreg(&b);
	fixed_read(&r, fd, p, 0, BLOCK, 4, "deregistered after a fork");
	ring_close(&r);
	loop_close(&l);
}

/* One pinned page in a huge page. */
static void fixed_in_huge_page(void)
{
	const size_t huge = 2 << 20;
	struct loop l = loop_open();
	struct ring r = ring_open();
	int fd = file_of_blocks(BLOCK, BLOCKS, 0);
	char *area = mapped(4 * huge, MAP_PRIVATE | MAP_ANONYMOUS, -1), *p = (char *)(((uintptr_t)area + huge - 1) & ~(huge - 1));
	struct buf b;

	madvise(p, 3 * huge, MADV_HUGEPAGE);
	memset(p, 6, 3 * huge);
	ring_pin(&r, p + huge + 5 * PAGE, PAGE);
	b = reg(&l, p, 3 * huge);
	for (int k = 0; k < 4; k++)
		fixed_read(&r, fd, p, huge + 5 * PAGE, PAGE, k, "in a huge page");
	prove(&l, &b, "a huge page with a pin");
	prove_piece(&l, &b, huge + 5 * PAGE, PAGE, "the pinned page");
	unreg(&b);
	fixed_read(&r, fd, p, huge + 5 * PAGE, PAGE, 7, "deregistered");
	memset(p + huge + 5 * PAGE, 6, PAGE);
	CHECK(all_bytes(p, 3 * huge, 6), "bytes of the huge pages changed");
	munmap(area, 4 * huge);
	ring_close(&r);
	loop_close(&l);
}

/* Another thread makes a ring, uses it and closes it, again and again: no look before the halt tells. */
static void *ring_comes_and_goes(void *arg)
{
	struct pinner *f = arg;
	int s[2];

	ZERO(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
	for (int k = 0; !atomic_load(&stop); k = (k + 1) % BLOCKS) {
		struct ring r = ring_open();
		char data[PAGE];

		if (k % 2) {
			ring_pin(&r, f->p, BLOCK);
			fixed_read(&r, f->fd, f->p, 0, BLOCK, k, "a ring that came");
			ring_unpin(&r); /* a ring is freed some time after it is closed, and counts as locked memory until then */
		} else {
			memset(data, k + 1, sizeof(data));
			ring_submit(&r, IORING_OP_RECV, 0, s[0], f->p, PAGE, 0);
			usleep((useconds_t)(k * 20));
			send_all(s[1], data, sizeof(data));
			int got = ring_wait(&r);
			CHECK(got == PAGE, "a ring that came: recv returns %d (%s)", got, got < 0 ? strerror(-got) : "short");
			CHECK(all_bytes(f->p, PAGE, k + 1), "a ring that came: recv succeeded, and its bytes are not in the buffer");
		}
		ring_close(&r);
		f->reads++;
		usleep((useconds_t)(k * 10));
	}
	return NULL;
}

static void ring_comes(void)
{
	struct loop l = loop_open();
	struct pinner f = {.p = anonymous(2 * BLOCK, 0), .fd = file_of_blocks(BLOCK, BLOCKS, O_DIRECT)};
	pthread_t t = thread_new(ring_comes_and_goes, &f);
	long own = 0;

	for (long n = rounds(300); n > 0 || f.reads < 20; n--) {
		struct buf b = reg(&l, f.p, 2 * BLOCK);

		if (n % 16 == 0)
			own += is_own(f.p + BLOCK);
		unreg(&b);
	}
	atomic_store(&stop, 1);
	pthread_join(t, NULL);
	printf("%ld rings, %ld of the registrations that were looked at shared\n", (long)f.reads, own);
	loop_close(&l);
}

/* ---- references that only read ---- */

static void vmsplice_pages(void)
{
	struct loop l = loop_open();
	int fds[2];

	ZERO(pipe(fds));
	for (long n = rounds(20); n > 0; n--) {
		char *p = anonymous(8 * PAGE, 0), got[8 * PAGE];
		struct iovec v = {p, 8 * PAGE};
		struct buf b = {.mr = NULL};

		fill(p, 8 * PAGE, (uint32_t)n);
		if (n % 2)
			b = reg(&l, p, 8 * PAGE);
		CHECK(vmsplice(fds[1], &v, 1, 0) == 8 * PAGE, "vmsplice: %s", strerror(errno));
		if (b.mr)
			unreg(&b);
		else
			b = reg(&l, p, 8 * PAGE);
		CHECK(read(fds[0], got, sizeof(got)) == (ssize_t)sizeof(got), "read of a pipe: %s", strerror(errno));
		expect_fill(got, sizeof(got), (uint32_t)n, "vmsplice");
		expect_fill(p, 8 * PAGE, (uint32_t)n, "the buffer of vmsplice");
		if (b.mr) {
			prove(&l, &b, "vmsplice");
			unreg(&b);
		}
		munmap(p, 8 * PAGE);
	}
	loop_close(&l);
}

static void zerocopy_send(void)
{
	struct loop l = loop_open();
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(a);
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), out = socket(AF_INET, SOCK_STREAM, 0), in;

	ZERO(bind(listener, (struct sockaddr *)&a, sizeof(a)));
	ZERO(listen(listener, 1));
	ZERO(getsockname(listener, (struct sockaddr *)&a, &len));
	ZERO(setsockopt(out, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one)));
	ZERO(connect(out, (struct sockaddr *)&a, sizeof(a)));
	in = accept(listener, NULL, NULL);
	CHECK(in >= 0, "accept: %s", strerror(errno));
	for (long n = rounds(20); n > 0; n--) {
		char *p = anonymous(8 * PAGE, 0), got[8 * PAGE];
		struct buf b = {.mr = NULL};

		fill(p, 8 * PAGE, (uint32_t)n);
		if (n % 2)
			b = reg(&l, p, 8 * PAGE);
		CHECK(send(out, p, 8 * PAGE, MSG_ZEROCOPY) == 8 * PAGE, "send: %s", strerror(errno));
		if (b.mr)
			unreg(&b);
		else
			b = reg(&l, p, 8 * PAGE);
		recv_all(in, got, sizeof(got));
		expect_fill(got, sizeof(got), (uint32_t)n, "MSG_ZEROCOPY");
		expect_fill(p, 8 * PAGE, (uint32_t)n, "the buffer of MSG_ZEROCOPY");
		if (b.mr) {
			prove(&l, &b, "MSG_ZEROCOPY");
			unreg(&b);
		}
		munmap(p, 8 * PAGE);
	}
	loop_close(&l);
}

static const struct vt_case cases[] = {
	{"direct_buffer", direct_buffer},
	{"direct_neighbour", direct_neighbour},
	{"aio_alone", aio_alone},
	{"aio_threads", aio_threads},
	{"pending_recv_alone", pending_recv_alone},
	{"pending_recv_thread", pending_recv_thread},
	{"pending_read_alone", pending_read_alone},
	{"pending_read_thread", pending_read_thread},
	{"pending_read_worker", pending_read_worker},
	{"fixed_then_reg", fixed_then_reg},
	{"fixed_then_reg_direct", fixed_then_reg_direct},
	{"fixed_page_then_reg", fixed_page_then_reg},
	{"fixed_then_reg_threads", fixed_then_reg_threads},
	{"reg_then_fixed", reg_then_fixed},
	{"reg_then_fixed_threads", reg_then_fixed_threads},
	{"fixed_during", fixed_during},
	{"ring_comes", ring_comes},
	{"fixed_in_child", fixed_in_child},
	{"fixed_in_huge_page", fixed_in_huge_page},
	{"vmsplice", vmsplice_pages},
	{"zerocopy", zerocopy_send},
};

MAIN(cases)
