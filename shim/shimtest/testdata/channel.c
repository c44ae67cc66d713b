/* Event channels: commands, waiting, options, migration, threads, fork, death. */
#include "t.h"

#include <poll.h>
#include <time.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

enum { GET_EVENT = 12, SET_OPTION = 14, MIGRATE_ID = 18, OPTION = 210 };

static int open_channel(int flags)
{
	int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC | flags);
	CHECK(fd >= 0);
	return fd;
}

static int get_event(int fd, uint64_t *v)
{
	return call(fd, GET_EVENT, 0, 0, v);
}

static void commands(void)
{
	char much[1100] = {0};
	struct stat st;
	int fd = open_channel(0);

	CHECK(fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && major(st.st_rdev) == 10 && minor(st.st_rdev) == 122);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(ask(fd, CMD_ECHO, 41) == 42);
	CHECK(call(fd, CMD_FAIL, ENODEV, 0, NULL) == ENODEV);
	CHECK(write(fd, much, 7) == -1 && errno == EINVAL);
	CHECK(write(fd, much, sizeof much) == -1 && errno == EINVAL);
	int other = dup(fd);
	CHECK(other >= 0);
	close(fd);
	CHECK(ask(other, CMD_ECHO, 7) == 8);
	close(other);
	CHECK(call(other, CMD_ECHO, 7, 0, NULL) == EBADF);
}

static void events(void)
{
	int fd = open_channel(O_NONBLOCK), ep = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event ev = {.events = EPOLLIN}, got;
	struct pollfd p = {.fd = fd, .events = POLLIN};
	uint64_t v = 0;

	CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
	CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) == 0);
	CHECK(poll(&p, 1, 0) == 0 && epoll_wait(ep, &got, 1, 0) == 0);
	CHECK(get_event(fd, &v) == EAGAIN);
	CHECK(call(fd, CMD_EVENT, 3, 0, NULL) == 0);
	CHECK(poll(&p, 1, 60000) == 1 && epoll_wait(ep, &got, 1, 60000) == 1);
	for (uint64_t left = 3; left > 0; left--)
		CHECK(get_event(fd, &v) == 0 && v == left);
	CHECK(get_event(fd, &v) == EAGAIN && poll(&p, 1, 0) == 0);
	close(ep);
	close(fd);
}

static void blocking(void)
{
	int fd = open_channel(0);
	uint64_t v = 0;

	CHECK(call(fd, CMD_SLOW, 100, 0, NULL) == 0); /* an event in 100 ms */
	CHECK(get_event(fd, &v) == 0 && v == 1);
	close(fd);
}

static void nothing(int s)
{
	(void)s;
}

static atomic_int waiting; /* thread that waits for an event */

static void *waiter(void *arg)
{
	uint64_t v = 0;
	int fd = *(int *)arg;
	atomic_store(&waiting, gettid());
	return (void *)(intptr_t)get_event(fd, &v);
}

/* Returns when the thread waits in recvfrom. */
static pthread_t start_waiter(int *fd)
{
	char path[64], text[64] = "";
	pthread_t t;

	atomic_store(&waiting, 0);
	CHECK(pthread_create(&t, NULL, waiter, fd) == 0);
	for (double start = now(); now() - start < 60; usleep(1000)) {
		if (!atomic_load(&waiting))
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%d/syscall", atomic_load(&waiting));
		FILE *f = fopen(path, "r");
		if (f && fgets(text, sizeof text, f) && atoi(text) == SYS_recvfrom) {
			fclose(f);
			return t;
		}
		if (f)
			fclose(f);
	}
	fprintf(stderr, "the thread does not wait: %s\n", text);
	_exit(1);
}

static void interrupted(void)
{
	struct sigaction sa = {.sa_handler = nothing};
	int fd = open_channel(0);
	pthread_t t;
	void *r = NULL;

	sigaction(SIGUSR1, &sa, NULL);
	t = start_waiter(&fd);
	CHECK(pthread_kill(t, SIGUSR1) == 0);
	CHECK(pthread_join(t, &r) == 0 && (intptr_t)r == EINTR);
	CHECK(ask(fd, CMD_ECHO, 1) == 2);
	close(fd);
}

