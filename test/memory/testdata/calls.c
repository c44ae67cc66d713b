/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls of other threads, and of other processes, on a page that is registered and
 * deregistered meanwhile. Messages and counts arrive once and in order, streams are complete,
 * and no call fails, is short or is interrupted.
 */
#include "mem.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/sem.h>
#include <sys/ipc.h>
#include <sys/select.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

static _Atomic int stop;
static char *page;

/* Registers and deregisters a buffer at the end of the page, until enough was done. */
static void churn(struct loop *l, long times, _Atomic long *progress, long least)
{
	double until = vt_now() + PATIENCE / 1e3;

	for (long n = 0; n < times || *progress < least; n++) {
		struct buf b = reg(l, page + 2048, 1024);

		CHECK(vt_now() < until || n < times, "%ld of %ld in %d ms", (long)*progress, least, PATIENCE);
		if (n % 32 == 0)
			prove(l, &b, "beside a buffer of system calls");
		unreg(&b);
		usleep(50);
	}
}

/* ---- messages ---- */

struct channel {
	int in, out;
	_Atomic long received;
};

static void *send_numbers(void *arg)
{
	struct channel *c = arg;

	for (uint64_t k = 1; !atomic_load(&stop); k++)
		CHECK(send(c->out, &k, sizeof(k), 0) == sizeof(k), "send: %s", strerror(errno));
	uint64_t last = 0;
	send(c->out, &last, sizeof(last), 0);
	return NULL;
}

static void *receive_numbers(void *arg)
{
	struct channel *c = arg;
	uint64_t *to = (uint64_t *)(page + 8);

	for (uint64_t want = 1;; want++) {
		ssize_t n = recv(c->in, to, sizeof(*to), 0);

		CHECK(n == sizeof(*to), "recv returns %zd (%s)", n, strerror(errno));
		if (*to == 0)
			return NULL;
		CHECK(*to == want, "message %llu arrives, want %llu: messages are lost or duplicated", (unsigned long long)*to, (unsigned long long)want);
		c->received++;
	}
}

static void messages(int type)
{
	struct loop l = loop_open();
	int s[2];
	struct channel c = {0};

	page = anonymous(PAGE, 0);
	ZERO(socketpair(AF_UNIX, type, 0, s));
	c.in = s[0];
	c.out = s[1];
	pthread_t r = thread_new(receive_numbers, &c), t = thread_new(send_numbers, &c);
	churn(&l, rounds(150), &c.received, 1000);
	atomic_store(&stop, 1);
	pthread_join(t, NULL);
	pthread_join(r, NULL);
	printf("%ld messages\n", (long)c.received);
	loop_close(&l);
}

static void seqpacket(void)
{
	messages(SOCK_SEQPACKET);
}

static void datagrams(void)
{
	messages(SOCK_DGRAM);
}

static void *add_ones(void *arg)
{
	struct channel *c = arg;
	uint64_t one = 1;
	long sent = 0;

	for (; !atomic_load(&stop); sent++)
		CHECK(write(c->out, &one, sizeof(one)) == sizeof(one), "write to an eventfd: %s", strerror(errno));
	return (void *)sent;
}

static void *take_counts(void *arg)
{
	struct channel *c = arg;
	uint64_t *to = (uint64_t *)(page + 8);

	for (;;) {
		ssize_t n = read(c->in, to, sizeof(*to));

		CHECK(n == sizeof(*to), "read of an eventfd returns %zd (%s)", n, strerror(errno));
		if (*to >= 1ull << 32) { /* the last one */
			c->received += (long)(*to - (1ull << 32));
			return NULL;
		}
		c->received += (long)*to;
	}
}

static void event_counts(void)
{
	struct loop l = loop_open();
	struct channel c = {.in = eventfd(0, 0)};
	uint64_t end = 1ull << 32;
	void *sent;

	c.out = c.in;
	page = anonymous(PAGE, 0);
	pthread_t r = thread_new(take_counts, &c), t = thread_new(add_ones, &c);
	churn(&l, rounds(150), &c.received, 1000);
	atomic_store(&stop, 1);
	pthread_join(t, &sent);
	CHECK(write(c.out, &end, sizeof(end)) == sizeof(end), "write to an eventfd: %s", strerror(errno));
	pthread_join(r, NULL);
	CHECK(c.received == (long)sent, "an eventfd gave %ld, %ld were added", (long)c.received, (long)sent);
	loop_close(&l);
}

