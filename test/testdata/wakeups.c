/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No wake-up is lost: programs arm a completion queue, poll it once more and sleep, while
 * completions arrive at random moments around that. Whoever sleeps for a minute looks: a
 * completion in the queue that it was armed for is a lost wake-up.
 *
 *   wakeups list | wakeups CASE [RACES [SEED]]
 *
 * A race is one arm with a completion under way. One thread is enough for it: it posts a
 * message to itself, which the daemon carries meanwhile, dithers, and arms. The last line
 * before "ok" is "N races, …".
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "lane.h"

static void alone(enum mode m, bool extended)
{
	struct ibv_comp_channel *channel = start();
	struct lane l;

	lane_open(&l, channel, extended);
	race_until(&l, m, races);
	lane_close(&l);
	finish(channel);
}

static void all(void) { alone(ALL, false); }
static void solicited(void) { alone(SOLICITED, false); }
static void mixed(void) { alone(MIXED, false); }
static void extended(void) { alone(MIXED, true); }

/* ---- several threads on one channel ---- */

static struct lane lanes[LANES];
static int stop_fd;
static pthread_mutex_t acking = PTHREAD_MUTEX_INITIALIZER;

/* Takes events of any lane until it must stop. */
static void *taker(void *arg)
{
	struct ibv_comp_channel *channel = arg;

	for (;;) {
		struct pollfd p[2] = {{.fd = channel->fd, .events = POLLIN}, {.fd = stop_fd, .events = POLLIN}};
		struct ibv_cq *cq;
		void *context;
		CHECK(poll(p, 2, -1) > 0, "poll: %s", strerror(errno));
		if (p[1].revents)
			return NULL;
		if (ibv_get_cq_event(channel, &cq, &context)) {
			CHECK(errno == EAGAIN, "ibv_get_cq_event: %s", strerror(errno));
			continue; /* another thread has it */
		}
		struct lane *l = context;
		CHECK(cq == l->cq, "an event of another queue");
		atomic_fetch_add(&slept, 1);
		l->events++;
		if (draw(4) == 0)
			dither();
		lane_arm(l, l != &lanes[0] && draw(2)); /* what it asks for is at least what is sent */
		lane_take(l);
		ZERO(pthread_mutex_lock(&acking));
		if (++l->unacked > 8)
			lane_ack(l);
		ZERO(pthread_mutex_unlock(&acking));
	}
}

static void await(struct lane *l)
{
	double until = vt_now() + PATIENCE / 1e3;

	while (atomic_load(&l->got) < l->sent) {
		if (vt_now() > until)
			lost(l);
		sched_yield();
	}
}

