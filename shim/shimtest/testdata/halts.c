/*
 * What a program sees of being halted: nothing. One thread halts all others again and again,
 * through the entry point that -DHALT_TEST adds to the library, while others do what is named.
 *
 *   halts CASE
 */
#include "t.h"

#include <dlfcn.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <linux/kvm.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static bool (*vrdma_halt)(void (*halted)(void *), void *arg); /* in the library */

static _Atomic bool done;
static _Atomic unsigned halted, refused;

static void nap(long us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000};
	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* Halts every millisecond or less, until done. */
static void *halter(void *arg)
{
	(void)arg;
	for (unsigned i = 0; !done; i++) {
		if (vrdma_halt(NULL, NULL))
			halted++;
		else
			refused++;
		nap(i % 4 * 300);
	}
	return NULL;
}

/* Runs f while another thread halts, after the first successful halt. */
static void under_halts(void *(*f)(void *), void *arg)
{
	pthread_t t;
	halted = 0;
	done = false;
	CHECK(pthread_create(&t, NULL, halter, NULL) == 0);
	while (!halted)
		nap(100);
	f(arg);
	done = true;
	pthread_join(t, NULL);
}

/* ---- calls that sleep until something comes ---- */

#define ROUNDS 25
#define GAP 3000 /* us: several halts */

static int pair[2], reply[2];

struct item {
	uint32_t number;
};

/* The peer sends a number after a delay, on request. */
static void *sends(void *arg)
{
	char c;
	(void)arg;
	for (uint32_t i = 0; read(reply[0], &c, 1) == 1; i++) {
		struct item m = {i};
		nap(GAP);
		CHECK(write(pair[1], &m, sizeof m) == sizeof m);
	}
	return NULL;
}

static void expect(uint32_t i)
{
	struct item m;
	CHECK(read(pair[0], &m, sizeof m) == sizeof m);
	CHECK(m.number == i);
}

typedef void wait_call(void);

static int epoll_of(int fd)
{
	int e = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event ev = {.events = EPOLLIN};
	CHECK(e >= 0 && epoll_ctl(e, EPOLL_CTL_ADD, fd, &ev) == 0);
	return e;
}

static void by_epoll(void)
{
	struct epoll_event ev;
	int e = epoll_of(pair[0]);
	CHECK(epoll_wait(e, &ev, 1, -1) == 1);
	close(e);
}

static void by_epoll_timed(void)
{
	struct epoll_event ev;
	int e = epoll_of(pair[0]);
	CHECK(epoll_wait(e, &ev, 1, 100000) == 1);
	close(e);
}

static void by_epoll_pwait(void)
{
	struct epoll_event ev;
	sigset_t none;
	sigemptyset(&none);
	int e = epoll_of(pair[0]);
	CHECK(epoll_pwait(e, &ev, 1, 100000, &none) == 1);
	close(e);
}

static void by_epoll_pwait2(void)
{
	struct epoll_event ev;
	struct timespec t = {100, 0};
	int e = epoll_of(pair[0]);
	long r = syscall(441, e, &ev, 1, &t, NULL, 8);
	CHECK(r == 1 || errno == ENOSYS);
	CHECK(t.tv_sec == 100);
	close(e);
}

static void by_poll(void)
{
	struct pollfd p = {pair[0], POLLIN, 0};
	CHECK(poll(&p, 1, 100000) == 1);
}

static void by_ppoll_const(void)
{
	static const struct timespec t = {100, 0}; /* which the kernel cannot write to */
	struct pollfd p = {pair[0], POLLIN, 0};
	CHECK(syscall(SYS_ppoll, &p, 1, &t, NULL, 8) == 1);
}

static void by_select(void)
{
	fd_set set;
	struct timeval t = {100, 0};
	FD_ZERO(&set);
	FD_SET(pair[0], &set);
	CHECK(select(pair[0] + 1, &set, NULL, NULL, &t) == 1);
	CHECK(FD_ISSET(pair[0], &set));
}

static void by_read(void)
{
}

static void *receives(void *arg)
{
	wait_call *w = arg;
	for (uint32_t i = 0; i < ROUNDS; i++) {
		CHECK(write(reply[1], "x", 1) == 1);
		w();
		expect(i);
	}
	return NULL;
}

