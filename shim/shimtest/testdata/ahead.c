/* Answers ahead: commands that the daemon has answered before they are made. */
#include "t.h"

#include <poll.h>

enum { QUERY_ROUTE = 5, GET_EVENT = 12, FORESEE = 211, CHANGE = 212, ASKED = 213, STOCK = 214 };

struct query {
	struct header h;
	uint64_t response;
	uint32_t id, key;
};

static int open_channel(void)
{
	int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

static int query_with(int fd, uint32_t number, uint32_t id, uint32_t key, uint16_t room, uint64_t *v)
{
	struct query q = {{number, 16, room}, (uintptr_t)v, id, key};
	ssize_t n = write(fd, &q, sizeof q);
	CHECK(n < 0 || n == (ssize_t)sizeof q);
	return n < 0 ? errno : 0;
}

static uint64_t query(int fd, uint32_t id)
{
	uint64_t v = 0;
	CHECK(query_with(fd, QUERY_ROUTE, id, 0, sizeof v, &v) == 0);
	return v;
}

/* A channel with answers ahead, one of them for id. */
static int farsighted(uint32_t id)
{
	int fd = open_channel();
	CHECK(call(fd, FORESEE, id, 0, NULL) == 0); /* brings the mailbox */
	CHECK(call(fd, FORESEE, id, 0, NULL) == 0);
	return fd;
}

static void alone(void)
{
	int fd = farsighted(3);
	uint64_t v = query(fd, 3), other = 0;

	CHECK(query(fd, 3) == v && ask(fd, ASKED, 0) == 0);
	CHECK(query(fd, 4) == v && ask(fd, ASKED, 0) == 1);        /* it said nothing of 4, */
	CHECK(query(fd, 3 + 1016) == v && ask(fd, ASKED, 0) == 2); /* nor of the one that shares its place */
	CHECK(query_with(fd, QUERY_ROUTE, 3, 9, 8, &other) == 0 && !memcmp(&other, "nine....", 8));
	CHECK(ask(fd, ASKED, 0) == 2);
	CHECK(query_with(fd, QUERY_ROUTE, 3, 0, 7, &other) == 0 && ask(fd, ASKED, 0) == 3); /* no room */
	CHECK(ask(fd, CHANGE, 3) == v + 1);
	CHECK(query(fd, 3) == v + 1 && ask(fd, ASKED, 0) == 4);
	CHECK(query(fd, 3) == v + 1 && ask(fd, ASKED, 0) == 5);
	CHECK(call(fd, FORESEE, 3, 0, NULL) == 0);
	CHECK(query(fd, 3) == v + 1 && ask(fd, ASKED, 0) == 5);
	CHECK(call(fd, FORESEE, 3 + 1016, 0, NULL) == 0); /* in its place */
	CHECK(query(fd, 3) == v + 1 && ask(fd, ASKED, 0) == 6);
	CHECK(ask(fd, CHANGE, 3) == v + 2);
	CHECK(query(fd, 3 + 1016) == v && ask(fd, ASKED, 0) == 7);

	/* A new channel with the same number has its own answers. */
	CHECK(call(fd, FORESEE, 3, 0, NULL) == 0 && close(fd) == 0);
	int again = farsighted(4);
	CHECK(again == fd && query(again, 3) >> 32 != v >> 32 && query(again, 4) >> 32 != v >> 32);
	CHECK(ask(again, ASKED, 0) == 1 && close(again) == 0);
}

static void forked(void)
{
	int fd = farsighted(3);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		uint64_t v;
		_exit(query_with(fd, QUERY_ROUTE, 3, 0, 8, &v) != EIO);
	}
	wait_ok(pid);
	CHECK(query(fd, 3) != 0 && ask(fd, ASKED, 0) == 0);
	close(fd);
}

enum { IDS = 4, CHANGES = 400 };
static int crowded;
static _Atomic uint64_t least[IDS]; /* the value has been this since */
static atomic_bool stop;

static void *reader(void *arg)
{
	for (uint32_t i = 0; !atomic_load(&stop); i++) {
		uint32_t id = (i + (uint32_t)(uintptr_t)arg) % IDS;
		uint64_t floor = atomic_load(&least[id]), v = query(crowded, id);
		CHECK(v >= floor && v <= floor + (uint64_t)CHANGES);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t t[3];
	crowded = farsighted(0);
	atomic_store(&stop, false);
	for (uint32_t id = 0; id < IDS; id++)
		atomic_store(&least[id], query(crowded, id));
	for (uintptr_t i = 0; i < 3; i++)
		CHECK(pthread_create(&t[i], NULL, reader, (void *)i) == 0);
	for (uint32_t i = 0; i < CHANGES; i++) {
		uint64_t v = ask(crowded, CHANGE, i % IDS);
		atomic_store(&least[i % IDS], v);
		CHECK(call(crowded, FORESEE, i % IDS, 0, NULL) == 0);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	close(crowded);
}

/* A GET_EVENT as librdmacm makes it. */
static int get_event(int fd, uint64_t *v)
{
	uint64_t response[336 / 8] = {0};
	struct {
		struct header h;
		uint64_t response;
	} c = {{GET_EVENT, 8, sizeof response}, (uintptr_t)response};
	ssize_t n = write(fd, &c, sizeof c);
	CHECK(n < 0 || n == (ssize_t)sizeof c);
	*v = response[0];
	return n < 0 ? errno : 0;
}

static void shelf(void)
{
	int fd = farsighted(0);
	struct pollfd p = {.fd = fd, .events = POLLIN};
	uint64_t v, gets = ask(fd, STOCK, 6);

	CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	for (uint64_t left = 6; left > 0; left--) {
		CHECK(poll(&p, 1, 60000) == 1);
		CHECK(get_event(fd, &v) == 0 && v == left);
		CHECK(left == 1 || query(fd, (uint32_t)left) == 1000 + left);
	}
	CHECK(ask(fd, ASKED, 0) == 0);
	CHECK(poll(&p, 1, 0) == 0 && get_event(fd, &v) == EAGAIN);
	CHECK(ask(fd, STOCK, 1) == gets + 1); /* for the last; the vain one only looked */
	CHECK(get_event(fd, &v) == 0 && v == 1 && get_event(fd, &v) == EAGAIN);
	close(fd);
}

static atomic_int events;
static _Atomic uint64_t sum;

static void *taker(void *arg)
{
	uint64_t v;
	(void)arg;
	while (!atomic_load(&stop))
		if (get_event(crowded, &v) == 0) {
			atomic_fetch_add(&sum, v);
			atomic_fetch_add(&events, 1);
		}
	return NULL;
}

/* Each event is delivered once, to any thread. */
static void takers(void)
{
	enum { ROUNDS = 100, EACH = 6 };
	pthread_t t[3];
	crowded = farsighted(0);
	CHECK(fcntl(crowded, F_SETFL, O_NONBLOCK) == 0);
	atomic_store(&stop, false);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&t[i], NULL, taker, NULL) == 0);
	for (int i = 1; i <= ROUNDS; i++) {
		ask(crowded, STOCK, EACH);
		for (double start = now(); atomic_load(&events) < i * EACH;)
			CHECK(now() - start < 60);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	CHECK(atomic_load(&events) == ROUNDS * EACH && atomic_load(&sum) == ROUNDS * EACH * (EACH + 1) / 2);
	close(crowded);
}

int main(void)
{
	alone();
	shelf();
	takers();
	forked();
	threads();
	return 0;
}
