/* fork with registered memory: from one thread, from one of many, with exec, with DONTFORK. */
#include "t.h"

#include <malloc.h>

#define N (1 << 20)
#define PAGES (N / 4096)

static char *buffer;
static _Atomic int stop;

/* Exercises the allocator, which must work with the inherited memory. */
static void churn(void)
{
	void *p[64] = {0};
	for (int i = 0; i < 2000; i++) {
		free(p[i % 64]);
		p[i % 64] = malloc((size_t)(i * 97 % 5000) + 1);
		CHECK(p[i % 64]);
		memset(p[i % 64], i, (size_t)(i * 97 % 5000) + 1);
	}
	for (int i = 0; i < 64; i++)
		free(p[i]);
}

/* A child has the bytes from the moment of the fork, and keeps them. */
static void one_thread(int fd)
{
	char *small = malloc(3000);
	int up[2], down[2];
	char c;
	CHECK(pipe(up) == 0 && pipe(down) == 0);
	memset(small, 1, 3000);
	memset(buffer, 1, N);
	reg_as(fd, small, 3000, SHARED);
	reg_as(fd, buffer, N, SHARED);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		uint64_t v;
		CHECK(small[0] == 1 && buffer[N - 1] == 1);
		memset(buffer, 3, N / 2);
		small[1] = 3;
		CHECK(write(up[1], "x", 1) == 1 && read(down[0], &c, 1) == 1);
		CHECK(small[0] == 1 && small[1] == 3 && buffer[N - 1] == 1 && buffer[0] == 3);
		CHECK(call(fd, CMD_ECHO, 1, 0, &v) == EIO);
		churn();
		close(fd);
		/* a device of its own */
		int own = open_device();
		CHECK(ask(own, CMD_ECHO, 1) == 2);
		buffer[5] = 77;
		reg_as(own, buffer, N, SHARED);
		CHECK((ask(own, CMD_PEEK, (uintptr_t)buffer) >> 40 & 0xff) == 77 && buffer[N - 1] == 1);
		pid_t grandchild = fork();
		if (grandchild == 0) {
			CHECK(buffer[5] == 77);
			churn();
			_exit(0);
		}
		wait_ok(grandchild);
		exit(0);
	}
	CHECK(read(up[0], &c, 1) == 1);
	CHECK(buffer[0] == 1 && small[1] == 1); /* the child's writes are its own */
	memset(buffer, 2, N);
	memset(small, 2, 3000);
	CHECK(write(down[1], "x", 1) == 1);
	wait_ok(pid);
	CHECK(ask(fd, CMD_PEEK, (uintptr_t)buffer) == 0x0202020202020202);
	CHECK(buffer[5] == 2);
	CHECK(call(fd, CMD_POKE, (uintptr_t)buffer, 55, NULL) == 0 && *(uint64_t *)buffer == 55);
	CHECK(system("exit 0") == 0);
	free(small);
	for (int i = 0; i < 2; i++) {
		close(up[i]);
		close(down[i]);
	}
}

static void kept_from_children(int fd)
{
	char *p = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char vec[PAGES];
	p[0] = 1;
	CHECK(madvise(p, N / 2, MADV_DONTFORK) == 0);
	reg_as(fd, p, N, SHARED);
	pid_t pid = fork();
	if (pid == 0) {
		CHECK(mincore(p, N / 2, vec) == -1 && errno == ENOMEM);
		CHECK(mincore(p + N / 2, N / 2, vec) == 0 && p[N / 2] == 0);
		_exit(0);
	}
	wait_ok(pid);
	CHECK(p[0] == 1);
	CHECK(madvise(p, N / 2, MADV_DOFORK) == 0);
	munmap(p, N);
}

struct worker {
	pthread_t thread;
	int number, fd;
	uint64_t count[PAGES];
};

/* Counts up in two words of every page, the second after the first. */
static void *writes(void *arg)
{
	struct worker *w = arg;
	while (!stop)
		for (int page = 0; page < PAGES; page++) {
			volatile uint64_t *slot =
				(volatile uint64_t *)(buffer + page * 4096 + 1024 + w->number * 64);
			CHECK(slot[0] == w->count[page] && slot[1] == w->count[page]);
			slot[0] = ++w->count[page];
			slot[1] = w->count[page];
		}
	return NULL;
}

