/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs of this directory share, beyond vt.h: a pair of queue pairs that
 * proves what a region holds, threads that are known to sleep, and the sizes of loops.
 *
 * Every loop is bounded. MEM_ROUNDS multiplies the number of rounds.
 */
#ifndef MEM_H
#define MEM_H

#include "vt.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { PAGE = 4096 };

VT long rounds(long n)
{
	const char *factor = getenv("MEM_ROUNDS");

	return factor ? n * atol(factor) : n;
}

VT pid_t my_tid(void)
{
	return (pid_t)syscall(SYS_gettid);
}

/* ---- memory ---- */

VT char *mapped(size_t len, int flags, int fd)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, fd, 0);

	CHECK(p != MAP_FAILED, "mmap of %zu bytes: %s", len, strerror(errno));
	return p;
}

/* Private anonymous memory that exists, filled with one byte. */
VT char *anonymous(size_t len, int byte)
{
	char *p = mapped(len, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	memset(p, byte, len);
	return p;
}

/* Calls f for every line of a file of /proc/self. */
VT void proc_lines(const char *name, void (*f)(const char *line, void *arg), void *arg)
{
	char line[1024];
	FILE *file = MADE(fopen(name, "r"));

	while (fgets(line, sizeof(line), file))
		f(line, arg);
	fclose(file);
}

struct spot {
	uintptr_t at;
	bool found, own;
};

VT void look(const char *line, void *arg)
{
	struct spot *s = arg;
	unsigned long start, end;

	if (sscanf(line, "%lx-%lx", &start, &end) == 2 && s->at >= start && s->at < end) {
		s->found = true;
		s->own = strstr(line, "/memfd:vrdma") != NULL;
	}
}

/* Is the page at p one that the device shares with us, at this moment? */
VT bool is_own(const void *p)
{
	struct spot s = {.at = (uintptr_t)p};

	proc_lines("/proc/self/maps", look, &s);
	CHECK(s.found, "%p is not mapped", p);
	return s.own;
}

VT void count_line(const char *line, void *arg)
{
	(void)line;
	++*(long *)arg;
}

VT long mappings(void)
{
	long n = 0;

	proc_lines("/proc/self/maps", count_line, &n);
	return n;
}

/* ---- proof: what RDMA and plain loads and stores see is the same ---- */

#define PIECE 8192ul

struct loop {
	struct dev d;
	struct couple c;
	struct buf peer; /* two pieces: other bytes that RDMA moves */
};

VT struct loop loop_open(void)
{
	struct loop l = {.d = dev_open()};

	l.peer = buf_new(&l.d, 2 * PIECE, ALL_ACCESS);
	return l;
}

/* The queue pairs are made at the first use, and refer to l->d where it is then. */
VT struct couple *loop_couple(struct loop *l)
{
	if (!l->c.a.qp)
		l->c = couple_new(&l->d, (struct opt){.mtu = 4096});
	return &l->c;
}

VT void loop_close(struct loop *l)
{
	if (l->c.a.qp)
		couple_free(&l->c);
	buf_free(&l->peer);
	dev_close(&l->d);
}

VT struct buf reg(struct loop *l, void *p, size_t len)
{
	return (struct buf){.p = p, .len = len, .mr = MADE(ibv_reg_mr(l->d.pd, p, len, ALL_ACCESS))};
}

VT void unreg(struct buf *b)
{
	ZERO(ibv_dereg_mr(b->mr));
	b->mr = NULL;
}

VT void move_rdma(struct loop *l, enum ibv_wr_opcode op, struct buf *local, size_t off, size_t len, struct buf *remote, size_t at, const char *what)
{
	struct couple *c = loop_couple(l);

	post_work(&c->a, rdma(op, local, off, len, 1, (uintptr_t)remote->p + at, remote->mr->rkey));
	expect_wc(c->a.cq, 1, IBV_WC_SUCCESS, what);
}

VT void move_send(struct loop *l, struct buf *from, size_t off, size_t len, struct buf *to, size_t at, const char *what)
{
	struct couple *c = loop_couple(l);

	post_recv(&c->b, to, at, len, 2);
	post_send(&c->a, from, off, len, 1);
	expect_wc(c->a.cq, 1, IBV_WC_SUCCESS, what);
	expect_wc(c->b.rcq, 2, IBV_WC_SUCCESS, what);
}

/*
 * Moves [off, off + len) of b through WRITE, READ and SEND in both directions and
 * compares with what plain loads and stores see. The bytes are as before afterwards.
 */
VT void prove_piece(struct loop *l, struct buf *b, size_t off, size_t len, const char *what)
{
	static uint32_t seed;
	char kept[PIECE], *mine = b->p + off, *peer = l->peer.p;

	memcpy(kept, mine, len);
	memset(peer, 0, len);
	move_rdma(l, IBV_WR_RDMA_READ, &l->peer, 0, len, b, off, what);
	CHECK(!memcmp(peer, kept, len), "%s: an RDMA READ at %zu sees other bytes than the program", what, off);
	fill(peer, len, ++seed);
	move_rdma(l, IBV_WR_RDMA_WRITE, &l->peer, 0, len, b, off, what);
	expect_fill(mine, len, seed, what);
	fill(mine, len, ++seed);
	move_send(l, b, off, len, &l->peer, 0, what);
	expect_fill(peer, len, seed, what);
	memcpy(peer + PIECE, kept, len);
	move_send(l, &l->peer, PIECE, len, b, off, what);
	CHECK(!memcmp(mine, kept, len), "%s: a message did not arrive at %zu", what, off);
}

/* The same at the beginning, in the middle and at the end of a region. */
VT void prove(struct loop *l, struct buf *b, const char *what)
{
	size_t len = b->len < PIECE ? b->len : PIECE;

	prove_piece(l, b, 0, len, what);
	if (b->len > PIECE) {
		prove_piece(l, b, (b->len / 2) & ~63ul, b->len - ((b->len / 2) & ~63ul) < PIECE ? b->len / 2 : PIECE, what);
		prove_piece(l, b, b->len - len, len, what);
	}
}

/* ---- threads ---- */

VT pthread_t thread_new(void *(*f)(void *), void *arg)
{
	pthread_t t;

	ZERO(pthread_create(&t, NULL, f, arg));
	return t;
}

/* The state of a thread: R, S, D, ... */
VT char thread_state(pid_t tid)
{
	char name[64], text[256] = "";
	int fd;

	snprintf(name, sizeof(name), "/proc/self/task/%d/stat", tid);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0, "%s: %s", name, strerror(errno));
	CHECK(read(fd, text, sizeof(text) - 1) > 0, "%s: %s", name, strerror(errno));
	close(fd);
	char *paren = strrchr(text, ')');
	CHECK(paren, "%s: %s", name, text);
	return paren[2];
}