static void threads(void)
{
	struct ibv_comp_channel *channel = start();
	pthread_t t[TAKERS];

	ZERO(fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	stop_fd = eventfd(0, 0);
	for (int i = 0; i < LANES; i++) {
		lane_open(&lanes[i], channel, i == 2);
		lane_arm(&lanes[i], false);
	}
	for (int i = 0; i < TAKERS; i++)
		ZERO(pthread_create(&t[i], NULL, taker, channel));
	while (atomic_load(&armed) < races) {
		for (unsigned n = 1 + draw(2 * LANES); n > 0; n--) {
			struct lane *l = &lanes[draw(LANES)];
			if (l->sent - l->got < RECEIVES / 2)
				lane_send(l, l != &lanes[0]); /* the first lane is armed for all */
			dither();
		}
		for (int i = 0; i < LANES && draw(2); i++)
			await(&lanes[i]);
	}
	for (int i = 0; i < LANES; i++)
		await(&lanes[i]);
	ZERO(eventfd_write(stop_fd, 1));
	for (int i = 0; i < TAKERS; i++)
		ZERO(pthread_join(t[i], NULL));
	for (int i = 0; i < LANES; i++)
		lane_close(&lanes[i]);
	finish(channel);
}

/* ---- a queue that moves ---- */

static _Atomic bool done;
static _Atomic unsigned long resized;

static void *resizer(void *arg)
{
	struct lane *l = arg;

	while (!atomic_load(&done)) {
		ZERO(ibv_resize_cq(l->cq, RECEIVES + (int)draw(500)));
		atomic_fetch_add(&resized, 1);
		usleep(draw(400));
	}
	return NULL;
}

static void resize(void)
{
	struct ibv_comp_channel *channel = start();
	struct lane l;
	pthread_t t;

	lane_open(&l, channel, false);
	ZERO(pthread_create(&t, NULL, resizer, &l));
	while (!atomic_load(&resized)) /* on a busy machine all races may be over before it runs */
		sched_yield();
	race_until(&l, MIXED, races);
	atomic_store(&done, true);
	ZERO(pthread_join(t, NULL));
	printf("resized %lu times\n", atomic_load(&resized));
	lane_close(&l);
	finish(channel);
}

/* ---- a queue that is destroyed ---- */

static bool readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

/* Polls until everything that was sent is there. */
static void all_taken(struct lane *l, const char *what)
{
	double until = vt_now() + PATIENCE / 1e3;

	while (lane_take(l), l->got < l->sent)
		CHECK(vt_now() < until, "%s: the message does not arrive", what);
}

/* A message to a queue that is not armed gives no event. */
static void silent(struct lane *l, const char *what)
{
	lane_send(l, true);
	all_taken(l, what);
	qp_state(&l->c.a); /* a command: the daemon has done what it did about the completion */
	CHECK(!readable(l->channel->fd), "%s: an event, and nobody armed the queue", what);
}

struct destruction {
	struct ibv_cq *cq;
	_Atomic bool ended;
};

static void *destroyer(void *arg)
{
	struct destruction *x = arg;

	ZERO(ibv_destroy_cq(x->cq));
	atomic_store(&x->ended, true);
	return NULL;
}

/*
 * Queues are destroyed armed, with events that nobody has read, which vanish, and with events
 * that are not acknowledged, for which destroying waits. The next queue is not armed, though
 * it may have the same handle.
 */
static void destroyed(void)
{
	struct ibv_comp_channel *channel = start();

	while (atomic_load(&armed) < races) {
		struct lane l;
		struct destruction x = {0};
		pthread_t t;

		lane_open(&l, channel, draw(4) == 0);
		silent(&l, "a new queue");
		for (unsigned n = draw(8); n > 0; n--)
			lane_race(&l, MIXED);
		if (draw(2))
			lane_arm(&l, draw(2)); /* and now in flight, or reported and not read */
		for (unsigned n = draw(BURST); n > 0; n--)
			lane_send(&l, draw(2));
		if (draw(2))
			dither();
		couple_free(&l.c);
		if (draw(2))
			lane_arm(&l, draw(2));
		x.cq = l.cq;
		ZERO(pthread_create(&t, NULL, destroyer, &x));
		if (l.unacked) {
			for (unsigned n = draw(50); n > 0; n--)
				sched_yield();
			CHECK(!atomic_load(&x.ended), "destroyed with %u events that are not acknowledged", l.unacked);
			for (; l.unacked > 0; l.unacked--)
				ibv_ack_cq_events(l.cq, 1);
		}
		double until = vt_now() + PATIENCE / 1e3;
		while (!atomic_load(&x.ended)) {
			CHECK(vt_now() < until, "ibv_destroy_cq does not return");
			sched_yield();
		}
		ZERO(pthread_join(t, NULL));
		CHECK(!readable(channel->fd), "an event of a queue that is destroyed");
		ZERO(ibv_destroy_cq(l.sends));
		buf_free(&l.b);
	}
	finish(channel);
}

/* ---- an error is always solicited ---- */

static void errors(void)
{
	struct ibv_comp_channel *channel = start();
	struct lane l;

	lane_cq(&l, channel, false);
	while (atomic_load(&armed) < races) {
		unsigned n = 1 + draw(BURST), got = 0;
		l.c = couple_new(&device, (struct opt){.depth = DEPTH, .send_cq = l.sends, .recv_cq = l.cq});
		for (uint64_t i = 0; i < n; i++)
			lane_repost(&l, i);
		bool late = draw(2);
		if (!late)
			lane_arm(&l, true);
		end_to(&l.c.b, IBV_QPS_ERR); /* every receive is flushed, at once or a little later */
		if (draw(2))
			dither();
		if (late)
			lane_arm(&l, true);
		for (;;) {
			struct ibv_wc wc;
			for (; ibv_poll_cq(l.cq, 1, &wc) == 1; got++)
				CHECK(wc.status == IBV_WC_WR_FLUSH_ERR, "a flushed receive: %s", ibv_wc_status_str(wc.status));
			if (got == n)
				break;
			lane_sleep(&l);
			lane_arm(&l, true);
		}
		while (readable(channel->fd))
			lane_sleep(&l);
		couple_free(&l.c);
	}
	l.alone = true;
	lane_close(&l);
	finish(channel);
}

/* ---- fork ---- */

/* Makes sure that the queue is not armed, and that no event is there. */
static void disarm(struct lane *l)
{
	all_taken(l, "before a fork");
	lane_arm(l, false);
	lane_send(l, false);
	do
		lane_sleep(l);
	while (lane_take(l), l->got < l->sent);
	qp_state(&l->c.a);
	while (readable(l->channel->fd))
		lane_sleep(l);
}

static void child(struct lane *l, unsigned kind)
{
	if (kind == 0)
		return;
	if (kind == 1) { /* it is not the child's: refused, or without effect */
		CHECK(ibv_req_notify_cq(l->cq, 0) != 0, "a child armed its parent's queue");
		return;
	}
	/* A device of its own. */
	atomic_store(&armed, 0);
	struct ibv_comp_channel *channel = start();
	struct lane own;
	lane_open(&own, channel, false);
	race_until(&own, MIXED, 50);
	lane_close(&own);
}

static void forks(void)
{
	struct ibv_comp_channel *channel = start();
	struct lane l;
	unsigned long children = 0;

	lane_open(&l, channel, false);
	while (atomic_load(&armed) < races) {
		unsigned kind = draw(3);
		bool quiet = kind == 1 && draw(2);
		if (quiet)
			disarm(&l);
		else if (draw(2))
			lane_arm(&l, draw(2));
		if (!quiet && draw(2))
			lane_send(&l, true); /* under way during the fork */
		fflush(NULL);
		pid_t pid = fork();
		CHECK(pid >= 0, "fork: %s", strerror(errno));
		if (pid == 0) {
			child(&l, kind);
			_exit(0);
		}
		children++;
		if (quiet) {
			reap(pid, "a child that arms");
			silent(&l, "a queue that a child armed");
		}
		for (unsigned n = draw(30); n > 0; n--)
			lane_race(&l, MIXED);
		if (!quiet)
			reap(pid, "a child");
	}
	printf("%lu children\n", children);
	lane_close(&l);
	finish(channel);
}

/* ---- another process, which is stopped and killed ---- */

/* One end of a pair of processes. */
static void lane_join(struct lane *l, struct ibv_comp_channel *channel, int fd)
{
	struct opt o = {.depth = DEPTH, .timeout = 10, .retry = 5};

	lane_cq(l, channel, draw(2));
	l->alone = true;
	o.send_cq = l->sends;
	o.recv_cq = l->cq;
	l->c.a = end_new(&device, o); /* its receives as well */
	for (uint64_t i = 0; i < RECEIVES; i++)
		lane_repost(l, i);
	end_connect(&l->c.a, swap_addr(fd, end_addr(&l->c.a, NULL)));
	barrier(fd);
}

/* Answers every message and sleeps between them, until the peer stops asking or it is killed. */
static void peer(void)
{
	struct ibv_comp_channel *channel = start();
	struct lane l;

	seed += (uint64_t)getpid();
	lane_join(&l, channel, PEER_FD);
	for (unsigned long answered = 0;;) {
		bool all = draw(2);
		lane_arm(&l, !all);
		if (draw(2))
			dither();
		lane_take(&l);
		while (answered < l.got) {
			lane_send(&l, true);
			answered++;
		}
		struct pollfd p[2] = {{.fd = channel->fd, .events = POLLIN}, {.fd = PEER_FD, .events = POLLIN}};
		CHECK(poll(p, 2, -1) > 0, "poll: %s", strerror(errno));
		if (p[1].revents)
			exit(0); /* we are done, or the one that asked is gone */
		lane_sleep(&l);
	}
}

struct nuisance {
	pid_t pid;
	_Atomic bool enough;
	unsigned times;
};

/* Stops and continues a process, at random moments. */
static void *nuisance(void *arg)
{
	struct nuisance *x = arg;

	while (!atomic_load(&x->enough)) {
		ZERO(kill(x->pid, SIGSTOP));
		usleep(draw(2000));
		ZERO(kill(x->pid, SIGCONT));
		x->times++;
		usleep(draw(2000));
	}
	return NULL;
}

/* Asks n times and sleeps until each answer. */
static void converse(struct lane *l, unsigned n)
{
	for (; n > 0; n--) {
		bool first = draw(2);
		if (first)
			lane_send(l, true);
		if (draw(2))
			dither();
		lane_arm(l, draw(2));
		if (!first)
			lane_send(l, true);
		while (lane_take(l), l->got < l->sent) {
			lane_sleep(l);
			lane_arm(l, draw(2));
		}
	}
}

static void stopped(void)
{
	struct ibv_comp_channel *channel = start();
	struct nuisance x = {0};
	struct lane l;
	pthread_t t;
	int fd = spawn_peer(&x.pid, ".peer");

	lane_join(&l, channel, fd);
	ZERO(pthread_create(&t, NULL, nuisance, &x));
	while (atomic_load(&armed) < races)
		converse(&l, 10);
	atomic_store(&x.enough, true);
	ZERO(pthread_join(t, NULL));
	printf("stopped %u times\n", x.times);
	close(fd);
	reap(x.pid, "the peer");
	ZERO(ibv_destroy_qp(l.c.a.qp));
	lane_close(&l);
	finish(channel);
}

/*
 * The peer is killed at any moment, mostly asleep. Sends to it fail, and a thread that sleeps until
 * then wakes up.
 */
static void killed(void)
{
	struct ibv_comp_channel *channel = start();
	unsigned long kills = 0;

	while (atomic_load(&armed) < races) {
		pid_t pid;
		int fd = spawn_peer(&pid, ".peer"), status;
		struct ibv_wc wc;
		struct lane l;

		lane_join(&l, channel, fd);
		converse(&l, draw(PEER_MESSAGES));
		usleep(draw(300));
		unsigned before = draw(3);
		if (before == 0)
			lane_send(&l, true);
		if (before < 2)
			dither();
		ZERO(kill(pid, SIGKILL));
		CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status), "the peer ended with status %#x", status);
		kills++;
		/* Flushed receives arrive at the armed queue; the failed send tells when. */
		lane_arm(&l, true);
		do { /* until the daemon has noticed, it takes messages for the peer */
			post_send(&l.c.a, &l.b, RECEIVES * 64, 8, 1);
			wc = wait_wc(l.sends, "a send to a peer that was killed");
		} while (wc.status == IBV_WC_SUCCESS);
		CHECK(wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_WR_FLUSH_ERR, "a send to a peer that was killed: %s",
		      ibv_wc_status_str(wc.status));
		for (bool flushed = false; !flushed;) {
			int n;
			while ((n = ibv_poll_cq(l.cq, 1, &wc)) == 1)
				flushed |= wc.status == IBV_WC_WR_FLUSH_ERR;
			CHECK(n == 0, "ibv_poll_cq: %d", n);
			if (flushed)
				break;
			lane_sleep(&l);
			lane_arm(&l, true);
		}
		close(fd);
		ZERO(ibv_destroy_qp(l.c.a.qp));
		lane_close(&l);
	}
	printf("%lu killed\n", kills);
	finish(channel);
}

static const struct vt_case cases[] = {
	{"all", all}, {"solicited", solicited}, {"mixed", mixed}, {"extended", extended}, {"threads", threads}, {"resize", resize},
	{"destroyed", destroyed}, {"errors", errors}, {"forks", forks}, {"stopped", stopped}, {"killed", killed}, {".peer", peer},
};

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(argc >= 2, "usage: %s list | CASE [RACES [SEED]]", argv[0]);
	if (argc > 2)
		races = strtoul(argv[2], NULL, 10);
	if (argc > 3)
		seed = strtoull(argv[3], NULL, 10);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (!strcmp(argv[1], "list")) {
			if (cases[i].name[0] != '.')
				puts(cases[i].name);
		} else if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			printf("ok %s\n", cases[i].name);
			return 0;
		}
	}
	return !!strcmp(argv[1], "list");
}
