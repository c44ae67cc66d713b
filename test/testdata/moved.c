/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moved [THREADS [confined]]
 *
 * A program that its NIC takes to other hosts. Each thread sleeps in an epoll set of its own with the completion channel of two
 * queue pairs that are connected to each other, sends a message from one to the other, and checks every byte and every
 * completion. A byte is exchanged through an eventfd in the same set, too. It registers and deregisters memory meanwhile. The
 * first thread also has a large mapping, of which parts are registered and some pages were never touched.
 * confined: userfaultfd is forbidden by seccomp, as container engines do.
 * Prints "round N" after each hundred rounds of the first thread, until stdin ends; then "moved: ok".
 */
#include "vt.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { MESSAGE = 20000, MOST = 8 };

static atomic_bool over;

static void add(int set, int fd, uint64_t mark)
{
	struct epoll_event e = {.events = EPOLLIN, .data = {.u64 = mark}};
	ZERO(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
}

/* Sleeps until one of the two has happened; returns its mark. */
static uint64_t next_event(int set)
{
	struct epoll_event e;
	int n;

	do
		n = epoll_wait(set, &e, 1, PATIENCE);
	while (n < 0 && errno == EINTR);
	CHECK(n == 1, "epoll_wait: %d (%s)", n, n < 0 ? strerror(errno) : "nothing happens");
	CHECK(e.events == EPOLLIN, "events %#x of %c", e.events, (char)e.data.u64);
	return e.data.u64;
}

/* Two completions: of the send and of the receive. */
static void complete(int set, struct ibv_comp_channel *ch, struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int left = 2;

	for (;;) {
		int n;
		while (left && (n = ibv_poll_cq(cq, 1, &wc)) == 1) {
			CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
			left--;
		}
		if (!left)
			return;
		struct ibv_cq *got;
		void *context;
		CHECK(next_event(set) == 'c', "the eventfd is readable");
		ZERO(ibv_get_cq_event(ch, &got, &context));
		CHECK(got == cq, "an event of another queue");
		ibv_ack_cq_events(cq, 1);
		ZERO(ibv_req_notify_cq(cq, 0));
	}
}

enum { PAGE = 4096, LARGE = 24 << 20, STEP = 256 };

static bool touched(size_t at)
{
	return at / PAGE % 5 != 3;
}

/* What a word of the large mapping has. */
static uint64_t word(size_t at)
{
	return touched(at) ? at * 2654435761u + 1 : 0;
}

static char *large_new(struct dev *d)
{
	char *p = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED, "mmap: %s", strerror(errno));
	for (size_t at = 0; at < LARGE; at += STEP)
		if (touched(at))
			*(uint64_t *)(p + at) = word(at);
	MADE(ibv_reg_mr(d->pd, p + 3 * PAGE, LARGE / 2, ALL_ACCESS));
	MADE(ibv_reg_mr(d->pd, p + LARGE / 2 + 300 * PAGE + 8, LARGE / 4, ALL_ACCESS));
	return p;
}

static void large_check(const char *p)
{
	for (size_t at = 0; at < LARGE; at += STEP) {
		uint64_t is = *(uint64_t *)(p + at);
		CHECK(is == word(at), "the large mapping has %#lx at %#lx, want %#lx", (unsigned long)is, (unsigned long)at,
		      (unsigned long)word(at));
	}
}

static void *work(void *arg)
{
	struct dev d = dev_open();
	struct ibv_comp_channel *ch = MADE(ibv_create_comp_channel(d.ctx));
	struct ibv_cq *cq = MADE(ibv_create_cq(d.ctx, 64, NULL, ch, 0));
	struct couple c = couple_new(&d, (struct opt){.send_cq = cq, .recv_cq = cq, .sig_all = 1});
	struct buf from = buf_new(&d, MESSAGE, ALL_ACCESS), to = buf_new(&d, MESSAGE, ALL_ACCESS);
	int set = epoll_create1(0), bell = eventfd(0, EFD_NONBLOCK);
	bool first = arg != NULL;
	char *large = first ? large_new(&d) : NULL;

	add(set, ch->fd, 'c');
	add(set, bell, 'b');
	ZERO(ibv_req_notify_cq(cq, 0));
	for (uint32_t round = 1; !atomic_load(&over); round++) {
		uint64_t one = 1;
		fill(from.p, MESSAGE, round);
		memset(to.p, 0, MESSAGE);
		post_recv(&c.b, &to, 0, MESSAGE, round);
		post_send(&c.a, &from, 0, MESSAGE, round);
		complete(set, ch, cq);
		expect_fill(to.p, MESSAGE, round, "the message");
		CHECK(write(bell, &one, sizeof one) == sizeof one, "write: %s", strerror(errno));
		while (next_event(set) == 'c') { /* an event whose completion was polled before */
			struct ibv_cq *got;
			void *context;
			ZERO(ibv_get_cq_event(ch, &got, &context));
			ibv_ack_cq_events(cq, 1);
			ZERO(ibv_req_notify_cq(cq, 0));
		}
		CHECK(read(bell, &one, sizeof one) == sizeof one && one == 1, "the eventfd has %lu", (unsigned long)one);
		struct buf more = buf_new(&d, 3 * 4096 + round % 4096, ALL_ACCESS);
		buf_free(&more);
		if (first && round % 100 == 0) {
			large_check(large);
			printf("round %u\n", round);
			fflush(stdout);
		}
	}
	return NULL;
}

#define LOAD(what) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, what))
#define IF(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip)
#define DENY(e) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (e))

static void confine(void)
{
	struct sock_filter code[] = {
		LOAD(nr), IF(SYS_userfaultfd, 1), DENY(EPERM),
		IF(SYS_ioctl, 3), LOAD(args[1]), IF(0xaa00 /* USERFAULTFD_IOC_NEW */, 1), DENY(ENOTTY),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof code / sizeof *code, code};
	ZERO(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	ZERO(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog));
}

int main(int argc, char **argv)
{
	pthread_t t[MOST];
	int n = argc > 1 ? atoi(argv[1]) : 1;
	char b;

	if (argc > 2)
		confine();
	for (int i = 0; i < n && i < MOST; i++)
		ZERO(pthread_create(&t[i], NULL, work, i ? NULL : &over));
	while (read(0, &b, 1) == 1 || errno == EINTR)
		;
	atomic_store(&over, true);
	for (int i = 0; i < n && i < MOST; i++)
		ZERO(pthread_join(t[i], NULL));
	puts("moved: ok");
	return 0;
}