/* ---- streams ---- */

enum call { READ, READV, RECV, RECVMSG, WAITALL, SELECT, FREAD };

struct stream {
	int in, out;
	enum call call;
	_Atomic long bytes;
};

static void *send_stream(void *arg)
{
	struct stream *s = arg;
	unsigned char data[1024], k = 0;

	while (!atomic_load(&stop)) {
		for (size_t i = 0; i < sizeof(data); i++)
			data[i] = k++;
		for (size_t at = 0; at < sizeof(data);) {
			ssize_t n = write(s->out, data + at, sizeof(data) - at);
			CHECK(n > 0, "write: %s", strerror(errno));
			at += (size_t)n;
		}
	}
	close(s->out);
	return NULL;
}

static ssize_t receive(struct stream *s, unsigned char *to, size_t len, FILE *file)
{
	struct iovec v = {to, len};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
	fd_set *set = (fd_set *)(page + 64);

	switch (s->call) {
	case READ:
		return read(s->in, to, len);
	case READV:
		return readv(s->in, &v, 1);
	case RECV:
		return recv(s->in, to, len, 0);
	case RECVMSG:
		return recvmsg(s->in, &m, 0);
	case WAITALL:
		return recv(s->in, to, len, MSG_WAITALL);
	case SELECT:
		FD_ZERO(set);
		FD_SET(s->in, set);
		CHECK(select(s->in + 1, set, NULL, NULL, NULL) == 1, "select: %s", strerror(errno));
		return read(s->in, to, len);
	default:
		return (ssize_t)fread(to, 1, len, file);
	}
}

static void *receive_stream(void *arg)
{
	struct stream *s = arg;
	unsigned char *to = (unsigned char *)(page + 600), k = 0;
	FILE *file = s->call == FREAD ? MADE(fdopen(s->in, "r")) : NULL;

	if (file)
		setvbuf(file, page + 64, _IOFBF, 512);
	for (;;) {
		ssize_t n = receive(s, to, 700, file);

		CHECK(n >= 0, "call %d on a stream: %s", s->call, strerror(errno));
		if (n == 0)
			return NULL;
		CHECK(n == 700 || (s->call != WAITALL && s->call != FREAD) || atomic_load(&stop), "call %d returns %zd of 700 bytes", s->call, n);
		for (ssize_t i = 0; i < n; i++)
			CHECK(to[i] == k++, "call %d: byte %ld of the stream is wrong", s->call, s->bytes + i);
		s->bytes += n;
	}
}

static void stream(enum call call, bool pipes)
{
	struct loop l = loop_open();
	struct stream s = {.call = call};
	int fds[2];

	page = anonymous(PAGE, 0);
	if (pipes)
		ZERO(pipe(fds));
	else
		ZERO(socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
	s.in = fds[0];
	s.out = fds[1];
	pthread_t r = thread_new(receive_stream, &s), t = thread_new(send_stream, &s);
	churn(&l, rounds(200), &s.bytes, 100000);
	atomic_store(&stop, 1);
	pthread_join(t, NULL);
	pthread_join(r, NULL);
	loop_close(&l);
}

static void stream_read(void)
{
	stream(READ, true);
}

static void stream_readv(void)
{
	stream(READV, false);
}

static void stream_recv(void)
{
	stream(RECV, false);
}

static void stream_recvmsg(void)
{
	stream(RECVMSG, false);
}

static void stream_waitall(void)
{
	stream(WAITALL, false);
}

static void stream_select(void)
{
	stream(SELECT, true);
}

static void stream_fread(void)
{
	stream(FREAD, true);
}

/* ---- signals ---- */

static _Atomic long handled;

static void on_signal(int signal)
{
	(void)signal;
	handled++;
}

static void *signalled(void *arg)
{
	stack_t s = {.ss_sp = page + PAGE - 2048, .ss_size = 4 * PAGE}; /* begins in the page of the buffer */

	ZERO(sigaltstack(&s, NULL));
	*(_Atomic pid_t *)arg = my_tid();
	while (!atomic_load(&stop))
		usleep(100);
	return NULL;
}

static void *signaller(void *arg)
{
	pid_t tid = *(_Atomic pid_t *)arg;

	while (!atomic_load(&stop)) {
		syscall(SYS_tgkill, getpid(), tid, SIGUSR1);
		usleep(100);
	}
	return NULL;
}

static void signal_stack(void)
{
	struct loop l = loop_open();
	struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_RESTART};
	_Atomic pid_t tid = 0;

	page = anonymous(8 * PAGE, 0);
	ZERO(sigaction(SIGUSR1, &a, NULL));
	pthread_t t = thread_new(signalled, (void *)&tid);
	while (!tid)
		usleep(100);
	pthread_t u = thread_new(signaller, (void *)&tid);
	for (long n = 0; n < rounds(200) || handled < 50; n++) {
		struct buf b = reg(&l, page + 1024, 1024);

		if (n % 32 == 0)
			prove(&l, &b, "beside a signal stack");
		unreg(&b);
		usleep(50);
	}
	atomic_store(&stop, 1);
	pthread_join(u, NULL);
	pthread_join(t, NULL);
	loop_close(&l);
}

