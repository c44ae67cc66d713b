/* Answers ahead: commands that the daemon has answered before they are made. */
#include "t.h"

enum { QUERY_ROUTE = 5, FORESEE = 211, CHANGE = 212, ASKED = 213 };

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

/* A channel on which answers are given ahead, with one of id. */
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
	CHECK(query(fd, 3 + 1016) == v && ask(fd, ASKED, 0) == 2); /* nor of who shares its place */
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

	/* Another channel under that number has answers of its own. */
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

int main(void)
{
	alone();
	forked();
	threads();
	return 0;
}
