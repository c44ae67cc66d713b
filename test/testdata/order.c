/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What RC promises between processes: writes before a send are visible when its
 * completion is, one message arrives once and in order, atomics are atomic
 * between all peers, and messages of every length from 0 B to 2 GiB - 1 arrive.
 */
#include "vt.h"
#include <pthread.h>
#include <stdatomic.h>

static struct dev d;
static int fd = PEER_FD; /* to the other process */

/* ---- many peers add to one counter ---- */

enum { PEERS = 6, ADDS = 500 };

static void adder(void)
{
	d = dev_open();
	struct buf b = buf_new(&d, 8 * ADDS, ALL_ACCESS);
	struct end e = end_new(&d, (struct opt){0});
	struct addr to = swap_addr(fd, end_addr(&e, &b));

	end_connect(&e, to);
	barrier(fd);
	for (unsigned i = 0; i < ADDS; i++) {
		post_work(&e, atomic_op(IBV_WR_ATOMIC_FETCH_AND_ADD, &b, i * 8, i, to.va, to.rkey, 1, 0));
		if (i >= 16)
			expect_wc(e.cq, i - 16, IBV_WC_SUCCESS, "fetch and add");
	}
	for (unsigned i = ADDS - 16; i < ADDS; i++)
		expect_wc(e.cq, i, IBV_WC_SUCCESS, "fetch and add");
	/* Repeats compare-and-swap until it has succeeded ADDS/10 times. */
	volatile uint64_t *got = (uint64_t *)b.p;
	uint64_t seen = 0;

	send_all(fd, b.p, 8 * ADDS);
	for (int done = 0, tries = 0; done < ADDS / 10; tries++) {
		CHECK(tries < 1000000, "compare and swap never succeeds");
		post_work(&e, atomic_op(IBV_WR_ATOMIC_CMP_AND_SWP, &b, 0, 1, to.va + 64, to.rkey, seen, seen + 1));
		expect_wc(e.cq, 1, IBV_WC_SUCCESS, "compare and swap");
		if (got[0] == seen)
			done++;
		seen = got[0] == seen ? seen + 1 : got[0];
	}
	barrier(fd);
	end_free(&e);
	buf_free(&b);
	dev_close(&d);
}

static void atomics_between_peers(void)
{
	d = dev_open();
	struct buf b = buf_new(&d, 4096, ALL_ACCESS);
	struct end e[PEERS];
	pid_t pid[PEERS];
	int s[PEERS];
	static bool seen[PEERS * ADDS];

	for (int i = 0; i < PEERS; i++) {
		s[i] = spawn_peer(&pid[i], ".adder");
		e[i] = end_new(&d, (struct opt){0});
		end_connect(&e[i], swap_addr(s[i], end_addr(&e[i], &b)));
	}
	for (int i = 0; i < PEERS; i++)
		barrier(s[i]);
	for (int i = 0; i < PEERS; i++) {
		uint64_t old[ADDS];
		recv_all(s[i], old, sizeof(old));
		for (int j = 0; j < ADDS; j++) {
			CHECK(old[j] < PEERS * ADDS && !seen[old[j]], "peer %d, add %d fetched %llu, which is out of range or was fetched before", i, j, (unsigned long long)old[j]);
			CHECK(j == 0 || old[j] > old[j - 1], "peer %d fetched %llu after %llu", i, (unsigned long long)old[j], (unsigned long long)old[j - 1]);
			seen[old[j]] = true;
		}
	}
	for (int i = 0; i < PEERS; i++) {
		barrier(s[i]);
		reap(pid[i], "adder");
	}
	CHECK(*(uint64_t *)b.p == PEERS * ADDS, "the counter is %llu, want %d", *(unsigned long long *)b.p, PEERS * ADDS);
	CHECK(*(uint64_t *)(b.p + 64) == PEERS * (ADDS / 10), "compare and swap counted %llu, want %d", *(unsigned long long *)(b.p + 64), PEERS * (ADDS / 10));
	for (int i = 0; i < PEERS; i++)
		end_free(&e[i]);
	buf_free(&b);
	dev_close(&d);
}

/* ---- write, write, send: the receiver sees the writes ---- */

enum { ROUNDS = 2000, SLOT = 3000 };