static void channel(bool socket)
{
	if (socket)
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	else
		CHECK(pipe(pair) == 0);
	CHECK(pipe(reply) == 0);
}

static void waits(wait_call *w, bool socket, bool timed)
{
	pthread_t t;
	struct timeval limit = {100, 0};
	channel(socket);
	if (timed)
		CHECK(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
	CHECK(pthread_create(&t, NULL, sends, NULL) == 0);
	under_halts(receives, (void *)w);
	close(reply[1]);
	pthread_join(t, NULL);
	close(reply[0]);
	close(pair[0]);
	close(pair[1]);
}

static void case_waits(void)
{
	waits(by_read, false, false);
	waits(by_read, true, true);
	waits(by_poll, false, false);
	waits(by_ppoll_const, false, false);
	waits(by_select, false, false);
	waits(by_epoll, false, false);
	waits(by_epoll_timed, true, false);
	waits(by_epoll_pwait, false, false);
	waits(by_epoll_pwait2, false, false);
}

/* ---- System V semaphores and messages, signals, inotify, AIO, POSIX semaphores ---- */

static int sem;

static void *posts(void *arg)
{
	struct sembuf up = {0, 1, 0};
	(void)arg;
	for (int i = 0; i < 2 * ROUNDS; i++) {
		nap(GAP);
		CHECK(semop(sem, &up, 1) == 0);
	}
	return NULL;
}

static void *takes(void *arg)
{
	struct sembuf down = {0, -1, 0};
	struct timespec t = {100, 0};
	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		CHECK(semop(sem, &down, 1) == 0);
		CHECK(semtimedop(sem, &down, 1, &t) == 0);
	}
	CHECK(semctl(sem, 0, GETVAL) == 0);
	return NULL;
}

static void case_sem(void)
{
	pthread_t t;
	sem = semget(IPC_PRIVATE, 1, 0600);
	CHECK(sem >= 0);
	CHECK(pthread_create(&t, NULL, posts, NULL) == 0);
	under_halts(takes, NULL);
	pthread_join(t, NULL);
	semctl(sem, 0, IPC_RMID);
}

static pthread_t receiver;

static void *queues(void *arg)
{
	(void)arg;
	for (int i = 0; i < 2 * ROUNDS; i++) {
		nap(GAP);
		CHECK(pthread_sigqueue(receiver, SIGRTMIN, (union sigval){.sival_int = i}) == 0);
	}
	return NULL;
}

static void *takes_signals(void *arg)
{
	sigset_t set;
	siginfo_t info;
	struct timespec t = {100, 0};
	(void)arg;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	for (int i = 0; i < 2 * ROUNDS; i++) {
		int r = i % 2 ? sigtimedwait(&set, &info, &t) : sigwaitinfo(&set, &info);
		CHECK(r == SIGRTMIN && info.si_value.sival_int == i);
	}
	return NULL;
}

static void case_sigwait(void)
{
	pthread_t t;
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	receiver = pthread_self();
	CHECK(pthread_create(&t, NULL, queues, NULL) == 0);
	under_halts(takes_signals, NULL);
	pthread_join(t, NULL);
}

static char dir[] = "/tmp/haltsXXXXXX";

static void *creates(void *arg)
{
	char path[64];
	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		nap(GAP);
		snprintf(path, sizeof path, "%s/%d", dir, i);
		int fd = open(path, O_CREAT | O_WRONLY, 0600);
		CHECK(fd >= 0);
		close(fd);
		unlink(path);
	}
	return NULL;
}

static void *notices(void *arg)
{
	int fd = *(int *)arg;
	char buf[sizeof(struct inotify_event) + 16] __attribute__((aligned(8)));
	for (int i = 0; i < ROUNDS; i++) {
		ssize_t n = read(fd, buf, sizeof buf);
		CHECK(n > (ssize_t)sizeof(struct inotify_event));
		CHECK(atoi(((struct inotify_event *)buf)->name) == i);
	}
	return NULL;
}

static void case_inotify(void)
{
	pthread_t t;
	int fd = inotify_init1(IN_CLOEXEC);
	CHECK(fd >= 0 && mkdtemp(dir) && inotify_add_watch(fd, dir, IN_CREATE) >= 0);
	CHECK(pthread_create(&t, NULL, creates, NULL) == 0);
	under_halts(notices, &fd);
	pthread_join(t, NULL);
	rmdir(dir);
}