/* ---- calls that a halted thread must not see interrupted ---- */

static int quiet_epoll, quiet_socket, quiet_inotify, quiet_sem, quiet_timer;

static void waits_epoll(void)
{
	struct epoll_event e;

	CHECK(epoll_wait(quiet_epoll, &e, 1, -1) == 1, "epoll_wait: %s", strerror(errno));
}

static void waits_recv(void)
{
	char c;

	CHECK(recv(quiet_socket, &c, 1, 0) == 1, "recv of a socket with SO_RCVTIMEO: %s", strerror(errno));
}

static void waits_inotify(void)
{
	char e[256];

	CHECK(read(quiet_inotify, e, sizeof(e)) > 0, "read of inotify: %s", strerror(errno));
}

static void waits_semaphore(void)
{
	struct sembuf op = {.sem_op = -1};

	CHECK(semop(quiet_sem, &op, 1) == 0, "semop: %s", strerror(errno));
}

static void waits_timer(void)
{
	uint64_t n;

	CHECK(read(quiet_timer, &n, sizeof(n)) == sizeof(n), "read of a timerfd: %s", strerror(errno));
}

static void waits_signal(void)
{
	sigset_t set;
	struct timespec far = {.tv_sec = 3600};

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	CHECK(sigtimedwait(&set, NULL, &far) == SIGUSR2, "sigtimedwait: %s", strerror(errno));
}

static void waits_poll(void)
{
	struct pollfd p = {.fd = quiet_socket, .events = POLLRDHUP};

	CHECK(poll(&p, 1, 3600 * 1000) == 1, "poll: %s", strerror(errno));
}

static void waits_sleep(void)
{
	struct timespec t = {.tv_sec = 1};

	CHECK(nanosleep(&t, NULL) == 0, "nanosleep: %s", strerror(errno));
}

static _Atomic int returned;
static _Atomic pid_t waiting[8];

struct waiting {
	void (*wait)(void);
	_Atomic pid_t *tid;
};

static void *waits(void *arg)
{
	struct waiting *w = arg;

	*w->tid = my_tid();
	w->wait();
	returned++;
	return NULL;
}

