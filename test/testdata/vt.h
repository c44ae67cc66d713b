/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the verbs test programs share: an opened device, queue pairs connected
 * inside one process or across a socket, and posts and completions in one line.
 * A program is a table of named cases; the Go test asks for the list and runs
 * each case in a process of its own. Everything waits with a bound.
 */
#ifndef VT_H
#define VT_H

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define VT __attribute__((unused)) static

#define PATIENCE 60000 /* ms: for what is a matter of a moment, on a machine that is busy */

__attribute__((noreturn, format(printf, 3, 4))) VT void vt_fail(const char *file, int line, const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	fprintf(stderr, "FAIL %s:%d: ", file, line);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

#define FAIL(...) vt_fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(cond, ...)                                                                                               \
	do {                                                                                                           \
		if (!(cond))                                                                                           \
			FAIL(__VA_ARGS__);                                                                             \
	} while (0)
/* A call that returns an errno (most of verbs), or NULL and sets errno. */
#define ZERO(call)                                                                                                     \
	do {                                                                                                           \
		int zero_ = (call);                                                                                    \
		if (zero_)                                                                                             \
			FAIL("%s: got %d (%s), want 0", #call, zero_, strerror(zero_ < 0 ? errno : zero_));            \
	} while (0)
#define MADE(expr)                                                                                                     \
	({                                                                                                             \
		__typeof__(expr) made_ = (expr);                                                                       \
		if (!made_)                                                                                            \
			FAIL("%s: got NULL (%s)", #expr, strerror(errno));                                             \
		made_;                                                                                                 \
	})

VT double vt_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

/* ---- the device ---- */

struct dev {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	union ibv_gid gid;
	int gid_index;
};

/* VT_GID picks another GID than the first, for runs on other devices. */
VT struct dev dev_open(void)
{
	struct dev d = {.gid_index = getenv("VT_GID") ? atoi(getenv("VT_GID")) : 0};
	int n;
	struct ibv_device **list = MADE(ibv_get_device_list(&n));

	CHECK(n == 1, "got %d devices, want 1", n);
	d.ctx = MADE(ibv_open_device(list[0]));
	ibv_free_device_list(list);
	d.pd = MADE(ibv_alloc_pd(d.ctx));
	ZERO(ibv_query_gid(d.ctx, 1, d.gid_index, &d.gid));
	return d;
}

VT void dev_close(struct dev *d)
{
	ZERO(ibv_dealloc_pd(d->pd));
	ZERO(ibv_close_device(d->ctx));
}

#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)
#define QP_ACCESS (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

struct buf {
	char *p;
	size_t len;
	struct ibv_mr *mr;
};

VT struct buf buf_new(struct dev *d, size_t len, int access)
{
	struct buf b = {.len = len};

	ZERO(posix_memalign((void **)&b.p, 4096, len ? len : 1));
	memset(b.p, 0, len);
	b.mr = MADE(ibv_reg_mr(d->pd, b.p, len, access));
	return b;
}

VT void buf_free(struct buf *b)
{
	ZERO(ibv_dereg_mr(b->mr));
	free(b->p);
}

/* A pattern that depends on seed and position, so that misplaced bytes show. */
VT void fill(void *p, size_t len, uint32_t seed)
{
	unsigned char *c = p;

	for (size_t i = 0; i < len; i++)
		c[i] = (unsigned char)((i * 2654435761u + seed * 40503u) >> 13);
}

VT void expect_fill(const void *p, size_t len, uint32_t seed, const char *what)
{
	const unsigned char *c = p;

	for (size_t i = 0; i < len; i++) {
		unsigned char want = (unsigned char)((i * 2654435761u + seed * 40503u) >> 13);
		CHECK(c[i] == want, "%s: byte %zu of %zu is %#x, want %#x", what, i, len, c[i], want);
	}
}

VT void expect_bytes(const void *p, size_t len, unsigned char want, const char *what)
{
	const unsigned char *c = p;

	for (size_t i = 0; i < len; i++)
		CHECK(c[i] == want, "%s: byte %zu of %zu is %#x, want it untouched (%#x)", what, i, len, c[i], want);
}

/* ---- queue pairs ---- */

struct opt {
	enum ibv_qp_type type;
	unsigned depth;	      /* of both queues; 0: 64 */
	unsigned sge;	      /* 0: 4 */
	unsigned inline_data; /* bytes */
	struct ibv_cq *send_cq, *recv_cq; /* NULL: one of its own, for both */
	struct ibv_comp_channel *channel;
	struct ibv_srq *srq;
	bool sig_all;
	bool no_access; /* qp_access_flags 0 */
	int timeout;	/* 0: 14, 67 ms */
	int retry;	/* 0: 7; -1: 0 */
	int rnr_retry;	/* 0: 7, for ever; -1: 0 */
	int min_rnr;	/* 0: 1, 10 µs */
	int mtu;	/* of the path, in bytes; 0: 1024 */
};

struct end {
	struct dev *d;
	struct opt o;
	struct ibv_cq *cq;  /* send completions, and receives unless rcq */
	struct ibv_cq *rcq;
	struct ibv_qp *qp;
	bool own_cq;
};

struct addr {
	uint32_t qpn, psn, rkey, pad;
	uint64_t va;
	union ibv_gid gid;
};

VT void qp_init_state(struct end *e)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .pkey_index = 0};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (e->o.type == IBV_QPT_UD) {
		a.qkey = 0x11111111;
		mask |= IBV_QP_QKEY;
	} else {
		a.qp_access_flags = e->o.no_access ? 0 : QP_ACCESS;
		if (e->o.type == IBV_QPT_UC && !e->o.no_access)
			a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
		mask |= IBV_QP_ACCESS_FLAGS;
	}
	ZERO(ibv_modify_qp(e->qp, &a, mask));
}

VT struct end end_new(struct dev *d, struct opt o)
{
	struct end e = {.d = d, .o = o, .cq = o.send_cq, .rcq = o.recv_cq};
	unsigned depth = o.depth ? o.depth : 64;

	if (!e.o.type)
		e.o.type = IBV_QPT_RC;
	if (!e.cq) {
		e.cq = MADE(ibv_create_cq(d->ctx, (int)depth * 2, NULL, o.channel, 0));
		e.own_cq = true;
	}
	if (!e.rcq)
		e.rcq = e.cq;
	struct ibv_qp_init_attr a = {
		.send_cq = e.cq, .recv_cq = e.rcq, .srq = o.srq, .qp_type = e.o.type, .sq_sig_all = o.sig_all,
		.cap = {.max_send_wr = depth, .max_recv_wr = o.srq ? 0 : depth, .max_send_sge = o.sge ? o.sge : 4,
			.max_recv_sge = o.srq ? 0 : (o.sge ? o.sge : 4), .max_inline_data = o.inline_data},
	};
	e.qp = MADE(ibv_create_qp(d->pd, &a));
	CHECK(a.cap.max_send_wr >= depth, "max_send_wr is %u, want at least %u", a.cap.max_send_wr, depth);
	qp_init_state(&e);
	return e;
}

VT void end_free(struct end *e)
{
	ZERO(ibv_destroy_qp(e->qp));
	if (e->own_cq)
		ZERO(ibv_destroy_cq(e->cq));
}

VT struct addr end_addr(struct end *e, struct buf *b)
{
	struct addr a = {.qpn = e->qp->qp_num, .psn = (e->qp->qp_num * 7919) & 0xffffff, .gid = e->d->gid};

	if (b) {
		a.rkey = b->mr->rkey;
		a.va = (uintptr_t)b->p;
	}
	return a;
}

VT int opt_num(int v, int dflt)
{
	return v == 0 ? dflt : v < 0 ? 0 : v;
}

VT void end_rtr(struct end *e, struct addr to)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR};
	int mask = IBV_QP_STATE;

	if (e->o.type != IBV_QPT_UD) {
		a.path_mtu = IBV_MTU_256;
		while (128 << a.path_mtu < opt_num(e->o.mtu, 1024))
			a.path_mtu++;
		a.dest_qp_num = to.qpn;
		a.rq_psn = to.psn;
		a.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.dgid = to.gid, .sgid_index = e->d->gid_index, .hop_limit = 64}};
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	}
	if (e->o.type == IBV_QPT_RC) {
		a.max_dest_rd_atomic = 8;
		a.min_rnr_timer = opt_num(e->o.min_rnr, 1);
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	}
	ZERO(ibv_modify_qp(e->qp, &a, mask));
}