static void *gets_events(void *arg)
{
	aio_context_t ctx = *(aio_context_t *)arg;
	struct timespec t = {0, 60000000};
	struct io_event ev;
	for (int i = 0; i < 3; i++) {
		double began = now();
		CHECK(syscall(SYS_io_getevents, ctx, 1, 1, &ev, &t) == 0); /* nothing is under way */
		double took = now() - began;
		CHECK(took > 0.0599);
		CHECK(t.tv_sec == 0 && t.tv_nsec == 60000000);
	}
	return NULL;
}

static void case_aio(void)
{
	aio_context_t ctx = 0;
	if (syscall(SYS_io_setup, 4, &ctx) < 0) {
		CHECK(errno == ENOSYS);
		return;
	}
	under_halts(gets_events, &ctx);
	syscall(SYS_io_destroy, ctx);
}

/* ---- timeouts: never early, and not endless under frequent halts ---- */

#define SHORT 0.06

static void took(const char *what, double began)
{
	double t = now() - began;
	if (t < SHORT - 0.0005 || t > 60) {
		fprintf(stderr, "%s lasted %.4f s, want %.2f or a bit more\n", what, t, SHORT);
		_exit(1);
	}
}

static void *times_out(void *arg)
{
	struct epoll_event ev;
	struct timespec t = {0, 60000000};
	struct timeval tv = {0, 60000};
	struct sembuf down = {0, -1, 0};
	struct pollfd p = {pair[0], POLLIN, 0};
	sigset_t set;
	char c;
	(void)arg;
	int e = epoll_of(pair[0]);
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	for (int i = 0; i < 3; i++) {
		double b = now();
		CHECK(epoll_wait(e, &ev, 1, 60) == 0);
		took("epoll_wait", b);
		b = now();
		CHECK(poll(&p, 1, 60) == 0);
		took("poll", b);
		b = now();
		CHECK(select(0, NULL, NULL, NULL, &(struct timeval){0, 60000}) == 0);
		took("select", b);
		b = now();
		CHECK(nanosleep(&t, NULL) == 0);
		took("nanosleep", b);
		b = now();
		CHECK(sigtimedwait(&set, NULL, &t) < 0 && errno == EAGAIN);
		took("sigtimedwait", b);
		b = now();
		CHECK(semtimedop(sem, &down, 1, &t) < 0 && errno == EAGAIN);
		took("semtimedop", b);
		b = now();
		CHECK(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv) == 0);
		CHECK(recv(pair[0], &c, 1, 0) < 0 && errno == EAGAIN);
		took("recv", b);
		b = now();
		uint32_t word = 0;
		CHECK(syscall(SYS_futex, &word, 0, 0, &t, NULL, 0) < 0 && errno == ETIMEDOUT);
		took("futex", b);
		b = now();
		static const struct timespec constant = {0, 60000000};
		CHECK(syscall(SYS_ppoll, &p, 1, &constant, NULL, 8) == 0);
		took("ppoll", b);
	}
	close(e);
	return NULL;
}

static void case_timeouts(void)
{
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	sem = semget(IPC_PRIVATE, 1, 0600);
	CHECK(sem >= 0);
	under_halts(times_out, NULL);
	semctl(sem, 0, IPC_RMID);
}

/*
 * Registers survive a repeated call, although its timeout was changed in one of them: an
 * inlined system call may expect its arguments there afterwards.
 */
static void *keeps_registers(void *arg)
{
#if defined(__x86_64__)
	struct epoll_event ev;
	int e = epoll_of(*(int *)arg);
	for (int i = 0; i < 3; i++) {
		long r = SYS_epoll_wait, di = e, si = (long)&ev, d = 1;
		register long r10 __asm__("r10") = 60, r8 __asm__("r8") = 0x888, r9 __asm__("r9") = 0x999;
		long b = 0xbbb;
		__asm__ volatile("syscall"
				 : "+a"(r), "+D"(di), "+S"(si), "+d"(d), "+r"(r10), "+r"(r8), "+r"(r9), "+b"(b)
				 :
				 : "rcx", "r11", "memory");
		CHECK(r == 0 && di == e && si == (long)&ev && d == 1 && r10 == 60 && r8 == 0x888 &&
		      r9 == 0x999 && b == 0xbbb);
	}
	close(e);
#else
	(void)arg;
#endif
	return NULL;
}

