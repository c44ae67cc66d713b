/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork under libvrdma-sockets.so: a child never touches an rsocket of its parent, its
 * descriptors are ordinary ones, and the parent goes on over RDMA. shim/shimtest runs it over
 * a stub of the preload library, which aborts if a child does, test/sockets over the
 * real one.
 *
 *   forks NAME     prints "ok NAME"
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define WANT(x)                                                                              \
	do {                                                                                 \
		errno = 0;                                                                   \
		if (!(x)) {                                                                  \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, strerror(errno)); \
			_exit(1);                                                            \
		}                                                                            \
	} while (0)
#define FAILS(x, e) WANT((x) == -1 && errno == (e))

static int listener(struct sockaddr_in *at)
{
	int l = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t n = sizeof *at;
	*at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	WANT(l >= 0);
	WANT(bind(l, (struct sockaddr *)at, sizeof *at) == 0);
	WANT(listen(l, 16) == 0);
	WANT(getsockname(l, (struct sockaddr *)at, &n) == 0 && at->sin_port != 0);
	return l;
}

static int call(const struct sockaddr_in *at)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	WANT(fd >= 0);
	WANT(connect(fd, (const struct sockaddr *)at, sizeof *at) == 0);
	return fd;
}

/* The library reports this for an rsocket; the kernel never does. */
static int is_rdma(int fd)
{
	char name[16] = "";
	socklen_t n = sizeof name;
	return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &n) == 0 && !strcmp(name, "rdma");
}

static void pair(int fd[2])
{
	struct sockaddr_in at;
	int l = listener(&at);
	fd[0] = call(&at);
	WANT((fd[1] = accept(l, NULL, NULL)) >= 0);
	WANT(close(l) == 0);
	WANT(is_rdma(fd[0]) && is_rdma(fd[1]));
}

static void works(int a, int b)
{
	char c = 0;
	for (int i = 0; i < 2; i++) {
		WANT(write(a, &"xy"[i], 1) == 1);
		WANT(read(b, &c, 1) == 1 && c == "xy"[i]);
	}
}

/* The parent is as it was: this connection works, and a new one goes over RDMA. */
static void unharmed(int fd[2])
{
	int more[2];
	works(fd[0], fd[1]);
	works(fd[1], fd[0]);
	pair(more);
	works(more[0], more[1]);
	close(more[0]);
	close(more[1]);
}

static void reap(pid_t pid)
{
	int status;
	WANT(pid > 0);
	WANT(waitpid(pid, &status, 0) == pid);
	WANT(status == 0);
}

/* The number is closed; the next descriptor of that number is an ordinary one. */
static void reused(int fd)
{
	char text[8] = "";
	int one[2];
	int now = memfd_create("reused", 0);
	WANT(now >= 0);
	if (now != fd)
		WANT(dup2(now, fd) == fd && close(now) == 0);
	WANT(write(fd, "hello", 5) == 5);
	WANT(lseek(fd, 0, SEEK_SET) == 0);
	WANT(read(fd, text, 5) == 5 && !strcmp(text, "hello"));
	WANT(close(fd) == 0);
	FAILS(fcntl(fd, F_GETFD), EBADF);
	WANT(pipe(one) == 0);
	if (one[0] != fd) {
		if (one[1] == fd)
			WANT((one[1] = dup(fd)) >= 0);
		WANT(dup2(one[0], fd) == fd && close(one[0]) == 0);
	}
	struct pollfd p = {.fd = fd, .events = POLLIN};
	WANT(poll(&p, 1, 0) == 0);
	WANT(write(one[1], "x", 1) == 1);
	WANT(poll(&p, 1, -1) == 1 && p.revents == POLLIN);
	WANT(close(fd) == 0 && close(one[1]) == 0);
}

static void close_and_reuse(int fd)
{
	WANT(close(fd) == 0);
	FAILS(fcntl(fd, F_GETFD), EBADF);
	reused(fd);
}