VT void end_rts(struct end *e)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS, .sq_psn = end_addr(e, NULL).psn};
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

	if (e->o.type == IBV_QPT_RC) {
		a.timeout = opt_num(e->o.timeout, 14);
		a.retry_cnt = opt_num(e->o.retry, 7);
		a.rnr_retry = opt_num(e->o.rnr_retry, 7);
		a.max_rd_atomic = 8;
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	ZERO(ibv_modify_qp(e->qp, &a, mask));
}

VT void end_connect(struct end *e, struct addr to)
{
	end_rtr(e, to);
	end_rts(e);
}

/* Two queue pairs of one process, connected to each other. */
struct couple {
	struct end a, b;
};

VT struct couple couple_new(struct dev *d, struct opt o)
{
	struct couple c = {.a = end_new(d, o), .b = end_new(d, o)};

	end_connect(&c.a, end_addr(&c.b, NULL));
	end_connect(&c.b, end_addr(&c.a, NULL));
	return c;
}

VT void couple_free(struct couple *c)
{
	end_free(&c->a);
	end_free(&c->b);
}

VT enum ibv_qp_state qp_state(struct end *e)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;

	ZERO(ibv_query_qp(e->qp, &a, IBV_QP_STATE, &i));
	return a.qp_state;
}

VT void expect_state(struct end *e, enum ibv_qp_state want, const char *what)
{
	/* The completion may be seen a moment before the state. */
	double until = vt_now() + PATIENCE / 1e3;
	enum ibv_qp_state got;

	while ((got = qp_state(e)) != want && vt_now() < until)
		usleep(1000);
	CHECK(got == want, "%s: QP state is %d, want %d", what, got, want);
}