static void uninterrupted(void)
{
	static void (*const calls[])(void) = {waits_epoll, waits_recv, waits_inotify, waits_semaphore, waits_timer, waits_signal, waits_poll, waits_sleep};
	enum { CALLS = sizeof(calls) / sizeof(calls[0]) };
	struct waiting w[CALLS];
	pthread_t t[CALLS];
	struct loop l = loop_open();
	struct timeval limit = {.tv_sec = 3600};
	struct itimerspec far = {.it_value = {.tv_sec = 3600}}, now = {.it_value = {.tv_nsec = 1}};
	char name[] = "/var/tmp/vrdma-mem-XXXXXX";
	int s[2], file = mkstemp(name), event = eventfd(0, 0);
	sigset_t set;
	_Atomic long none = 0;

	page = anonymous(PAGE, 0);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	ZERO(pthread_sigmask(SIG_BLOCK, &set, NULL));
	quiet_epoll = epoll_create1(0);
	struct epoll_event e = {.events = EPOLLIN};
	ZERO(epoll_ctl(quiet_epoll, EPOLL_CTL_ADD, event, &e));
	ZERO(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
	quiet_socket = s[0];
	ZERO(setsockopt(s[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	quiet_inotify = inotify_init1(0);
	CHECK(inotify_add_watch(quiet_inotify, name, IN_MODIFY) >= 0, "inotify_add_watch: %s", strerror(errno));
	quiet_sem = semget(IPC_PRIVATE, 1, 0600);
	CHECK(quiet_sem >= 0, "semget: %s", strerror(errno));
	quiet_timer = timerfd_create(CLOCK_MONOTONIC, 0);
	ZERO(timerfd_settime(quiet_timer, 0, &far, NULL));
	for (int i = 0; i < CALLS; i++) {
		w[i] = (struct waiting){calls[i], &waiting[i]};
		t[i] = thread_new(waits, &w[i]);
	}
	for (int i = 0; i < CALLS - 1; i++) /* but for nanosleep */
		until_asleep(&waiting[i]);
	churn(&l, rounds(100), &none, 0);
	int early = returned;
	struct sembuf up = {.sem_op = 1};
	char byte = 1;
	uint64_t one = 1;
	send_all(event, &one, sizeof(one));
	send_all(file, &byte, 1);
	ZERO(semop(quiet_sem, &up, 1));
	ZERO(timerfd_settime(quiet_timer, 0, &now, NULL));
	kill(getpid(), SIGUSR2);
	send_all(s[1], &byte, 1);
	shutdown(s[1], SHUT_RDWR);
	for (int i = 0; i < CALLS; i++)
		pthread_join(t[i], NULL);
	ZERO(semctl(quiet_sem, 0, IPC_RMID));
	unlink(name);
	CHECK(early <= 1, "%d calls returned before anything happened", early);
	loop_close(&l);
}

/* ---- another process ---- */

static pid_t target;
static char *area;
static _Atomic unsigned *leaving; /* odd while a deregistration is in progress; shared with the other process */
enum { AREA_PAGES = 64 };

/* What process_vm_readv sees; false where it is refused for now. */
static bool peek(size_t i, uint64_t *value)
{
	struct iovec local = {value, sizeof(*value)}, remote = {area + i * PAGE, sizeof(*value)};

	return process_vm_readv(target, &local, 1, &remote, 1, 0) == (ssize_t)sizeof(*value);
}

/*
 * Writes a number to every page, and looks whether it is there. Returns 0 if all is well. A write during a
 * deregistration may be lost (shim/README.md, "What it cannot do"), and is not looked for.
 */
static int write_remotely(int go)
{
	long writes = 0, refused = 0, lost = 0, other = 0, unsure = 0;
	struct pollfd end = {.fd = go, .events = POLLIN};

	for (uint64_t k = 2; poll(&end, 1, 0) == 0; k++) {
		bool made[AREA_PAGES];

		for (size_t i = 0; i < AREA_PAGES; i++) {
			struct iovec local = {&k, sizeof(k)}, remote = {area + i * PAGE, sizeof(k)};

			unsigned before = atomic_load(leaving);
			made[i] = process_vm_writev(target, &local, 1, &remote, 1, 0) == (ssize_t)sizeof(k);
			if (made[i] && (before % 2 || before != atomic_load(leaving))) {
				made[i] = false;
				unsure++;
			} else if (made[i]) {
				writes++;
			} else {
				CHECK(errno == EFAULT, "process_vm_writev: %s", strerror(errno));
				refused++;
			}
		}
		for (size_t i = 0; i < AREA_PAGES; i++) {
			uint64_t seen = 0;

			if (!made[i] || !peek(i, &seen) || seen == k)
				continue;
			double until = vt_now() + 0.2;
			while (vt_now() < until && !(peek(i, &seen) && seen == k))
				;
			if (seen == k)
				other++;
			else
				lost++;
		}
	}
	printf("another process: %ld writes, %ld refused with EFAULT, %ld during a deregistration, %ld lost, %ld times other bytes for a moment\n", writes, refused, unsure, lost, other);
	fflush(stdout);
	return writes < AREA_PAGES || lost || other;
}

static void remote(int threads)
{
	int go[2];

	area = anonymous(AREA_PAGES * PAGE, 0);
	leaving = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(leaving != MAP_FAILED, "mmap: %s", strerror(errno));
	target = getpid();
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	ZERO(pipe(go));
	fflush(NULL);
	pid_t pid = fork();
	CHECK(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(go[1]);
		_exit(write_remotely(go[0]));
	}
	struct loop l = loop_open();
	idle_threads(threads);
	for (long n = rounds(100); n > 0; n--) {
		struct buf b = reg(&l, area + 64, AREA_PAGES * PAGE - 64);

		if (n % 32 == 0)
			prove_piece(&l, &b, 1024, 2048, "with another process that writes");
		(*leaving)++;
		unreg(&b);
		(*leaving)++;
		usleep(100);
	}
	close(go[1]);
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "writes of another process were lost");
	loop_close(&l);
}

static void remote_alone(void)
{
	remote(0);
}

static void remote_threads(void)
{
	remote(3);
}

/* ---- stores of other threads ---- */

struct adder {
	_Atomic uint64_t *word;
	uint64_t made;
};

static void *add(void *arg)
{
	struct adder *a = arg;

	while (!atomic_load(&stop)) {
		atomic_fetch_add(a->word, 1);
		a->made++;
	}
	return NULL;
}

static void stores(void)
{
	enum { N = 4 };
	struct loop l = loop_open();
	struct adder a[N];
	pthread_t t[N];
	const size_t len = 64 * PAGE;
	char *p = anonymous(len, 0);

	for (int i = 0; i < N; i++) {
		a[i] = (struct adder){.word = (_Atomic uint64_t *)(p + (size_t)i * 16 * PAGE + 8)};
		t[i] = thread_new(add, &a[i]);
	}
	for (long n = rounds(40); n > 0; n--) {
		struct buf b = reg(&l, p, len);

		if (n % 8 == 0)
			prove_piece(&l, &b, 8 * PAGE, PAGE, "beside stores");
		unreg(&b);
	}
	atomic_store(&stop, 1);
	for (int i = 0; i < N; i++) {
		pthread_join(t[i], NULL);
		CHECK(*a[i].word == a[i].made, "thread %d: the word is %llu after %llu additions", i, (unsigned long long)*a[i].word, (unsigned long long)a[i].made);
	}
	loop_close(&l);
}

/* ---- fork() of one thread while another moves data ---- */

static void *moves(void *arg)
{
	struct loop l = loop_open();
	char *from = anonymous(4 * PAGE, 0), *to = anonymous(4 * PAGE, 0);
	struct buf a = reg(&l, from, 4 * PAGE), b = reg(&l, to, 4 * PAGE);

	for (int k = 1; !atomic_load(&stop); k = k % 250 + 1) {
		memset(from, k, 4 * PAGE);
		move_rdma(&l, IBV_WR_RDMA_WRITE, &a, 0, 4 * PAGE, &b, 0, "beside a fork");
		CHECK(all_bytes(to, 4 * PAGE, k), "a WRITE of byte %#x completed beside a fork, and the target has %#x", k, to[0] & 255);
		++*(_Atomic long *)arg;
	}
	unreg(&a);
	unreg(&b);
	loop_close(&l);
	return NULL;
}

static void forks(void)
{
	_Atomic long moved = 0;
	pthread_t t = thread_new(moves, (void *)&moved);

	for (long n = 0; n < rounds(60) || moved < 20; n++) {
		pid_t pid = fork();

		CHECK(pid >= 0, "fork: %s", strerror(errno));
		if (pid == 0)
			_exit(0);
		reap(pid, "child");
		usleep(300);
	}
	atomic_store(&stop, 1);
	pthread_join(t, NULL);
	printf("%ld writes\n", (long)moved);
}

static const struct vt_case cases[] = {
	{"seqpacket", seqpacket},
	{"datagrams", datagrams},
	{"event_counts", event_counts},
	{"stream_read", stream_read},
	{"stream_readv", stream_readv},
	{"stream_recv", stream_recv},
	{"stream_recvmsg", stream_recvmsg},
	{"stream_waitall", stream_waitall},
	{"stream_select", stream_select},
	{"stream_fread", stream_fread},
	{"signal_stack", signal_stack},
	{"uninterrupted", uninterrupted},
	{"remote_alone", remote_alone},
	{"remote_threads", remote_threads},
	{"stores", stores},
	{"forks", forks},
};

MAIN(cases)