/* Every use fails in the same way. */
static void unusable(int fd)
{
	char c;
	struct sockaddr_in at;
	socklen_t n = sizeof at;
	struct pollfd p = {.fd = fd, .events = POLLIN};
	FAILS(read(fd, &c, 1), ENOTCONN);
	FAILS(write(fd, "x", 1), ENOTCONN);
	FAILS(send(fd, "x", 1, MSG_NOSIGNAL), ENOTCONN);
	FAILS(recv(fd, &c, 1, MSG_DONTWAIT), ENOTCONN);
	FAILS(getpeername(fd, (struct sockaddr *)&at, &n), ENOTCONN);
	FAILS(shutdown(fd, SHUT_RDWR), ENOTCONN);
	FAILS(accept(fd, NULL, NULL), ENOTCONN);
	FAILS(listen(fd, 1), EINVAL);
	WANT(poll(&p, 1, -1) == 1 && (p.revents & POLLHUP));
	WANT(!is_rdma(fd));
}

static void reuse(void)
{
	int fd[2];
	pair(fd);
	pid_t pid = fork();
	if (!pid) {
		close_and_reuse(fd[0]);
		close_and_reuse(fd[1]);
		_exit(0);
	}
	reap(pid);
	unharmed(fd);
}

static void use(void)
{
	int fd[2];
	pair(fd);
	for (int i = 0; i < 2; i++) { /* the user hears of the first */
		pid_t pid = fork();
		if (!pid) {
			unusable(fd[0]);
			int copy = dup(fd[0]);
			WANT(copy >= 0);
			unusable(copy);
			close_and_reuse(fd[0]);
			unusable(copy);
			close_and_reuse(copy);
			unusable(fd[1]);
			_exit(0);
		}
		reap(pid);
		unharmed(fd);
	}
}

static void leave(void) /* with exit and its handlers */
{
	int fd[2];
	pair(fd);
	pid_t pid = fork();
	if (!pid)
		exit(0);
	reap(pid);
	unharmed(fd);
}

static void grandchild(void)
{
	int fd[2];
	pair(fd);
	pid_t pid = fork();
	if (!pid) {
		WANT(close(fd[0]) == 0);
		if (!(pid = fork())) {
			reused(fd[0]);
			unusable(fd[1]);
			close_and_reuse(fd[1]);
			_exit(0);
		}
		reap(pid);
		reused(fd[0]);
		close_and_reuse(fd[1]);
		_exit(0);
	}
	reap(pid);
	unharmed(fd);
}

static _Atomic int over;

static void *busy(void *arg)
{
	while (!over) {
		int fd[2];
		pair(fd);
		works(fd[0], fd[1]);
		close(fd[0]);
		close(fd[1]);
	}
	return arg;
}

static void threads(void)
{
	int fd[2];
	pthread_t id[2];
	pair(fd);
	for (int i = 0; i < 2; i++)
		WANT(pthread_create(&id[i], NULL, busy, NULL) == 0);
	for (int i = 0; i < 30; i++) {
		pid_t pid = fork();
		if (!pid) {
			close_and_reuse(fd[0]);
			WANT(close_range(3, ~0u, 0) == 0);
			int file = open("/dev/zero", O_RDONLY);
			char c = 1;
			WANT(file == 3 && read(file, &c, 1) == 1 && c == 0);
			_exit(0);
		}
		reap(pid);
		works(fd[0], fd[1]);
	}
	over = 1;
	for (int i = 0; i < 2; i++)
		WANT(pthread_join(id[i], NULL) == 0);
	unharmed(fd);
}

static void wait_for(int ep, int want)
{
	struct epoll_event e = {0};
	WANT(epoll_wait(ep, &e, 1, -1) == 1);
	WANT(e.data.fd == want && (e.events & EPOLLIN));
}

static int watch(int fd)
{
	int ep = epoll_create1(0);
	struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
	WANT(ep >= 0 && epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e) == 0);
	return ep;
}