VT void end_to(struct end *e, enum ibv_qp_state s)
{
	struct ibv_qp_attr a = {.qp_state = s};

	ZERO(ibv_modify_qp(e->qp, &a, IBV_QP_STATE));
}

/* ---- work ---- */

VT struct ibv_sge sge_of(struct buf *b, size_t off, size_t len)
{
	return (struct ibv_sge){.addr = (uintptr_t)b->p + off, .length = (uint32_t)len, .lkey = b->mr->lkey};
}

VT int try_recv(struct end *e, struct buf *b, size_t off, size_t len, uint64_t id)
{
	struct ibv_sge s = sge_of(b, off, len);
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &s, .num_sge = 1}, *bad;

	return e->o.srq ? ibv_post_srq_recv(e->o.srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad);
}

VT void post_recv(struct end *e, struct buf *b, size_t off, size_t len, uint64_t id)
{
	ZERO(try_recv(e, b, off, len, id));
}

/* A signalled work request over one piece of b; change the rest as needed. */
struct work {
	struct ibv_send_wr wr;
	struct ibv_sge sge;
};

VT struct work work_new(enum ibv_wr_opcode op, struct buf *b, size_t off, size_t len, uint64_t id)
{
	struct work w = {.wr = {.wr_id = id, .opcode = op, .send_flags = IBV_SEND_SIGNALED, .num_sge = b ? 1 : 0}};

	if (b)
		w.sge = sge_of(b, off, len);
	return w;
}