static void cancelled(void)
{
	int fd = open_channel(0);
	pthread_t t;
	void *r = NULL;

	t = start_waiter(&fd);
	CHECK(pthread_cancel(t) == 0 && pthread_join(t, &r) == 0 && r == PTHREAD_CANCELED);
	CHECK(ask(fd, CMD_ECHO, 1) == 2); /* it held nothing */
	/* A thread that waits on a closed channel waits for ever, as in the kernel. */
	t = start_waiter(&fd);
	close(fd);
	fd = open_channel(0); /* may get the same number */
	CHECK(call(fd, CMD_EVENT, 1, 0, NULL) == 0);
	uint64_t v = 0;
	CHECK(get_event(fd, &v) == 0 && v == 1);
	CHECK(pthread_tryjoin_np(t, &r) == EBUSY);
	CHECK(pthread_cancel(t) == 0 && pthread_join(t, &r) == 0 && r == PTHREAD_CANCELED);
	close(fd);
}

struct option {
	struct header h;
	uint64_t value;
	uint32_t id, level, name, length;
};

static void options(void)
{
	static char bytes[5000] = "abcdefghij";
	struct {
		uint64_t length;
		char text[8];
	} seen;
	int fd = open_channel(0);
	struct option o = {{SET_OPTION, 24, 0}, (uintptr_t)bytes, 1, 0, 2, 10};

	CHECK(write(fd, &o, sizeof o) == sizeof o);
	CHECK(call(fd, OPTION, 0, 0, &seen) == 0 && seen.length == 10 && !memcmp(seen.text, "abcdefgh", 8));
	o.length = 0, o.value = 0;
	CHECK(write(fd, &o, sizeof o) == sizeof o);
	CHECK(call(fd, OPTION, 0, 0, &seen) == 0 && seen.length == 0);
	o.length = sizeof bytes, o.value = (uintptr_t)bytes;
	CHECK(write(fd, &o, sizeof o) == -1 && errno == EINVAL);
	o.length = 8, o.value = 8; /* nothing there */
	CHECK(write(fd, &o, sizeof o) == -1 && errno == EFAULT);
	CHECK(ask(fd, CMD_ECHO, 5) == 6);
	close(fd);
}

struct migrate {
	struct header h;
	uint64_t response;
	uint32_t id, fd;
};

static uint64_t migrate(int to, int from)
{
	uint64_t name = 0;
	struct migrate m = {{MIGRATE_ID, 16, 8}, (uintptr_t)&name, 3, (uint32_t)from};
	CHECK(write(to, &m, sizeof m) == sizeof m);
	return name;
}

static void migration(void)
{
	int a = open_channel(0), b = open_channel(0);
	uint64_t first = migrate(b, a), second = migrate(a, b);

	CHECK(first > 1000 && second > 1000 && first != second);
	CHECK(migrate(a, a) == first);
	CHECK(migrate(a, 0) == 0xffffffff);   /* no channel */
	CHECK(migrate(a, 4000) == 0xffffffff); /* not open */
	close(b);
	CHECK(migrate(a, b) == 0xffffffff);
	close(a);
}

static int crowded;

static void *talker(void *arg)
{
	uint64_t base = (uint64_t)(uintptr_t)arg << 32;
	for (uint64_t i = 0; i < 300; i++)
		CHECK(ask(crowded, CMD_ECHO, base + i) == base + i + 1);
	return NULL;
}

static void threads(void)
{
	pthread_t t[4];
	crowded = open_channel(0);
	for (uintptr_t i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, talker, (void *)i) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	close(crowded);
}

static void forked(void)
{
	int fd = open_channel(0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) { /* another process's channel is none of the child's */
		uint64_t v;
		CHECK(call(fd, CMD_ECHO, 1, 0, &v) == EIO);
		close(fd);
		_exit(0);
	}
	wait_ok(pid);
	CHECK(ask(fd, CMD_ECHO, 1) == 2);
	close(fd);
}

static void death(void)
{
	int fd = open_channel(0), other = open_channel(0);
	pthread_t t;
	void *r = NULL;

	t = start_waiter(&fd);
	CHECK(call(other, CMD_DIE, 0, 0, NULL) == EIO);
	CHECK(pthread_join(t, &r) == 0 && (intptr_t)r == EIO);
	CHECK(call(fd, CMD_ECHO, 0, 0, NULL) == EIO);
	/* librdmacm's thread reads as long as poll reports data. */
	struct timespec begin, end;
	uint64_t v = 0;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (int i = 0; i < 4; i++)
		CHECK(get_event(fd, &v) == EIO);
	clock_gettime(CLOCK_MONOTONIC, &end);
	CHECK((end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000 >= 150);
	close(fd);
	close(other);
}

int main(void)
{
	commands();
	events();
	blocking();
	interrupted();
	cancelled();
	options();
	migration();
	threads();
	forked();
	death(); /* the last */
	return 0;
}