static void write_sender(void)
{
	d = dev_open();
	struct buf b = buf_new(&d, 16 * SLOT, ALL_ACCESS);
	struct end e = end_new(&d, (struct opt){.depth = 128});
	struct addr to = swap_addr(fd, end_addr(&e, &b));

	end_connect(&e, to);
	barrier(fd);
	for (uint64_t i = 0; i < ROUNDS; i++) {
		char *p = b.p + (i % 16) * SLOT;
		fill(p, SLOT, (uint32_t)i);
		struct work w = rdma(IBV_WR_RDMA_WRITE, &b, (i % 16) * SLOT, SLOT, i, to.va + (i % 16) * SLOT, to.rkey);
		struct work s = work_new(IBV_WR_SEND_WITH_IMM, NULL, 0, 0, i);
		w.wr.send_flags = 0;
		s.wr.imm_data = htonl((uint32_t)i);
		w.wr.next = &s.wr;
		post_work(&e, w);
		expect_wc(e.cq, i, IBV_WC_SUCCESS, "send behind a write");
		if (i % 8 == 7)
			barrier(fd); /* the receiver has looked at the last eight */
	}
	barrier(fd);
	end_free(&e);
	buf_free(&b);
	dev_close(&d);
}

static void write_then_send(void)
{
	pid_t pid;

	d = dev_open();
	struct buf b = buf_new(&d, 16 * SLOT, ALL_ACCESS);
	struct end e = end_new(&d, (struct opt){.depth = 128});
	fd = spawn_peer(&pid, ".write_sender");
	for (int i = 0; i < 64; i++)
		post_recv(&e, &b, 0, 0, 1);
	end_connect(&e, swap_addr(fd, end_addr(&e, &b)));
	barrier(fd);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct ibv_wc wc = expect_wc(e.cq, 1, IBV_WC_SUCCESS, "receive");
		CHECK(ntohl(wc.imm_data) == i, "message %u came, want %u: lost, doubled or out of order", ntohl(wc.imm_data), i);
		expect_fill(b.p + (i % 16) * SLOT, SLOT, i, "what was written before the send");
		post_recv(&e, &b, 0, 0, 1);
		if (i % 8 == 7)
			barrier(fd);
	}
	expect_no_wc(e.cq, 20, "after the last message");
	barrier(fd);
	reap(pid, "write_sender");
	end_free(&e);
	buf_free(&b);
	dev_close(&d);
}

/* ---- a storm of mixed messages arrives once and in order ---- */

enum { STORM = 20000 };

static void storm_sender(void)
{
	d = dev_open();
	struct buf b = buf_new(&d, 65536, ALL_ACCESS);
	struct end e = end_new(&d, (struct opt){.depth = 256, .inline_data = 64});
	struct addr to = swap_addr(fd, end_addr(&e, &b));
	uint32_t done = 0;

	fill(b.p, 65536, 1);
	end_connect(&e, to);
	barrier(fd);
	for (uint32_t i = 0; i < STORM; i++) {
		size_t len = i % 7 == 0 ? 5000 : i % 64;
		struct work w = i % 3 ? work_new(IBV_WR_SEND_WITH_IMM, &b, 0, len, i) : rdma(IBV_WR_RDMA_WRITE_WITH_IMM, &b, 0, len, i, to.va, to.rkey);
		w.wr.imm_data = htonl(i);
		if (len <= 64 && i % 2)
			w.wr.send_flags |= IBV_SEND_INLINE;
		post_work(&e, w);
		if (i >= 200)
			expect_wc(e.cq, done++, IBV_WC_SUCCESS, "storm");
	}
	while (done < STORM)
		expect_wc(e.cq, done++, IBV_WC_SUCCESS, "storm");
	barrier(fd);
	end_free(&e);
	buf_free(&b);
	dev_close(&d);
}

static void exactly_once_in_order(void)
{
	pid_t pid;

	d = dev_open();
	struct buf b = buf_new(&d, 65536, ALL_ACCESS);
	struct end e = end_new(&d, (struct opt){.depth = 64});
	fd = spawn_peer(&pid, ".storm_sender");
	for (uint64_t i = 0; i < 20; i++) /* fewer than are sent at once: RNR retries happen */
		post_recv(&e, &b, 8192, 8192, i);
	end_connect(&e, swap_addr(fd, end_addr(&e, &b)));
	barrier(fd);
	for (uint32_t i = 0; i < STORM; i++) {
		struct ibv_wc wc = expect_wc(e.cq, i % 20, IBV_WC_SUCCESS, "storm");
		CHECK(ntohl(wc.imm_data) == i, "message %u came, want %u: lost, doubled or out of order", ntohl(wc.imm_data), i);
		CHECK(wc.byte_len == (i % 7 == 0 ? 5000 : i % 64), "message %u has %u bytes", i, wc.byte_len);
		post_recv(&e, &b, 8192, 8192, i % 20);
	}
	expect_no_wc(e.cq, 20, "after the last message");
	barrier(fd);
	reap(pid, "storm_sender");
	end_free(&e);
	buf_free(&b);
	dev_close(&d);
}

/* ---- lengths ---- */

static const size_t lengths[] = {0, 1, 2, 3, 4, 7, 8, 255, 256, 257, 1023, 1024, 1025, 2048, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1, (16 << 20) - 1};