VT int try_send(struct end *e, struct work *w)
{
	struct ibv_send_wr *bad;

	if (!w->wr.sg_list)
		w->wr.sg_list = &w->sge;
	return ibv_post_send(e->qp, &w->wr, &bad);
}

VT void post_work(struct end *e, struct work w)
{
	ZERO(try_send(e, &w));
}

VT void post_send(struct end *e, struct buf *b, size_t off, size_t len, uint64_t id)
{
	post_work(e, work_new(IBV_WR_SEND, b, off, len, id));
}

VT struct work rdma(enum ibv_wr_opcode op, struct buf *b, size_t off, size_t len, uint64_t id, uint64_t va, uint32_t rkey)
{
	struct work w = work_new(op, b, off, len, id);

	w.wr.wr.rdma.remote_addr = va;
	w.wr.wr.rdma.rkey = rkey;
	return w;
}

VT struct work atomic_op(enum ibv_wr_opcode op, struct buf *b, size_t off, uint64_t id, uint64_t va, uint32_t rkey, uint64_t compare_add, uint64_t swap)
{
	struct work w = work_new(op, b, off, 8, id);

	w.wr.wr.atomic.remote_addr = va;
	w.wr.wr.atomic.rkey = rkey;
	w.wr.wr.atomic.compare_add = compare_add;
	w.wr.wr.atomic.swap = swap;
	return w;
}

/* One completion, or false after ms. */
VT bool poll_wc(struct ibv_cq *cq, struct ibv_wc *wc, int ms)
{
	double until = vt_now() + ms / 1e3;

	for (;;) {
		int n = ibv_poll_cq(cq, 1, wc);
		CHECK(n >= 0, "ibv_poll_cq: %d", n);
		if (n == 1)
			return true;
		if (vt_now() > until)
			return false;
		sched_yield();
	}
}

VT struct ibv_wc wait_wc(struct ibv_cq *cq, const char *what)
{
	struct ibv_wc wc;

	CHECK(poll_wc(cq, &wc, PATIENCE), "%s: no completion in %d ms", what, PATIENCE);
	return wc;
}

VT struct ibv_wc expect_wc(struct ibv_cq *cq, uint64_t id, enum ibv_wc_status status, const char *what)
{
	struct ibv_wc wc = wait_wc(cq, what);

	CHECK(wc.wr_id == id && wc.status == status, "%s: completion of wr_id %llu with status %d (%s), want wr_id %llu with %d (%s)", what,
	      (unsigned long long)wc.wr_id, wc.status, ibv_wc_status_str(wc.status), (unsigned long long)id, status, ibv_wc_status_str(status));
	return wc;
}

VT void expect_no_wc(struct ibv_cq *cq, int ms, const char *what)
{
	struct ibv_wc wc;

	CHECK(!poll_wc(cq, &wc, ms), "%s: unexpected completion of wr_id %llu with status %d (%s)", what, (unsigned long long)wc.wr_id,
	      wc.status, ibv_wc_status_str(wc.status));
}

/* A message from a to b proves that the couple still works. */
VT void expect_alive(struct couple *c, struct buf *b, const char *what)
{
	fill(b->p, 32, 99);
	memset(b->p + 64, 0, 32);
	post_recv(&c->b, b, 64, 32, 9001);
	post_send(&c->a, b, 0, 32, 9002);
	if (c->a.cq == c->b.rcq) {
		wait_wc(c->a.cq, what);
		wait_wc(c->a.cq, what);
	} else {
		expect_wc(c->a.cq, 9002, IBV_WC_SUCCESS, what);
		expect_wc(c->b.rcq, 9001, IBV_WC_SUCCESS, what);
	}
	expect_fill(b->p + 64, 32, 99, what);
}