static void case_registers(void)
{
	CHECK(pipe(pair) == 0);
	under_halts(keeps_registers, &pair[0]);
}

/* A repeated call is still a cancellation point, and unwinders can unwind it. */
static _Atomic bool cleaned;

static void cleans(void *arg)
{
	(void)arg;
	cleaned = true;
}

static void *is_cancelled(void *arg)
{
	struct epoll_event ev;
	int e = epoll_of(*(int *)arg);
	pthread_cleanup_push(cleans, NULL);
	for (;;)
		epoll_wait(e, &ev, 1, 100000);
	pthread_cleanup_pop(0);
	return NULL;
}

static void *cancels(void *arg)
{
	for (int i = 0; i < 10; i++) {
		pthread_t t;
		void *r;
		cleaned = false;
		CHECK(pthread_create(&t, NULL, is_cancelled, arg) == 0);
		nap(5000);
		CHECK(pthread_cancel(t) == 0 && pthread_join(t, &r) == 0);
		CHECK(r == PTHREAD_CANCELED && cleaned);
	}
	return NULL;
}

static void case_cancel(void)
{
	CHECK(pipe(pair) == 0);
	under_halts(cancels, &pair[0]);
}

/* ---- counts: blocking writes and MSG_WAITALL are not cut short ---- */

#define BIG (1 << 20)
static unsigned char big[BIG];

/* Reads slowly, and checks every byte. */
static void *drains(void *arg)
{
	int fd = *(int *)arg;
	unsigned char buf[20000];
	size_t n = 0;
	ssize_t r;
	while ((r = read(fd, buf, sizeof buf)) > 0) {
		for (ssize_t i = 0; i < r; i++)
			CHECK(buf[i] == (unsigned char)((n + (size_t)i) % BIG * 7 >> 3));
		n += (size_t)r;
		nap(100);
	}
	CHECK(n % BIG == 0 && n);
	return NULL;
}

static void *writes_big(void *arg)
{
	int fd = *(int *)arg;
	bool socket = arg == &pair[0];
	struct iovec v[3] = {{big, 100000}, {big + 100000, 0}, {big + 100000, BIG - 100000}};
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
	for (int i = 0; i < 4; i++) {
		CHECK(write(fd, big, BIG) == BIG);
		CHECK(writev(fd, v, 3) == BIG);
		if (socket) {
			CHECK(send(fd, big, BIG, 0) == BIG);
			CHECK(sendmsg(fd, &m, 0) == BIG);
		}
	}
	CHECK(v[0].iov_len == 100000 && v[0].iov_base == big && m.msg_iov == v);
	return NULL;
}

static void *fills(void *arg)
{
	int fd = *(int *)arg;
	for (int i = 0; i < 4; i++)
		for (size_t n = 0; n < BIG; n += 16384) {
			CHECK(write(fd, big + n, 16384) == 16384);
			nap(50);
		}
	return NULL;
}

static void *reads_all(void *arg)
{
	static unsigned char buf[BIG];
	struct iovec v[2] = {{buf, 1000}, {buf + 1000, BIG - 1000}};
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
	int fd = *(int *)arg;
	for (int i = 0; i < 4; i++) {
		memset(buf, 0, sizeof buf);
		if (i % 2)
			CHECK(recv(fd, buf, BIG, MSG_WAITALL) == BIG);
		else
			CHECK(recvmsg(fd, &m, MSG_WAITALL) == BIG);
		CHECK(memcmp(buf, big, BIG) == 0);
	}
	return NULL;
}

static void transfers(void *(*far)(void *), void *(*near)(void *), int *fds, int mine)
{
	pthread_t t;
	CHECK(pthread_create(&t, NULL, far, &fds[1 - mine]) == 0);
	under_halts(near, &fds[mine]);
	close(fds[mine]);
	pthread_join(t, NULL);
	close(fds[1 - mine]);
}