static void lengths_rc_uc(void)
{
	size_t max = 16 << 20;

	d = dev_open();
	struct buf a = buf_new(&d, max, ALL_ACCESS), b = buf_new(&d, max + 64, ALL_ACCESS);
	for (int t = 0; t < 2; t++) {
		struct couple c = couple_new(&d, (struct opt){.type = t ? IBV_QPT_UC : IBV_QPT_RC});
		for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
			size_t len = lengths[i];
			fill(a.p, len, (uint32_t)i);
			memset(b.p, 0x5a, len + 64);
			post_recv(&c.b, &b, 0, len + 64, 2);
			post_send(&c.a, &a, 0, len, 1);
			expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "send");
			struct ibv_wc wc = expect_wc(c.b.cq, 2, IBV_WC_SUCCESS, "receive");
			CHECK(wc.byte_len == len, "byte_len %u, want %zu", wc.byte_len, len);
			expect_fill(b.p, len, (uint32_t)i, "sent");
			expect_bytes(b.p + len, 64, 0x5a, "behind what was sent");
			memset(b.p, 0x5a, len + 64);
			struct work w = rdma(IBV_WR_RDMA_WRITE_WITH_IMM, &a, 0, len, 3, (uintptr_t)b.p, b.mr->rkey);
			post_recv(&c.b, &b, 0, 0, 4);
			post_work(&c.a, w);
			expect_wc(c.a.cq, 3, IBV_WC_SUCCESS, "write");
			wc = expect_wc(c.b.cq, 4, IBV_WC_SUCCESS, "receive of a write");
			CHECK(wc.byte_len == len, "byte_len %u, want %zu", wc.byte_len, len);
			expect_fill(b.p, len, (uint32_t)i, "written");
			expect_bytes(b.p + len, 64, 0x5a, "behind what was written");
			if (t)
				continue;
			memset(a.p, 0, len);
			post_work(&c.a, rdma(IBV_WR_RDMA_READ, &a, 0, len, 5, (uintptr_t)b.p, b.mr->rkey));
			expect_wc(c.a.cq, 5, IBV_WC_SUCCESS, "read");
			expect_fill(a.p, len, (uint32_t)i, "read");
		}
		couple_free(&c);
	}
	buf_free(&a);
	buf_free(&b);
	dev_close(&d);
}

/* 2 GiB - 1 in one message: three times over one shared source and target. */
static void longest_message(void)
{
	const size_t len = (1ul << 31) - 1;

	d = dev_open();
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *q = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(p != MAP_FAILED && q != MAP_FAILED, "mmap of 2 GiB: %s", strerror(errno));
	struct buf a = {.p = p, .len = len, .mr = MADE(ibv_reg_mr(d.pd, p, len, ALL_ACCESS))};
	struct buf b = {.p = q, .len = len, .mr = MADE(ibv_reg_mr(d.pd, q, len, ALL_ACCESS))};
	struct couple c = couple_new(&d, (struct opt){.timeout = 20});

	for (size_t i = 0; i + 8 <= len; i += 4088)
		*(uint64_t *)(p + i) = i * 11400714819323198485ull;
	p[len - 1] = 77;
	post_recv(&c.b, &b, 0, len, 2);
	post_send(&c.a, &a, 0, len, 1);
	expect_wc(c.a.cq, 1, IBV_WC_SUCCESS, "send of 2 GiB - 1");
	struct ibv_wc wc = expect_wc(c.b.cq, 2, IBV_WC_SUCCESS, "receive of 2 GiB - 1");
	CHECK(wc.byte_len == len, "byte_len %u, want %zu", wc.byte_len, len);
	for (size_t i = 0; i + 8 <= len; i += 4088)
		CHECK(*(uint64_t *)(q + i) == i * 11400714819323198485ull, "sent: wrong at %zu", i);
	CHECK(q[len - 1] == 77, "last byte");
	q[len - 1] = 78;
	post_work(&c.a, rdma(IBV_WR_RDMA_READ, &a, 0, len, 3, (uintptr_t)q, b.mr->rkey));
	expect_wc(c.a.cq, 3, IBV_WC_SUCCESS, "read of 2 GiB - 1");
	CHECK(p[len - 1] == 78 && *(uint64_t *)(p + 4088) == 4088 * 11400714819323198485ull, "read: wrong");
	p[len - 1] = 79;
	post_work(&c.a, rdma(IBV_WR_RDMA_WRITE, &a, 0, len, 4, (uintptr_t)q, b.mr->rkey));
	expect_wc(c.a.cq, 4, IBV_WC_SUCCESS, "write of 2 GiB - 1");
	CHECK(q[len - 1] == 79, "write: wrong");
	couple_free(&c);
	ZERO(ibv_dereg_mr(a.mr));
	ZERO(ibv_dereg_mr(b.mr));
	munmap(p, len);
	munmap(q, len);
	dev_close(&d);
}