static void epolls(void)
{
	int fd[2];
	char c;
	pair(fd);
	int ep = watch(fd[1]);
	pid_t pid = fork();
	if (!pid) {
		struct epoll_event e = {0};
		WANT(epoll_wait(ep, &e, 1, -1) == 1);
		WANT(e.data.fd == fd[1] && (e.events & EPOLLHUP));
		FAILS(read(fd[1], &c, 1), ENOTCONN);
		close_and_reuse(fd[1]);
		WANT(epoll_wait(ep, &e, 1, 0) == 0);
		int mine[2], own = epoll_create1(0);
		WANT(pipe(mine) == 0);
		e = (struct epoll_event){.events = EPOLLIN, .data.fd = mine[0]};
		WANT(epoll_ctl(own, EPOLL_CTL_ADD, mine[0], &e) == 0);
		WANT(write(mine[1], "x", 1) == 1);
		wait_for(own, mine[0]);
		close_and_reuse(ep);
		_exit(0);
	}
	reap(pid);
	WANT(write(fd[0], "x", 1) == 1);
	wait_for(ep, fd[1]);
	WANT(read(fd[1], &c, 1) == 1);
	unharmed(fd);
}

static void copies(void)
{
	int fd[2];
	pair(fd);
	int copy = dup(fd[0]), other = dup(fd[1]);
	WANT(copy >= 0 && other >= 0);
	WANT(close(fd[1]) == 0); /* its number stays with the preload library */
	pid_t pid = fork();
	if (!pid) {
		unusable(copy);
		close_and_reuse(copy);
		unusable(fd[0]);
		close_and_reuse(fd[0]);
		FAILS(fcntl(fd[1], F_GETFD), EBADF);
		reused(fd[1]);
		unusable(other);
		close_and_reuse(other);
		_exit(0);
	}
	reap(pid);
	fd[1] = other;
	unharmed(fd);
	WANT(close(fd[0]) == 0);
	fd[0] = copy;
	unharmed(fd);
}

static void range(void)
{
	int fd[2];
	pair(fd);
	for (int flags = 0; flags <= 2; flags += 2) { /* CLOSE_RANGE_UNSHARE */
		pid_t pid = fork();
		if (!pid) {
			WANT(close_range(3, ~0u, flags) == 0);
			FAILS(fcntl(fd[0], F_GETFD), EBADF);
			reused(fd[0]);
			reused(fd[1]);
			_exit(0);
		}
		reap(pid);
		unharmed(fd);
	}
	pid_t pid = fork();
	if (!pid) {
		closefrom(3);
		reused(fd[0]);
		_exit(0);
	}
	reap(pid);
	unharmed(fd);
}

/* vfork shares the parent's memory: what the child closes, the parent still has. */
static void vforks(void)
{
	int fd[2];
	char c;
	pair(fd);
	int ep = watch(fd[1]);
	pid_t pid = vfork();
	if (!pid) {
		close(fd[0]);
		close(fd[1]);
		close(ep);
		int null = open("/dev/null", O_RDWR);
		if (dup2(null, fd[1]) != fd[1])
			_exit(1);
		close_range(3, ~0u, 0);
		execlp("true", "true", NULL);
		_exit(1);
	}
	reap(pid);
	WANT(write(fd[0], "x", 1) == 1);
	wait_for(ep, fd[1]);
	WANT(read(fd[1], &c, 1) == 1);
	unharmed(fd);

	extern char **environ;
	posix_spawn_file_actions_t acts;
	WANT(posix_spawn_file_actions_init(&acts) == 0);
	WANT(posix_spawn_file_actions_addclose(&acts, fd[0]) == 0);
	WANT(posix_spawn_file_actions_addclose(&acts, ep) == 0);
	WANT(posix_spawnp(&pid, "true", &acts, NULL, (char *[]){"true", NULL}, environ) == 0);
	posix_spawn_file_actions_destroy(&acts);
	reap(pid);
	WANT(system("true") == 0);
	FILE *f = popen("echo popen", "r");
	char line[16];
	WANT(f && fgets(line, sizeof line, f) && !strcmp(line, "popen\n") && pclose(f) == 0);
	unharmed(fd);
}