/* The next asynchronous event, of the wanted type; others in between are skipped. */
VT struct ibv_async_event expect_event(struct ibv_context *ctx, enum ibv_event_type want, const char *what)
{
	double until = vt_now() + PATIENCE / 1e3;
	struct ibv_async_event ev;

	while (vt_now() < until) {
		struct pollfd p = {.fd = ctx->async_fd, .events = POLLIN};
		if (poll(&p, 1, 100) <= 0)
			continue;
		ZERO(ibv_get_async_event(ctx, &ev));
		ibv_ack_async_event(&ev);
		if (ev.event_type == want)
			return ev;
	}
	FAIL("%s: no %s in %d ms", what, ibv_event_type_str(want), PATIENCE);
}

/* ---- between processes ---- */

VT void send_all(int fd, const void *p, size_t n)
{
	CHECK(write(fd, p, n) == (ssize_t)n, "write to peer: %s", strerror(errno));
}

VT void recv_all(int fd, void *p, size_t n)
{
	for (size_t got = 0; got < n;) {
		struct pollfd pf = {.fd = fd, .events = POLLIN};
		CHECK(poll(&pf, 1, PATIENCE) == 1, "peer says nothing for %d ms", PATIENCE);
		ssize_t r = read(fd, (char *)p + got, n - got);
		CHECK(r > 0, "read from peer: %s", r ? strerror(errno) : "it is gone");
		got += (size_t)r;
	}
}

VT struct addr swap_addr(int fd, struct addr mine)
{
	struct addr theirs;

	send_all(fd, &mine, sizeof(mine));
	recv_all(fd, &theirs, sizeof(theirs));
	return theirs;
}

VT void barrier(int fd)
{
	char c = 'b';

	send_all(fd, &c, 1);
	recv_all(fd, &c, 1);
}

enum { PEER_FD = 3 };

/* Runs another case of this program (exec, so that the peer has a device of its
 * own) with a socket on PEER_FD; returns our end. */
VT int spawn_peer(pid_t *pid, const char *role)
{
	int sv[2];

	ZERO(socketpair(AF_UNIX, SOCK_STREAM, 0, sv));
	fflush(NULL);
	*pid = fork();
	CHECK(*pid >= 0, "fork: %s", strerror(errno));
	if (*pid == 0) {
		if (sv[1] != PEER_FD)
			dup2(sv[1], PEER_FD);
		closefrom(PEER_FD + 1);
		execl("/proc/self/exe", "peer", role, NULL);
		_exit(127);
	}
	close(sv[1]);
	return sv[0];
}

VT void reap(pid_t pid, const char *what)
{
	double until = vt_now() + PATIENCE / 1e3;
	int status;
	pid_t r;

	while ((r = waitpid(pid, &status, WNOHANG)) == 0 && vt_now() < until)
		usleep(2000);
	CHECK(r == pid, "%s: process %d does not end", what, pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: ended with status %#x, want 0", what, status);
}

/* ---- the program: cases, and roles of other processes, named ".ROLE" ---- */

struct vt_case {
	const char *name;
	void (*run)(void);
};

#define MAIN(cases)                                                                                                    \
	int main(int argc, char **argv)                                                                                \
	{                                                                                                              \
		setvbuf(stdout, NULL, _IOLBF, 0);                                                                      \
		CHECK(argc >= 2, "usage: %s list|CASE", argv[0]);                                                      \
		for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {                                        \
			if (!strcmp(argv[1], "list")) {                                                                \
				if (cases[i].name[0] != '.')                                                           \
					puts(cases[i].name);                                                           \
			} else if (!strcmp(argv[1], cases[i].name)) {                                                  \
				cases[i].run();                                                                        \
				printf("ok %s\n", cases[i].name);                                                      \
				return 0;                                                                              \
			}                                                                                              \
		}                                                                                                      \
		return !!strcmp(argv[1], "list");                                                                      \
	}

#endif