/* ---- threads ---- */

enum { THREADS = 6, QPS = 4, MESSAGES = 500 };

static void *talker(void *arg)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg;
	struct couple c[QPS];
	struct buf b = buf_new(&d, QPS * 8192, ALL_ACCESS);

	for (int i = 0; i < QPS; i++)
		c[i] = couple_new(&d, (struct opt){0});
	for (uint32_t n = 0; n < MESSAGES; n++) {
		for (size_t i = 0; i < QPS; i++) {
			size_t len = 1 + (n * 97 + i * 31) % 4000;
			fill(b.p + i * 8192, len, seed + n);
			post_recv(&c[i].b, &b, i * 8192 + 4096, 4096, n);
			post_send(&c[i].a, &b, i * 8192, len, n);
		}
		for (size_t i = 0; i < QPS; i++) {
			expect_wc(c[i].a.cq, n, IBV_WC_SUCCESS, "send of a thread");
			struct ibv_wc wc = expect_wc(c[i].b.cq, n, IBV_WC_SUCCESS, "receive of a thread");
			expect_fill(b.p + i * 8192 + 4096, wc.byte_len, seed + n, "message of a thread");
		}
	}
	for (int i = 0; i < QPS; i++)
		couple_free(&c[i]);
	buf_free(&b);
	return NULL;
}

static void threads(void)
{
	pthread_t th[THREADS];

	d = dev_open();
	for (uintptr_t i = 0; i < THREADS; i++)
		ZERO(pthread_create(&th[i], NULL, talker, (void *)(i * 1000)));
	for (int i = 0; i < THREADS; i++)
		ZERO(pthread_join(th[i], NULL));
	dev_close(&d);
}

static struct couple one;
static struct buf one_buf;
static atomic_int in_queue, completed;

/* rxe frees a slot of the send queue when the work is done, not when its completion
 * is polled: whoever posts has to leave room in the completion queue. */
static void *poster(void *arg)
{
	double until = vt_now() + 2 * PATIENCE / 1e3;

	for (uint64_t i = 0; i < MESSAGES; i++) {
		while (atomic_fetch_add(&in_queue, 1) >= 60) {
			atomic_fetch_sub(&in_queue, 1);
			CHECK(vt_now() < until, "no room in the queue for %d ms", 2 * PATIENCE);
			sched_yield();
		}
		post_work(&one.a, atomic_op(IBV_WR_ATOMIC_FETCH_AND_ADD, &one_buf, 64 + (uintptr_t)arg * 8, i, (uintptr_t)one_buf.p, one_buf.mr->rkey, 1, 0));
	}
	return NULL;
}

static void *drainer(void *arg)
{
	double until = vt_now() + 2 * PATIENCE / 1e3;

	(void)arg;
	while (atomic_load(&completed) < 4 * MESSAGES && vt_now() < until) {
		struct ibv_wc wc[8];
		int n = ibv_poll_cq(one.a.cq, 8, wc);
		for (int i = 0; i < n; i++)
			CHECK(wc[i].status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc[i].status));
		atomic_fetch_add(&completed, n);
		atomic_fetch_sub(&in_queue, n);
		if (!n)
			sched_yield();
	}
	return NULL;
}

/* Several threads post on one queue pair and poll one queue. */
static void threads_share_a_qp(void)
{
	pthread_t th[4], dr[2];

	d = dev_open();
	one_buf = buf_new(&d, 4096, ALL_ACCESS);
	one = couple_new(&d, (struct opt){0});
	for (uintptr_t i = 0; i < 4; i++)
		ZERO(pthread_create(&th[i], NULL, poster, (void *)i));
	for (int i = 0; i < 2; i++)
		ZERO(pthread_create(&dr[i], NULL, drainer, NULL));
	for (int i = 0; i < 4; i++)
		ZERO(pthread_join(th[i], NULL));
	for (int i = 0; i < 2; i++)
		ZERO(pthread_join(dr[i], NULL));
	CHECK(completed == 4 * MESSAGES, "%d completions, want %d", completed, 4 * MESSAGES);
	CHECK(*(uint64_t *)one_buf.p == 4 * MESSAGES, "counter %llu, want %d", *(unsigned long long *)one_buf.p, 4 * MESSAGES);
	couple_free(&one);
	buf_free(&one_buf);
	dev_close(&d);
}

static const struct vt_case cases[] = {
	{"atomics_between_peers", atomics_between_peers},
	{"write_then_send", write_then_send},
	{"exactly_once_in_order", exactly_once_in_order},
	{"lengths", lengths_rc_uc},
	{"longest_message", longest_message},
	{"threads", threads},
	{"threads_share_a_qp", threads_share_a_qp},
	{".adder", adder},
	{".write_sender", write_sender},
	{".storm_sender", storm_sender},
};

MAIN(cases)