static void executed(void)
{
	char c;
	FAILS(read(0, &c, 1), ENOTCONN);
}

/* A program with such a connection as its standard input gets an error. */
static void hand(bool fast)
{
	int fd[2];
	pair(fd);
	pid_t pid = fast ? vfork() : fork();
	if (!pid) {
		if (dup2(fd[0], 0) != 0)
			_exit(1);
		execl("/proc/self/exe", "forks", "executed", NULL);
		_exit(1);
	}
	reap(pid);
	unharmed(fd);
}

/* libc copies it without a call that the library sees. */
static void spawns(void)
{
	extern char **environ;
	int fd[2];
	pid_t pid;
	posix_spawn_file_actions_t acts;
	pair(fd);
	WANT(posix_spawn_file_actions_init(&acts) == 0);
	WANT(posix_spawn_file_actions_adddup2(&acts, fd[0], 0) == 0);
	WANT(posix_spawn(&pid, "/proc/self/exe", &acts, NULL, (char *[]){"forks", "executed", NULL}, environ) == 0);
	posix_spawn_file_actions_destroy(&acts);
	reap(pid);
	unharmed(fd);
}
static void executes(void) { hand(false); }
static void executes_fast(void) { hand(true); }

/*
 * Returns a peer without RDMA, or -1: another process has the port, and there is no TCP listener.
 */
static int call_tcp(const struct sockaddr_in *at)
{
	int fd = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
	WANT(fd >= 0);
	if (syscall(SYS_connect, fd, at, sizeof *at) == 0)
		return fd;
	syscall(SYS_close, fd);
	return -1;
}

/* A listener that has a TCP listener beside it. */
static int listener_twice(struct sockaddr_in *at)
{
	for (;;) {
		int l = listener(at), peer = call_tcp(at);
		if (peer >= 0) {
			int got = accept(l, NULL, NULL);
			WANT(got >= 0 && !is_rdma(got));
			WANT(close(got) == 0 && close(peer) == 0);
			return l;
		}
		WANT(close(l) == 0);
	}
}

/* Repeats until RDMA refuses and a call uses TCP; the parent may learn of its child late. */
static int call_until_tcp(const struct sockaddr_in *at)
{
	for (;;) {
		int fd = call(at);
		if (!is_rdma(fd))
			return fd;
		WANT(close(fd) == 0);
		usleep(1000);
	}
}

static void serve(int fd)
{
	char c;
	WANT(read(fd, &c, 1) == 1 && c == 'x' && write(fd, "y", 1) == 1 && close(fd) == 0);
}

static void ask(int fd)
{
	char c;
	WANT(write(fd, "x", 1) == 1 && read(fd, &c, 1) == 1 && c == 'y' && close(fd) == 0);
}

/* A worker process that accepts connections: they use TCP, although the parent is idle. */
static void listens(void)
{
	struct sockaddr_in at;
	int fd[2], l = listener_twice(&at), ready[2];
	pair(fd);
	WANT(pipe(ready) == 0);
	pid_t pid = fork();
	if (!pid) {
		struct pollfd p = {.fd = l, .events = POLLIN};
		socklen_t n = sizeof at;
		WANT(getsockname(l, (struct sockaddr *)&at, &n) == 0 && at.sin_port);
		WANT(poll(&p, 1, 0) == 0);
		WANT(write(ready[1], "x", 1) == 1);
		WANT(poll(&p, 1, -1) == 1 && p.revents == POLLIN);
		for (int i = 0; i < 2; i++) {
			int got = accept(l, NULL, NULL);
			WANT(got >= 0 && !is_rdma(got));
			serve(got);
		}
		close_and_reuse(l);
		_exit(0);
	}
	char c;
	WANT(read(ready[0], &c, 1) == 1);
	ask(call_tcp(&at));
	ask(call_until_tcp(&at));
	reap(pid);
	/* The child closed its number, not the listener, which belongs to the parent again. */
	int s = call(&at), got = accept(l, NULL, NULL), on = 1;
	socklen_t n = sizeof at;
	WANT(got >= 0 && !is_rdma(got) && !is_rdma(s));
	works(s, got);
	WANT(getsockname(l, (struct sockaddr *)&at, &n) == 0 && at.sin_port);
	WANT(setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	WANT(close(l) == 0);
	reused(l);
	FAILS(connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&at, sizeof at), ECONNREFUSED);
	unharmed(fd);
}