static void case_counts(void)
{
	int p[2];
	for (size_t i = 0; i < BIG; i++)
		big[i] = (unsigned char)(i * 7 >> 3);
	CHECK(pipe(p) == 0);
	transfers(drains, writes_big, p, 1);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	transfers(drains, writes_big, pair, 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	transfers(fills, reads_all, pair, 0);
}

/* ---- io_uring_enter, by bare system calls ---- */

static struct {
	int fd;
	unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;
} ring;

/* False: this machine forbids it. */
static bool ring_open(void)
{
	struct io_uring_params p = {.flags = 0};
	ring.fd = (int)syscall(SYS_io_uring_setup, 8, &p);
	if (ring.fd < 0 && (errno == EPERM || errno == ENOSYS))
		return false;
	CHECK(ring.fd >= 0 && p.features & IORING_FEAT_SINGLE_MMAP);
	char *q = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof *ring.cqe, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd,
		       IORING_OFF_SQ_RING);
	ring.sqe = mmap(NULL, p.sq_entries * sizeof *ring.sqe, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQES);
	CHECK(q != MAP_FAILED && ring.sqe != MAP_FAILED);
	ring.sq_tail = (unsigned *)(void *)(q + p.sq_off.tail);
	ring.sq_mask = (unsigned *)(void *)(q + p.sq_off.ring_mask);
	ring.sq_array = (unsigned *)(void *)(q + p.sq_off.array);
	ring.cq_head = (unsigned *)(void *)(q + p.cq_off.head);
	ring.cq_tail = (unsigned *)(void *)(q + p.cq_off.tail);
	ring.cq_mask = (unsigned *)(void *)(q + p.cq_off.ring_mask);
	ring.cqe = (struct io_uring_cqe *)(void *)(q + p.cq_off.cqes);
	return true;
}

/* Waits for a read of the pipe to complete. */
static void *waits_in_ring(void *arg)
{
	(void)arg;
	for (uint32_t i = 0; i < ROUNDS; i++) {
		static struct item m;
		unsigned tail = *ring.sq_tail, at = tail & *ring.sq_mask;
		CHECK(write(reply[1], "", 1) == 1);
		ring.sqe[at] = (struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = pair[0], .addr = (uintptr_t)&m,
						     .len = sizeof m, .off = ~0ull, .user_data = i};
		ring.sq_array[at] = at;
		__atomic_store_n(ring.sq_tail, tail + 1, __ATOMIC_RELEASE);
		CHECK(syscall(SYS_io_uring_enter, ring.fd, 1, 0, 0, NULL, 0) == 1);
		CHECK(syscall(SYS_io_uring_enter, ring.fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 0);
		unsigned head = *ring.cq_head;
		CHECK(head != __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE));
		struct io_uring_cqe *c = &ring.cqe[head & *ring.cq_mask];
		CHECK(c->user_data == i && c->res == sizeof m && m.number == i);
		__atomic_store_n(ring.cq_head, head + 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void case_uring(void)
{
	pthread_t t;
	if (!ring_open())
		return;
	CHECK(pipe(pair) == 0 && pipe(reply) == 0);
	CHECK(pthread_create(&t, NULL, sends, NULL) == 0);
	under_halts(waits_in_ring, NULL);
	close(reply[1]);
	pthread_join(t, NULL);
}

/* ---- KVM_CREATE_VM, KVM_RUN ---- */

#if defined(__x86_64__)
static void *ends_guest(void *flag)
{
	for (unsigned from = halted; halted < from + 20;)
		nap(100);
	*(volatile unsigned char *)flag = 1;
	return NULL;
}

/* The guest waits for a byte of its memory and writes to a port. KVM_RUN returns only then. */
static void *runs_guest(void *arg)
{
	/* 1: cmp byte [0x1800], 0; je 1b; out 0x10, al; hlt */
	static const unsigned char code[] = {0x80, 0x3e, 0x00, 0x18, 0, 0x74, 0xf9, 0xe6, 0x10, 0xf4};
	int *kvm = arg;
	for (int i = 0; i < 10; i++) {
		int fd = ioctl(*kvm, KVM_CREATE_VM, 0);
		CHECK(fd >= 0 && close(fd) == 0);
	}
	int vm = ioctl(*kvm, KVM_CREATE_VM, 0), size = ioctl(*kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	unsigned char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t t;
	struct kvm_userspace_memory_region region = {.guest_phys_addr = 0x1000, .memory_size = 4096,
						     .userspace_addr = (uintptr_t)memory};
	struct kvm_sregs s;
	struct kvm_regs r = {.rip = 0x1000, .rflags = 2};
	CHECK(vm >= 0 && size > 0 && memory != MAP_FAILED);
	memcpy(memory, code, sizeof code);
	CHECK(ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region) == 0);
	int cpu = ioctl(vm, KVM_CREATE_VCPU, 0);
	struct kvm_run *run = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, cpu, 0);
	CHECK(cpu >= 0 && run != MAP_FAILED && ioctl(cpu, KVM_GET_SREGS, &s) == 0);
	s.cs.base = s.cs.selector = 0;
	CHECK(ioctl(cpu, KVM_SET_SREGS, &s) == 0 && ioctl(cpu, KVM_SET_REGS, &r) == 0);
	CHECK(pthread_create(&t, NULL, ends_guest, memory + 0x800) == 0);
	CHECK(ioctl(cpu, KVM_RUN, 0) == 0);
	CHECK(run->exit_reason == KVM_EXIT_IO && run->io.port == 0x10);
	pthread_join(t, NULL);
	CHECK(ioctl(cpu, KVM_RUN, 0) == 0);
	CHECK(run->exit_reason == KVM_EXIT_HLT);
	return NULL;
}

static void case_kvm(void)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm >= 0) /* else this machine runs no guests */
		under_halts(runs_guest, &kvm);
}
#else
static void case_kvm(void)
{
}
#endif

