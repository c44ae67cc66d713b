/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stress SECONDS SEED [DESCRIPTORS [forks]]: everything at once, at random, against a checker.
 *
 * An arena of blocks. Each block has one actor that writes known bytes to it through one
 * way of Linux: stores, read(2) from a pipe, O_DIRECT, AIO, io_uring with plain and with pinned
 * buffers, process_vm_writev from another process, and RDMA. The actor looks at its bytes after
 * each write, and again later: a write that is lost or delivered elsewhere shows.
 * Locks without FUTEX_PRIVATE_FLAG lie between the blocks. Two threads register and deregister
 * ranges of random size and place and change advice, all the time. With forks they fork, too.
 *
 * With DESCRIPTORS "plain" the process has no io_uring and no AIO context, so that pages are
 * replaced. The same seed gives the same choices, not the same schedule.
 */
#include "mem.h"
#include "uring.h"

#include <linux/futex.h>
#include <sys/uio.h>

enum { BLOCK_PAGES = 4, BLOCK_LEN = BLOCK_PAGES * PAGE, LOCK_LEN = 64, MAX_BLOCKS = 24 };

/* A block is written from its second cache line on; its first holds a futex. */
#define DATA 512ul
#define DATA_LEN (BLOCK_LEN - DATA)

static char *arena;
static int blocks;
static _Atomic int stop;
static _Atomic long writes, registrations, own, wakes, refusals;
static unsigned long seed;
static bool forks;
static struct loop device;