/* The daemon's writes are visible at once, and are not undone. */
static void *pokes(void *arg)
{
	struct worker *w = arg;
	for (uint64_t i = 1; !stop; i++) {
		volatile uint64_t *slot = (volatile uint64_t *)(buffer + i % PAGES * 4096 + 2048);
		CHECK(*slot == w->count[i % PAGES]);
		CHECK(call(w->fd, CMD_POKE, (uintptr_t)slot, i, NULL) == 0);
		CHECK(*slot == i);
		w->count[i % PAGES] = i;
	}
	return NULL;
}

/* A small buffer in a thread's own arena shares its page with the allocator's state. */
static void *allocates(void *arg)
{
	struct worker *w = arg;
	char *p = malloc(200);
	memset(p, 6, 200);
	reg_as(w->fd, p, 200, SHARED);
	while (!stop) {
		churn();
		CHECK(p[0] == 6 && p[199] == 6);
	}
	free(p);
	return NULL;
}

static void in_child(void)
{
	uint64_t seen[PAGES][2];
	for (int turn = 0; turn < 2; turn++) {
		for (int page = 0; page < PAGES; page++)
			for (int i = 0; i < 2; i++) {
				uint64_t *slot = (uint64_t *)(buffer + page * 4096 + 1024 + i * 64);
				CHECK(slot[0] == slot[1] || slot[0] == slot[1] + 1);
				if (turn)
					CHECK(slot[0] == seen[page][i]);
				seen[page][i] = slot[0];
			}
		churn();
		usleep(1000);
	}
	_exit(0);
}

static void many_threads(int fd, int rounds)
{
	static struct worker w[4];
	void *(*role[4])(void *) = {writes, writes, pokes, allocates};
	memset(buffer, 0, N);
	memset(w, 0, sizeof w);
	stop = 0;
	for (int i = 0; i < 4; i++) {
		w[i].number = i;
		w[i].fd = fd;
		CHECK(pthread_create(&w[i].thread, NULL, role[i], &w[i]) == 0);
	}
	for (int i = 0; i < rounds; i++) {
		usleep(500);
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			in_child();
		wait_ok(pid);
	}
	stop = 1;
	for (int i = 0; i < 4; i++)
		pthread_join(w[i].thread, NULL);
	for (int i = 0; i < 2; i++)
		for (int page = 0; page < PAGES; page++) {
			uint64_t *slot = (uint64_t *)(buffer + page * 4096 + 1024 + i * 64);
			CHECK(slot[1] == w[i].count[page]);
			if (page % 16 == 0)
				CHECK(ask(fd, CMD_PEEK, (uintptr_t)slot) == w[i].count[page]);
		}
}

/*
 * One thread forks while another is inside malloc, with its lock, about to write to a
 * registered page: neither may wait for the other.
 */
static void *forks(void *arg)
{
	for (int i = 0; i < *(int *)arg; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			churn();
			_exit(0);
		}
		wait_ok(pid);
	}
	stop = 1;
	return NULL;
}

static void locked_allocator(int fd, int rounds)
{
	pthread_t t;
	char *p[200];
	stop = 0;
	for (int i = 0; i < 200; i++) { /* all of this heap becomes shared */
		p[i] = malloc(2000);
		memset(p[i], i, 2000);
		reg_as(fd, p[i], 2000, SHARED);
	}
	for (int i = 0; i < 200; i += 2)
		free(p[i]);
	CHECK(pthread_create(&t, NULL, forks, &rounds) == 0);
	while (!stop)
		churn();
	pthread_join(t, NULL);
	for (int i = 1; i < 200; i += 2) {
		CHECK(p[i][0] == (char)i && p[i][1999] == (char)i);
		free(p[i]);
	}
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 40;
	int fd = open_device();
	buffer = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(buffer != MAP_FAILED);
	one_thread(fd);
	kept_from_children(fd);
	if (rounds) {
		locked_allocator(fd, rounds);
		many_threads(fd, rounds);
	}
	one_thread(fd);
	return 0;
}