/* ---- small pieces of a stream, on a busy machine ---- */

#define PIECES_HALTS 100

static void *sends_pieces(void *arg)
{
	unsigned char piece[1024], k = 0;
	int fd = *(int *)arg;
	while (halted < PIECES_HALTS) {
		for (size_t i = 0; i < sizeof piece; i++)
			piece[i] = k++;
		CHECK(write(fd, piece, sizeof piece) == sizeof piece);
	}
	shutdown(fd, SHUT_WR);
	return NULL;
}

static void *receives_pieces(void *arg)
{
	unsigned char piece[700], k = 0;
	int fd = *(int *)arg;
	for (ssize_t n; (n = recv(fd, piece, sizeof piece, MSG_WAITALL));) {
		CHECK(n == sizeof piece || (n > 0 && recv(fd, piece, 1, MSG_PEEK) == 0));
		for (ssize_t j = 0; j < n; j++)
			CHECK(piece[j] == k++);
	}
	return NULL;
}

/*
 * Here a thread is often halted again before it has run, also between the kernel's preparation of a
 * repeated system call and its repetition.
 */
static void case_pieces(void)
{
	pid_t busy[3];
	for (int i = 0; i < 3; i++)
		if ((busy[i] = fork()) == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				;
		}
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	transfers(sends_pieces, receives_pieces, pair, 0);
	for (int i = 0; i < 3; i++) {
		kill(busy[i], SIGKILL);
		CHECK(waitpid(busy[i], NULL, 0) == busy[i]);
	}
}

/* ---- signals: delivered exactly once, in order, and a call returns EINTR after a handler ---- */

static _Atomic int handled, wrong;
static _Atomic bool all_caught;

static void on_signal(int s, siginfo_t *info, void *context)
{
	(void)s, (void)context;
	if (info->si_value.sival_int != handled)
		wrong++;
	handled++;
}

static _Atomic int others;

static void on_other(int s)
{
	(void)s;
	others++;
}

#define SIGNALS 400

static void *storm(void *arg)
{
	(void)arg;
	for (int i = 0; i < SIGNALS; i++) {
		nap(200 + i % 7 * 100);
		CHECK(pthread_sigqueue(receiver, SIGRTMIN, (union sigval){.sival_int = i}) == 0);
		kill(getpid(), SIGURG); /* ignored: interrupts nothing */
	}
	while (handled < SIGNALS || !all_caught) { /* the last one may have come between two calls */
		nap(10000);
		pthread_kill(receiver, SIGUSR1);
	}
	return NULL;
}