/* A process for every connection: the first connection fails, then they use TCP. */
static void serves(void)
{
	struct sockaddr_in at;
	int l = listener_twice(&at), fd[2], s = call(&at), got = accept(l, NULL, NULL);
	char c;
	pair(fd);
	WANT(got >= 0 && is_rdma(got) && is_rdma(s));
	pid_t pid = fork();
	if (!pid) {
		unusable(got);
		_exit(0);
	}
	reap(pid);
	WANT(close(got) == 0 && read(s, &c, 1) == 0 && close(s) == 0);
	s = call_until_tcp(&at);
	do
		WANT((got = accept(l, NULL, NULL)) >= 0);
	while (is_rdma(got)); /* those that gave up */
	if (!(pid = fork())) {
		serve(got);
		_exit(0);
	}
	WANT(close(got) == 0);
	ask(s);
	reap(pid);
	unharmed(fd);
}

/* A socket that was not used yet belongs to the child. */
static void fresh(void)
{
	struct sockaddr_in at;
	int fd[2], l = listener_twice(&at), s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	char c;
	WANT(s >= 0);
	pair(fd);
	pid_t pid = fork();
	if (!pid) {
		close(l);
		WANT((fcntl(s, F_GETFL) & O_NONBLOCK) && fcntl(s, F_SETFL, 0) == 0);
		WANT(connect(s, (struct sockaddr *)&at, sizeof at) == 0 && !is_rdma(s));
		WANT(write(s, "x", 1) == 1 && read(s, &c, 1) == 1 && c == 'y');
		_exit(0);
	}
	int got = accept(l, NULL, NULL);
	WANT(got >= 0 && read(got, &c, 1) == 1 && c == 'x' && write(got, "y", 1) == 1);
	reap(pid);
	WANT(fcntl(s, F_SETFL, 0) == 0 && connect(s, (struct sockaddr *)&at, sizeof at) == 0 && is_rdma(s));
	unharmed(fd);
}

/* clone runs no fork handlers. */
static void clones(void)
{
	int fd[2];
	pair(fd);
	pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (!pid) {
		unusable(fd[0]);
		close_and_reuse(fd[0]);
		close_and_reuse(fd[1]);
		_exit(0);
	}
	reap(pid);
	unharmed(fd);
	if (!(pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL))) {
		int s = socket(AF_INET, SOCK_STREAM, 0);
		WANT(s >= 0 && !is_rdma(s));
		WANT(close_range(3, ~0u, 0) == 0);
		reused(fd[0]);
		_exit(0);
	}
	reap(pid);
	unharmed(fd);
}

static const struct {
	const char *name;
	void (*run)(void);
} all[] = {
	{"reuse", reuse}, {"use", use}, {"leave", leave}, {"grandchild", grandchild}, {"threads", threads}, {"epolls", epolls},
	{"copies", copies}, {"range", range}, {"vforks", vforks}, {"executes", executes}, {"executes_fast", executes_fast},
	{"executed", executed}, {"spawns", spawns}, {"listens", listens}, {"serves", serves}, {"fresh", fresh}, {"clones", clones},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc == 2 && i < sizeof all / sizeof *all; i++)
		if (!strcmp(argv[1], all[i].name)) {
			all[i].run();
			printf("ok %s\n", argv[1]);
			return 0;
		}
	return 2;
}
