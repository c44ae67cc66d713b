/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane of wakeups.c: a completion queue on a channel, messages that arrive there, and the
 * loop that every program has around it: arm, poll once more, sleep.
 */
#ifndef LANE_H
#define LANE_H

#include <pthread.h>
#include <stdatomic.h>

#include "vt.h"

enum { RECEIVES = 48, BURST = 4, DEPTH = 64, CQES = 256, LANES = 3, TAKERS = 3, PEER_MESSAGES = 40 };
enum mode { ALL, SOLICITED, MIXED };

static struct dev device;
static unsigned long races = 2000;
static _Atomic unsigned long armed, slept;

/* ---- chance ---- */

static uint64_t seed = 1;
static _Thread_local uint64_t random_state;

static unsigned draw(unsigned n)
{
	static _Atomic uint64_t threads;

	if (!random_state)
		random_state = (seed + atomic_fetch_add(&threads, 1)) * 0x9e3779b97f4a7c15ull | 1;
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (unsigned)(random_state >> 33) % n;
}

/* Nothing, a moment, or as long as a message takes. */
static void dither(void)
{
	for (volatile unsigned i = draw(1u << draw(16)); i > 0; i--)
		;
}

/* ---- a lane: a queue on a channel, and a pair of queue pairs that send to it ---- */

struct lane {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq, *sends;
	struct ibv_cq_ex *ex; /* how cq is polled; NULL: as ever */
	struct couple c;
	struct buf b;
	bool alone; /* the other end is another process: c.b is not used */
	pthread_mutex_t reposting;
	unsigned long sent, finished;
	_Atomic unsigned long got, arms, events;
	unsigned unacked;
};

static void lane_repost(struct lane *l, uint64_t id)
{
	ZERO(pthread_mutex_lock(&l->reposting));
	post_recv(l->alone ? &l->c.a : &l->c.b, &l->b, id * 64, 64, id);
	ZERO(pthread_mutex_unlock(&l->reposting));
}

static void lane_cq(struct lane *l, struct ibv_comp_channel *channel, bool extended)
{
	struct ibv_cq_init_attr_ex a = {.cqe = CQES, .cq_context = l, .channel = channel, .wc_flags = IBV_WC_STANDARD_FLAGS};

	*l = (struct lane){.channel = channel};
	ZERO(pthread_mutex_init(&l->reposting, NULL));
	if (extended) {
		l->ex = MADE(ibv_create_cq_ex(device.ctx, &a));
		l->cq = ibv_cq_ex_to_cq(l->ex);
	} else {
		l->cq = MADE(ibv_create_cq(device.ctx, CQES, l, channel, 0));
	}
	l->sends = MADE(ibv_create_cq(device.ctx, CQES, NULL, NULL, 0));
	l->b = buf_new(&device, (RECEIVES + 1) * 64, ALL_ACCESS);
}

static void lane_open(struct lane *l, struct ibv_comp_channel *channel, bool extended)
{
	lane_cq(l, channel, extended);
	l->c = couple_new(&device, (struct opt){.depth = DEPTH, .send_cq = l->sends, .recv_cq = l->cq});
	for (uint64_t i = 0; i < RECEIVES; i++)
		lane_repost(l, i);
}

static void lane_ack(struct lane *l)
{
	if (l->unacked)
		ibv_ack_cq_events(l->cq, l->unacked);
	l->unacked = 0;
}

static void lane_close(struct lane *l)
{
	CHECK(l->events <= l->arms, "%lu arms, and %lu events", l->arms, l->events);
	if (!l->alone)
		couple_free(&l->c);
	lane_ack(l);
	ZERO(ibv_destroy_cq(l->cq));
	ZERO(ibv_destroy_cq(l->sends));
	buf_free(&l->b);
}

static void lane_send(struct lane *l, bool solicited)
{
	struct work w = work_new(IBV_WR_SEND, &l->b, RECEIVES * 64, 8, l->sent);
	struct ibv_wc wc;

	while (poll_wc(l->sends, &wc, l->sent - l->finished > DEPTH / 2 ? PATIENCE : 0)) {
		CHECK(wc.status == IBV_WC_SUCCESS, "a send: %s", ibv_wc_status_str(wc.status));
		l->finished++;
	}
	if (solicited)
		w.wr.send_flags |= IBV_SEND_SOLICITED;
	post_work(&l->c.a, w);
	l->sent++;
}