static void *catches(void *arg)
{
	struct epoll_event ev;
	int e = epoll_of(pair[0]);
	(void)arg;
	/* Only a signal ends each call; a lost signal leaves the test waiting. */
	for (int i = 0; handled < SIGNALS; i++) {
		int before = handled + others;
		int r = i % 2 ? epoll_wait(e, &ev, 1, -1) : poll(NULL, 0, -1);
		CHECK(r < 0 && errno == EINTR && handled + others > before);
	}
	all_caught = true;
	close(e);
	return NULL;
}

static void case_signals(void)
{
	pthread_t t;
	struct sigaction sa = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
	CHECK(pipe(pair) == 0);
	sigaction(SIGRTMIN, &sa, NULL);
	sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_other}, NULL);
	receiver = pthread_self();
	CHECK(pthread_create(&t, NULL, storm, NULL) == 0);
	under_halts(catches, NULL);
	pthread_join(t, NULL);
	CHECK(handled == SIGNALS && wrong == 0);
}

/* ---- threads that come and go ---- */

static _Atomic unsigned born;

static void *brief(void *arg)
{
	born++;
	return arg;
}

static void *breeds(void *arg)
{
	for (int i = 0; i < 400; i++) {
		pthread_t t[8];
		int own[8];
		for (int k = 0; k < 8; k++)
			CHECK(pthread_create(&t[k], NULL, brief, &own[k]) == 0);
		for (int k = 0; k < 8; k++) {
			void *r;
			CHECK(pthread_join(t[k], &r) == 0 && r == &own[k]);
		}
	}
	return arg;
}

static void case_storm(void)
{
	pthread_t t[3];
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&t[i], NULL, breeds, NULL) == 0);
	under_halts(breeds, NULL);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	CHECK(born == 4 * 400 * 8);
}

/* While all are halted, no thread runs. */
static volatile uint64_t counter[4];

static void *increments(void *arg)
{
	volatile uint64_t *c = arg;
	while (!done)
		++*c;
	return NULL;
}

static void stands_still(void *arg)
{
	uint64_t sum = 0, after = 0;
	for (int i = 0; i < 4; i++)
		sum += counter[i];
	for (int i = 0; i < 1000; i++)
		sched_yield();
	for (int i = 0; i < 4; i++)
		after += counter[i];
	CHECK(sum == after);
	++*(unsigned *)arg;
}

static void case_still(void)
{
	pthread_t t[4];
	unsigned n = 0;
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, increments, (void *)&counter[i]) == 0);
	for (int i = 0; n < 30; i++) {
		vrdma_halt(stands_still, &n);
		CHECK(i < 1000);
	}
	uint64_t before = counter[0];
	while (counter[0] == before) /* they go on */
		sched_yield();
	done = true;
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
}

/* ---- children ---- */

static void *has_children(void *arg)
{
	(void)arg;
	CHECK(waitpid(-1, NULL, 0) < 0 && errno == ECHILD);
	for (int i = 0; i < 60; i++) {
		int status;
		pid_t pid = fork(), got;
		if (pid == 0) {
			usleep(2000);
			_exit(i);
		}
		got = waitpid(-1, &status, 0);
		CHECK(got == pid && WEXITSTATUS(status) == i);
	}
	CHECK(waitpid(-1, NULL, 0) < 0 && errno == ECHILD);
	return NULL;
}

static _Atomic int chlds;
static void on_child(int s)
{
	(void)s;
	chlds++;
}

static void case_children(void)
{
	struct sigaction sa = {.sa_handler = on_child, .sa_flags = SA_RESTART};
	sigaction(SIGCHLD, &sa, NULL);
	under_halts(has_children, NULL);
	CHECK(chlds == 60);
	CHECK(waitpid(-1, NULL, __WALL) < 0 && errno == ECHILD); /* no zombie of a helper either */
}

/* ---- halts that cannot be had end in time, and the program goes on ---- */

static void *vforks(void *arg)
{
	char c;
	(void)arg;
	pid_t pid = vfork();
	if (pid == 0) { /* until it is told to go on */
		syscall(SYS_write, reply[1], "x", 1);
		_exit(syscall(SYS_read, pair[0], &c, 1) == 1 ? 7 : 8);
	}
	int status = 0;
	CHECK(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7);
	return NULL;
}

