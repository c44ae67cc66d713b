/* Commands of a program whose daemon hands out mailboxes, in one of several ways. */
#include "t.h"

#include <sys/resource.h>
#include <sys/syscall.h>

static int device;

static void echoes(int fd, uint64_t from, int n)
{
	for (int i = 0; i < n; i++)
		CHECK(ask(fd, CMD_ECHO, from + (uint64_t)i) == from + (uint64_t)i + 1);
}

static void *thread(void *arg)
{
	echoes(device, (uintptr_t)arg << 32, 300);
	return NULL;
}

static atomic_bool stop;

static void *until_stopped(void *arg)
{
	for (uint64_t i = 0; !atomic_load(&stop); i += 10)
		echoes(device, ((uint64_t)(uintptr_t)arg << 32) + i, 10);
	return NULL;
}

static void alone(void)
{
	for (int i = 0; i < 100; i++) {
		echoes(device, (uint64_t)i, 10);
		CHECK(call(device, CMD_FAIL, ENOSPC, 0, NULL) == ENOSPC);
		if (i % 50 == 0)
			CHECK(ask(device, CMD_SLOW, 60) == 61); /* longer than anybody looks */
		if (i % 20 == 0) {
			int32_t fd = -1;
			CHECK(call(device, CMD_CREATE_COMP_CHANNEL, 0, 0, &fd) == 0 && fd >= 0);
			CHECK(close(fd) == 0);
		}
	}
}

static void threads(void)
{
	pthread_t t[4];
	for (uintptr_t i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, thread, (void *)i) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
}

/* Runs f while two threads make commands. */
static void meanwhile(void (*f)(void))
{
	pthread_t t[2];
	for (uintptr_t i = 0; i < 2; i++)
		CHECK(pthread_create(&t[i], NULL, until_stopped, (void *)(i + 1)) == 0);
	f();
	atomic_store(&stop, true);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	echoes(device, 5, 100);
}

/* Inherited devices do not work in a child; its own do. */
static void forks(void)
{
	for (int i = 0; i < 10; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			CHECK(call(device, CMD_ECHO, 1, 0, NULL) == EIO);
			int own = open(DEVICE, O_RDWR | O_CLOEXEC);
			CHECK(own >= 0);
			echoes(own, 1000000, 50);
			CHECK(close(device) == 0);
			echoes(own, 2000000, 50);
			_exit(0);
		}
		echoes(device, 3000000, 50);
		wait_ok(pid);
	}
}

static void vforks(void)
{
	for (int i = 0; i < 10; i++) {
		pid_t pid = vfork();
		if (pid == 0) {
			if (call(device, CMD_ECHO, 1, 0, NULL) != EIO)
				_exit(2);
			execl("/bin/true", "true", (char *)NULL);
			_exit(1);
		}
		echoes(device, 3000000, 20);
		wait_ok(pid);
	}
}

/* No handler of ours runs: the child has our table and our mailbox. */
static void clones(void)
{
	for (int i = 0; i < 10; i++) {
		long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(call(device, CMD_ECHO, 1, 0, NULL) != EIO);
		echoes(device, 3000000, 20);
		wait_ok((pid_t)pid);
	}
}

/* Other processes are stopped and killed in the middle of a request. */
static void stopped(void)
{
	for (int i = 0; i < 10; i++) {
		int tell[2], status;
		char byte;
		CHECK(pipe(tell) == 0);
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			int own = open(DEVICE, O_RDWR | O_CLOEXEC);
			CHECK(own >= 0);
			echoes(own, 0, 20);
			CHECK(write(tell[1], "x", 1) == 1);
			for (;;)
				echoes(own, 7, 10);
		}
		CHECK(read(tell[0], &byte, 1) == 1);
		for (int j = 0; j < 5; j++) {
			CHECK(kill(pid, SIGSTOP) == 0);
			echoes(device, 40, 10);
			CHECK(kill(pid, SIGCONT) == 0);
			usleep((useconds_t)(37 * (i + j)));
		}
		CHECK(kill(pid, SIGKILL) == 0);
		CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
		close(tell[0]);
		close(tell[1]);
		echoes(device, 50, 10);
	}
}

/* There is no descriptor for the mailbox: commands without a descriptor do not fail. */
static void full(void)
{
	struct rlimit r;
	CHECK(getrlimit(RLIMIT_NOFILE, &r) == 0);
	int fd = dup(0);
	CHECK(fd >= 0 && close(fd) == 0);
	r.rlim_cur = (rlim_t)fd;
	CHECK(setrlimit(RLIMIT_NOFILE, &r) == 0);
	CHECK(dup(0) < 0 && errno == EMFILE);
	echoes(device, 1, 100);
}

/* A sure command has happened once before the next command, however it reached the daemon. */
static void sure(void)
{
	uint64_t sum = 0;
	for (uint64_t i = 0; i < 3000; i++) {
		CHECK(call(device, CMD_ADD, i & ~1ull, i, NULL) == 0);
		sum += i;
		if (i % 7 == 0)
			CHECK(call(device, CMD_ADD, i | 1, i, NULL) == EPERM);
		if (i % 20 < 3 || i % 100 > 80) /* in between there are more than fit */
			CHECK(ask(device, CMD_SUM, 0) == sum);
		if (i % 500 == 0)
			usleep(1000); /* the mailbox may be shut meanwhile */
	}
	CHECK(ask(device, CMD_SUM, 0) == sum);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
		bool beside;
	} modes[] = {
		{"alone", alone, false}, {"threads", threads, false}, {"forks", forks, true},
		{"vforks", vforks, true}, {"clones", clones, true}, {"stopped", stopped, false},
		{"full", full, false}, {"sure", sure, false}, {"told", sure, false},
	};
	device = open_device();
	for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
		if (argc != 2 || strcmp(argv[1], modes[i].name))
			continue;
		if (modes[i].beside)
			meanwhile(modes[i].run);
		else
			modes[i].run();
		return 0;
	}
	return 2;
}