static void lane_got(struct lane *l, enum ibv_wc_status status, uint64_t id)
{
	CHECK(status == IBV_WC_SUCCESS, "a receive: %s", ibv_wc_status_str(status));
	lane_repost(l, id);
	atomic_fetch_add(&l->got, 1);
}

/* Polls until there is nothing. */
static unsigned lane_take(struct lane *l)
{
	unsigned taken = 0;

	if (l->ex) { /* one at a time: after rxe's ibv_next_poll has found nothing, its ibv_end_poll skips one */
		struct ibv_poll_cq_attr a = {0};
		for (int r; (r = ibv_start_poll(l->ex, &a)) != ENOENT; taken++) {
			CHECK(r == 0, "ibv_start_poll: %d", r);
			uint64_t id = l->ex->wr_id;
			enum ibv_wc_status status = l->ex->status;
			ibv_end_poll(l->ex);
			lane_got(l, status, id);
		}
		return taken;
	}
	for (;;) {
		struct ibv_wc wc[BURST];
		int n = ibv_poll_cq(l->cq, 1 + (int)draw(BURST), wc);
		CHECK(n >= 0, "ibv_poll_cq: %d", n);
		if (n == 0)
			return taken;
		taken += (unsigned)n;
		for (int i = 0; i < n; i++)
			lane_got(l, wc[i].status, wc[i].wr_id);
	}
}

static void lane_arm(struct lane *l, bool solicited_only)
{
	atomic_fetch_add(&l->arms, 1);
	ZERO(ibv_req_notify_cq(l->cq, solicited_only));
	atomic_fetch_add(&armed, 1);
}

/* Arms for all, or for what is solicited; sometimes for both, one after the other. */
static void lane_ask(struct lane *l, bool all, enum mode m)
{
	bool both = m == MIXED && all;

	if (both && draw(3) == 0)
		lane_arm(l, true);
	lane_arm(l, !all);
	if (both && draw(3) == 0)
		lane_arm(l, true);
}

/* What a sleeper checks when it was not woken. */
static void lost(struct lane *l)
{
	struct ibv_wc wc[BURST];
	int n = ibv_poll_cq(l->cq, BURST, wc);

	CHECK(n == 0, "LOST WAKE-UP: %d completions in an armed queue, no event in %d ms; after %lu races (seed %llu)", n, PATIENCE,
	      atomic_load(&armed), (unsigned long long)seed);
	FAIL("no event and no completion in %d ms: %lu of %lu arrived (seed %llu)", PATIENCE, l->got, l->sent, (unsigned long long)seed);
}

/* Sleeps until an event comes. */
static void lane_sleep(struct lane *l)
{
	struct pollfd p = {.fd = l->channel->fd, .events = POLLIN};
	struct ibv_cq *cq;
	void *context;

	if (poll(&p, 1, PATIENCE) != 1)
		lost(l);
	ZERO(ibv_get_cq_event(l->channel, &cq, &context));
	CHECK(cq == l->cq && context == l, "an event of another queue");
	atomic_fetch_add(&slept, 1);
	l->events++;
	if (++l->unacked > draw(64))
		lane_ack(l);
}

/* Messages before, during and after arming; sleeps until all have arrived. */
static void lane_race(struct lane *l, enum mode m)
{
	bool all = m == ALL || (m == MIXED && draw(2));
	unsigned n = 1 + draw(BURST - 1), before = draw(n + 1);

	for (unsigned i = 0; i < n; i++) {
		if (i == before) {
			dither();
			lane_ask(l, all, m);
		}
		if (draw(2))
			dither();
		/*
		 * A waiter for solicited completions also gets all that was sent before. A waiter
		 * for all completions wakes up at an unsolicited one.
		 */
		lane_send(l, (i == n - 1 && !all) || (m != ALL && draw(3) == 0));
	}
	if (before == n) {
		dither();
		lane_ask(l, all, m);
	}
	if (draw(4) == 0)
		dither();
	while (lane_take(l), l->got < l->sent) {
		lane_sleep(l);
		lane_ask(l, all, m);
	}
}

static void race_until(struct lane *l, enum mode m, unsigned long enough)
{
	while (atomic_load(&armed) < enough)
		lane_race(l, m);
}

static struct ibv_comp_channel *start(void)
{
	device = dev_open();
	return MADE(ibv_create_comp_channel(device.ctx));
}

static void finish(struct ibv_comp_channel *channel)
{
	ZERO(ibv_destroy_comp_channel(channel));
	dev_close(&device);
	printf("%lu races, %lu sleeps\n", atomic_load(&armed), atomic_load(&slept));
}

#endif