static void case_vfork(void)
{
	pthread_t t, u;
	char c;
	volatile uint64_t *n = &counter[0];
	channel(false);
	CHECK(pthread_create(&u, NULL, increments, (void *)n) == 0);
	CHECK(pthread_create(&t, NULL, vforks, NULL) == 0);
	CHECK(read(reply[0], &c, 1) == 1);
	for (int i = 0; i < 3; i++) {
		CHECK(!vrdma_halt(NULL, NULL));
		uint64_t before = *n;
		while (*n == before) /* nobody is left stopped */
			sched_yield();
	}
	CHECK(write(pair[1], "x", 1) == 1);
	pthread_join(t, NULL);
	/* The helper that stayed for the thread ends by itself. */
	for (int i = 0; !vrdma_halt(NULL, NULL); i++) {
		CHECK(i < 1000);
		nap(10000);
	}
	done = true;
	pthread_join(u, NULL);
	CHECK(waitpid(-1, NULL, __WALL) < 0 && errno == ECHILD);
}

/*
 * A system call waits uninterruptibly for a page that another thread of the process provides. If
 * that thread is halted first, the halt fails, and both go on.
 */
static char *pages;
#define SERVED 5

static void *serves(void *arg)
{
	int fd = *(int *)arg;
	struct uffd_msg m;
	while (read(fd, &m, sizeof m) == sizeof m) {
		nap(3000);
		struct uffdio_zeropage z = {.range = {m.arg.pagefault.address & ~4095ull, 4096}};
		/* An interrupted fault is reported again, and servers must accept that. */
		CHECK(ioctl(fd, UFFDIO_ZEROPAGE, &z) == 0 || errno == EEXIST);
		if (z.range.start == (uintptr_t)pages + (SERVED - 1) * 4096)
			break;
	}
	return NULL;
}

static void *faults(void *arg)
{
	(void)arg;
	for (int i = 0; i < SERVED; i++) {
		char c = (char)(i + 1);
		CHECK(write(pair[1], &c, 1) == 1);
		CHECK(read(pair[0], pages + i * 4096, 1) == 1 && pages[i * 4096] == i + 1);
	}
	return NULL;
}

static void case_server(void)
{
	pthread_t t;
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = {.api = UFFD_API};
	CHECK(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0);
	CHECK(pipe(pair) == 0);
	pages = mmap(NULL, SERVED * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register r = {.range = {(uintptr_t)pages, SERVED * 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	CHECK(ioctl(fd, UFFDIO_REGISTER, &r) == 0);
	CHECK(pthread_create(&t, NULL, serves, &fd) == 0);
	under_halts(faults, NULL);
	pthread_join(t, NULL);
	close(fd);
}

/* A first thread that has ended. */
static void *without_leader(void *arg)
{
	pthread_t t;
	nap(20000);
	CHECK(pthread_create(&t, NULL, increments, (void *)&counter[0]) == 0);
	for (int i = 0, n = 0; n < 20; i++) {
		n += vrdma_halt(NULL, NULL);
		CHECK(i < 1000);
	}
	done = true;
	pthread_join(t, NULL);
	exit(0);
	return arg;
}

static void case_leaderless(void)
{
	pthread_t t;
	CHECK(pthread_create(&t, NULL, without_leader, NULL) == 0);
	pthread_exit(NULL);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
		{"waits", case_waits},	       {"sem", case_sem},	  {"sigwait", case_sigwait},
		{"inotify", case_inotify},     {"aio", case_aio},	  {"timeouts", case_timeouts},
		{"registers", case_registers}, {"counts", case_counts},	  {"signals", case_signals},
		{"storm", case_storm},	       {"still", case_still},	  {"children", case_children},
		{"vfork", case_vfork},	       {"leaderless", case_leaderless}, {"cancel", case_cancel},
		{"server", case_server},       {"pieces", case_pieces},
		{"uring", case_uring},	       {"kvm", case_kvm},
	};
	CHECK(argc == 2);
	*(void **)&vrdma_halt = dlsym(RTLD_DEFAULT, "vrdma_halt");
	CHECK(vrdma_halt);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return 0;
		}
	fprintf(stderr, "no case %s\n", argv[1]);
	return 2;
}