/* Waits until a thread that stored its number there sleeps in the kernel. */
VT void until_asleep(_Atomic pid_t *tid)
{
	double until = vt_now() + PATIENCE / 1e3;
	int seen = 0;

	while (seen < 3) { /* not in a short sleep on its way */
		CHECK(vt_now() < until, "a thread does not go to sleep");
		seen = *tid && thread_state(*tid) == 'S' ? seen + 1 : 0;
		usleep(500);
	}
}

VT void until_true(_Atomic int *flag, int want, const char *what)
{
	double until = vt_now() + PATIENCE / 1e3;

	while (atomic_load(flag) < want) {
		CHECK(vt_now() < until, "%s: %d of %d in %d ms: the others hang", what, atomic_load(flag), want, PATIENCE);
		usleep(200);
	}
}

VT void *sleep_for_ever(void *arg)
{
	*(_Atomic pid_t *)arg = my_tid();
	for (;;)
		pause();
	return NULL;
}

/* Threads that sleep until the program ends. */
VT void idle_threads(int n)
{
	for (int i = 0; i < n; i++) {
		_Atomic pid_t *tid = MADE(calloc(1, sizeof(*tid)));

		thread_new(sleep_for_ever, (void *)tid);
		until_asleep(tid);
	}
}

/* A file of n blocks without a name; block i holds the byte i + 1. */
VT int file_of_blocks(size_t block, int n, int flags)
{
	char name[] = "/var/tmp/vrdma-mem-XXXXXX", *data = MADE(aligned_alloc(PAGE, block));
	int fd = mkstemp(name);

	CHECK(fd >= 0, "%s: %s", name, strerror(errno));
	for (int i = 0; i < n; i++) {
		memset(data, i + 1, block);
		CHECK(write(fd, data, block) == (ssize_t)block, "%s: %s", name, strerror(errno));
	}
	ZERO(fsync(fd));
	close(fd);
	fd = open(name, O_RDONLY | O_CLOEXEC | flags);
	CHECK(fd >= 0, "%s with flags %#x: %s", name, flags, strerror(errno));
	unlink(name);
	free(data);
	return fd;
}

/* Are all bytes of a block that byte? */
VT bool all_bytes(const char *p, size_t len, int byte)
{
	return p[0] == (char)byte && !memcmp(p, p + 1, len - 1);
}

#endif