static unsigned long next_random(unsigned long *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

struct actor;
typedef void (*way)(struct actor *, unsigned char byte);

struct actor {
	int block;
	const char *name;
	way write;
	char *p; /* DATA_LEN bytes */
	unsigned long random;
	int fd[2];
	struct ring ring;
	aio_context_t aio;
	struct iocb cb;
	struct buf all; /* for RDMA: registered for good */
	struct couple couple;
	bool opened;
	pid_t helper;
};

/* ---- ways to write DATA_LEN bytes ---- */

static void by_stores(struct actor *a, unsigned char byte)
{
	for (size_t i = 0; i < DATA_LEN; i++)
		((volatile char *)a->p)[i] = (char)byte;
}

static void by_pipe(struct actor *a, unsigned char byte)
{
	char data[DATA_LEN];
	size_t got = 0;

	memset(data, byte, sizeof(data));
	send_all(a->fd[1], data, sizeof(data));
	while (got < sizeof(data)) {
		ssize_t n = read(a->fd[0], a->p + got, sizeof(data) - got);
		CHECK(n > 0, "%s: %s", a->name, strerror(errno));
		got += (size_t)n;
	}
}

static void by_waitall(struct actor *a, unsigned char byte)
{
	char data[DATA_LEN];

	memset(data, byte, sizeof(data));
	send_all(a->fd[1], data, sizeof(data));
	ssize_t n = recv(a->fd[0], a->p, sizeof(data), MSG_WAITALL);
	CHECK(n == (ssize_t)sizeof(data), "%s: %zd (%s)", a->name, n, strerror(errno));
}

/* The file has 256 blocks of BLOCK_LEN, each of its own byte. */
static void by_direct(struct actor *a, unsigned char byte)
{
	ssize_t n = pread(a->fd[0], a->p, DATA_LEN, (off_t)byte * BLOCK_LEN);
	CHECK(n == (ssize_t)DATA_LEN, "%s: %zd (%s)", a->name, n, strerror(errno));
}

static void by_aio(struct actor *a, unsigned char byte)
{
	aio_read(a->aio, &a->cb, a->fd[0], a->p, DATA_LEN, (uint64_t)byte * BLOCK_LEN);
	CHECK(aio_wait(a->aio) == (long)DATA_LEN, "%s failed", a->name);
}

static void by_ring(struct actor *a, unsigned char byte)
{
	ring_submit(&a->ring, IORING_OP_READ, byte % 2 ? IOSQE_ASYNC : 0, a->fd[0], a->p, DATA_LEN, (uint64_t)byte * BLOCK_LEN);
	int n = ring_wait(&a->ring);
	CHECK(n == (int)DATA_LEN, "%s: %d", a->name, n);
}

static void by_pinned(struct actor *a, unsigned char byte)
{
	if (!a->opened || byte % 16 == 0) {
		if (a->opened)
			ring_unpin(&a->ring);
		ring_pin(&a->ring, a->p, DATA_LEN);
		a->opened = true;
	}
	ring_submit(&a->ring, IORING_OP_READ_FIXED, 0, a->fd[0], a->p, DATA_LEN, (uint64_t)byte * BLOCK_LEN);
	int n = ring_wait(&a->ring);
	CHECK(n == (int)DATA_LEN, "%s: %d", a->name, n);
}

/* The other process is told a byte, and says whether the kernel refused. It writes again until not. */
static void by_process(struct actor *a, unsigned char byte)
{
	char answer;

	do {
		send_all(a->fd[1], &byte, 1);
		recv_all(a->fd[1], &answer, 1);
		CHECK(answer == 'w' || answer == 'f', "%s: process_vm_writev fails", a->name);
		refusals += answer == 'f';
	} while (answer == 'f' && !stop);
	if (answer == 'f')
		by_stores(a, byte);
}

static void by_rdma(struct actor *a, unsigned char byte)
{
	static __thread char *source;
	static __thread struct ibv_mr *mr;

	if (!source) {
		source = anonymous(BLOCK_LEN, 0);
		mr = MADE(ibv_reg_mr(device.d.pd, source, BLOCK_LEN, ALL_ACCESS));
		a->all = reg(&device, a->p, DATA_LEN);
		a->couple = couple_new(&device.d, (struct opt){.mtu = 4096});
	}
	memset(source, byte, DATA_LEN);
	struct buf from = {.p = source, .len = BLOCK_LEN, .mr = mr};
	post_work(&a->couple.a, rdma(IBV_WR_RDMA_WRITE, &from, 0, DATA_LEN, 1, (uintptr_t)a->p, a->all.mr->rkey));
	expect_wc(a->couple.a.cq, 1, IBV_WC_SUCCESS, a->name);
}

/* ---- actors ---- */

/* Says what is wrong with a block, and ends the program. */
static void wrong(struct actor *a, unsigned char byte)
{
	size_t first = 0, n = 0;

	for (size_t i = DATA_LEN; i-- > 0;)
		if (a->p[i] != (char)byte) {
			first = i;
			n++;
		}
	unsigned char seen = (unsigned char)a->p[first];
	usleep(20000);
	FAIL("block %d, %s: byte %#x was written, and %zu of %zu are not there; the first at %zu is %#x, %s later; its page is %s", a->block, a->name, byte, n, DATA_LEN, first,
	     seen, a->p[first] == (char)byte ? "right" : "wrong", is_own(a->p + first) ? "shared" : "private");
}

static void *act(void *arg)
{
	struct actor *a = arg;
	unsigned char byte = 0;

	while (!stop) {
		byte = (unsigned char)(next_random(&a->random) % 251 + 1);
		a->write(a, byte);
		writes++;
		for (int look = 0; look < 3; look++) { /* it stays */
			if (!all_bytes(a->p, DATA_LEN, byte))
				wrong(a, byte);
			usleep((useconds_t)(next_random(&a->random) % 300));
		}
	}
	CHECK(all_bytes(a->p, DATA_LEN, byte) || !byte, "block %d, %s: the last write is gone", a->block, a->name);
	return NULL;
}

static void process_helper(struct actor *a)
{
	int s[2];
	pid_t me = getpid();

	ZERO(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
	a->fd[1] = s[1];
	a->helper = fork();
	CHECK(a->helper >= 0, "fork: %s", strerror(errno));
	if (a->helper)
		return (void)close(s[0]);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(s[1]);
	for (char byte; read(s[0], &byte, 1) == 1;) {
		char data[DATA_LEN], answer;
		struct iovec local = {data, sizeof(data)}, remote = {a->p, sizeof(data)};

		memset(data, byte, sizeof(data));
		ssize_t n = process_vm_writev(me, &local, 1, &remote, 1, 0);
		answer = n == (ssize_t)sizeof(data) ? 'w' : n >= 0 || errno == EFAULT ? 'f' : 'e';
		if (write(s[0], &answer, 1) != 1)
			break;
	}
	_exit(0);
}

/* A futex without FUTEX_PRIVATE_FLAG at the start of every second block: ping and pong. */
static void *ping(void *arg)
{
	_Atomic uint32_t *word = arg;
	struct timespec far = {.tv_sec = PATIENCE / 1000};

	while (!stop) {
		uint32_t v = atomic_load(word);

		if (v % 2) {
			double begin = vt_now();

			while (atomic_load(word) == v && !stop) {
				syscall(SYS_futex, word, FUTEX_WAIT, v, &far, NULL, 0);
				CHECK(vt_now() - begin < PATIENCE / 1e3, "a waiter on a futex is not woken");
			}
		} else {
			atomic_fetch_add(word, 1);
			syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
		}
	}
	return NULL;
}

static void *pong(void *arg)
{
	_Atomic uint32_t *word = arg;
	struct timespec nap = {.tv_nsec = 200000};

	while (!stop) {
		if (atomic_load(word) % 2) {
			if (next_random(&(unsigned long){(unsigned long)wakes + 1}) % 4 == 0)
				nanosleep(&nap, NULL);
			atomic_fetch_add(word, 1);
			syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
			wakes++;
		} else {
			sched_yield();
		}
	}
	return NULL;
}

/* ---- registering ---- */

static void *registers(void *arg)
{
	unsigned long random = (unsigned long)(uintptr_t)arg;
	enum { KEPT = 6 };
	struct buf kept[KEPT] = {0};
	size_t whole = (size_t)blocks * BLOCK_LEN;

	while (!stop) {
		struct buf *b = &kept[next_random(&random) % KEPT];

		if (b->mr) {
			unreg(b);
		} else {
			size_t at = next_random(&random) % whole, len = 1 + next_random(&random) % (next_random(&random) % 4 ? 2 * BLOCK_LEN : whole);

			*b = reg(&device, arena + at, at + len > whole ? whole - at : len);
			if (registrations++ % 8 == 0)
				own += is_own(b->p);
		}
		if (next_random(&random) % 64 == 0 && forks) {
			pid_t pid = fork();

			CHECK(pid >= 0, "fork: %s", strerror(errno));
			if (pid == 0)
				_exit(0);
			CHECK(waitpid(pid, NULL, 0) == pid, "waitpid: %s", strerror(errno));
		}
		if (next_random(&random) % 32 == 0)
			madvise(arena + next_random(&random) % (unsigned)blocks * BLOCK_LEN, BLOCK_LEN, next_random(&random) % 2 ? MADV_DONTDUMP : MADV_DODUMP);
		usleep((useconds_t)(next_random(&random) % 500));
	}
	for (int i = 0; i < KEPT; i++)
		if (kept[i].mr)
			unreg(&kept[i]);
	return NULL;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		way write;
		bool asynchronous;
	} ways[] = {
		{"stores", by_stores, false},	{"read", by_pipe, false},	 {"MSG_WAITALL", by_waitall, false},
		{"O_DIRECT", by_direct, false}, {"process", by_process, false},	 {"RDMA", by_rdma, false},
		{"AIO", by_aio, true},		{"io_uring", by_ring, true},	 {"pinned io_uring", by_pinned, true},
	};
	static struct actor actors[MAX_BLOCKS];
	pthread_t threads[MAX_BLOCKS + 2 * MAX_BLOCKS + 2];
	int n = 0, file, kinds = argc > 3 && !strcmp(argv[3], "plain") ? 6 : 9;
	double seconds = argc > 1 ? atof(argv[1]) : 5;

	setvbuf(stdout, NULL, _IOLBF, 0);
	forks = argc > 4 && !strcmp(argv[4], "forks");
	seed = argc > 2 ? strtoul(argv[2], NULL, 10) : (unsigned long)(vt_now() * 1e6);
	seed = seed ? seed : 1;
	printf("stress: seed %lu, %.0f s, %s\n", seed, seconds, kinds == 6 ? "plain" : "with io_uring and AIO");
	blocks = 2 * kinds > MAX_BLOCKS ? MAX_BLOCKS : 2 * kinds;
	arena = anonymous((size_t)blocks * BLOCK_LEN, 0);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);

	char *data = anonymous(BLOCK_LEN, 0), name[] = "/var/tmp/vrdma-mem-XXXXXX";
	file = mkstemp(name);
	for (int i = 0; i < 256; i++) {
		memset(data, i, BLOCK_LEN);
		send_all(file, data, BLOCK_LEN);
	}
	close(file);
	file = open(name, O_RDONLY | O_DIRECT | O_CLOEXEC);
	CHECK(file >= 0, "%s with O_DIRECT: %s", name, strerror(errno));
	unlink(name);

	for (int i = 0; i < blocks; i++) { /* processes first: they inherit no thread and no device */
		struct actor *a = &actors[i];

		*a = (struct actor){.block = i, .name = ways[i % kinds].name, .write = ways[i % kinds].write, .p = arena + (size_t)i * BLOCK_LEN + DATA};
		a->random = seed * 2654435761u + (unsigned long)i * 40503u + 1;
		a->fd[0] = file;
		if (a->write == by_process)
			process_helper(a);
	}
	device = loop_open();
	for (int i = 0; i < blocks; i++) {
		struct actor *a = &actors[i];

		if (a->write == by_pipe)
			ZERO(pipe(a->fd));
		if (a->write == by_waitall)
			ZERO(socketpair(AF_UNIX, SOCK_STREAM, 0, a->fd));
		if (a->write == by_ring || a->write == by_pinned)
			a->ring = ring_open();
		if (a->write == by_aio)
			a->aio = aio_open();
		threads[n++] = thread_new(act, a);
		if (i % 4 == 0) {
			threads[n++] = thread_new(ping, arena + (size_t)i * BLOCK_LEN);
			threads[n++] = thread_new(pong, arena + (size_t)i * BLOCK_LEN);
		}
	}
	threads[n++] = thread_new(registers, (void *)(seed * 2 + 1));
	threads[n++] = thread_new(registers, (void *)(seed * 3 + 1));
	for (double until = vt_now() + seconds; vt_now() < until;)
		usleep(10000);
	stop = 1;
	for (int i = 0; i < n; i++) {
		double until = vt_now() + PATIENCE / 1e3;

		while (pthread_tryjoin_np(threads[i], NULL)) {
			CHECK(vt_now() < until, "thread %d of %d does not end", i, n);
			for (int k = 0; k < blocks; k += 4) /* a waiter may sleep */
				syscall(SYS_futex, arena + (size_t)k * BLOCK_LEN, FUTEX_WAKE, 1, NULL, NULL, 0);
			usleep(1000);
		}
	}
	for (int i = 0; i < blocks; i++) /* all of them: a later process has the sockets of earlier ones */
		if (actors[i].helper)
			close(actors[i].fd[1]);
	for (int i = 0; i < blocks; i++)
		if (actors[i].helper)
			reap(actors[i].helper, "another process");
	printf("%ld writes, %ld registrations (%ld of every eighth shared), %ld wake-ups, %ld refused to another process\n", (long)writes, (long)registrations, (long)own, (long)wakes, (long)refusals);
	CHECK(writes && registrations, "nothing happened");
	printf("ok stress\n");
	return 0;
}
