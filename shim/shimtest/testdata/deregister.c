/*
 * Deregistered memory is ordinary again. Registered memory never exposes another buffer's pages.
 * First with one thread, then with several.
 */
#include "t.h"

#include <sched.h>
#include <sys/syscall.h>

#define N (1ul << 20)
#define PAGES (N / 4096)

/* Memory apart from that of threads, which is never replaced, and neither are its neighbours. */
static char *fresh(size_t n)
{
	static _Atomic uint64_t next;
	uint64_t hint = 0x200000000000 + (next += n + (1 << 20)) % (1ull << 30);
	char *p = mmap((void *)(uintptr_t)(hint & ~4095ul), n, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

static void all_are(const char *p, size_t n, char want)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != want) {
			fprintf(stderr, "byte %zu of %p is %d, want %d\n", i, (const void *)p, p[i], want);
			abort();
		}
}

/* The memfd is empty again. */
static void nothing_left(int fd)
{
	uint64_t n = ask(fd, CMD_DATA, 0);
	if (n) {
		fprintf(stderr, "the memfd still holds %lu bytes\n", (unsigned long)n);
		abort();
	}
}

static bool shared(int fd, volatile void *p)
{
	volatile uint64_t *v = p;
	uint64_t before = *v;
	*v = before ^ 0x5555;
	bool yes = ask(fd, CMD_PEEK, (uintptr_t)v) == *v;
	*v = before;
	return yes;
}

/* Bare system calls: libc's own calls bypass the library, too. */
static void *bare_mremap(void *p, size_t n, size_t more)
{
	return (void *)syscall(SYS_mremap, p, n, more, MREMAP_MAYMOVE, NULL);
}

static void blocks(int fd, bool registered)
{
	char *p = malloc(N), *q = malloc(N);
	memset(p, 0x11, N);
	memset(q, 0x22, N);
	uint32_t mp = reg_as(fd, p, N, SHARED), mq = reg_as(fd, q, N, SHARED);
	if (!registered)
		CHECK(dereg_mr(fd, mq) == 0);
	q = realloc(q, 2 * N);
	all_are(q, N, 0x22);
	memset(q + N, 0x33, N);
	all_are(p, N, 0x11);
	memset(p, 0x44, N);
	all_are(q + N, N, 0x33);
	CHECK(shared(fd, p + 4096));
	free(q);
	if (registered)
		CHECK(dereg_mr(fd, mq) == 0);
	CHECK(dereg_mr(fd, mp) == 0);
	free(p);
	nothing_left(fd);
}

/* More than a chunk: it must be one mapping again, because mremap refuses several. */
static void grows(int fd)
{
	size_t n = 20 * N;
	char *p = fresh(n);
	memset(p, 1, n);
	uint32_t m = reg_as(fd, p, n, SHARED);
	CHECK(dereg_mr(fd, m) == 0);
	nothing_left(fd);
	char *q = bare_mremap(p, n, n + N);
	CHECK(q != MAP_FAILED);
	all_are(q, n, 1);
	all_are(q + n, N, 0);
	munmap(q, n + N);
}

/* While it is registered, a bare call cannot grow it; the library's call appends fresh memory. */
static void moves(int fd)
{
	char *area = fresh(4 * N), *p = area, *other = area + N;
	memset(area, 6, 4 * N);
	uint32_t mo = reg_as(fd, other, N, SHARED), m = reg_as(fd, p, N, SHARED);
	CHECK(bare_mremap(p, N, 2 * N) == MAP_FAILED && errno == EFAULT);
	CHECK(mremap(p, N, 2 * N, 0) == MAP_FAILED && errno == ENOMEM);
	CHECK(mremap(p, 0, N, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
	char *q = mremap(p, N, 2 * N, MREMAP_MAYMOVE);
	CHECK(q != MAP_FAILED && q != p);
	all_are(q, N, 6);
	all_are(q + N, N, 0);
	memset(q + N, 7, N);
	all_are(other, N, 6);
	/* As with pinned pages, the region follows the bytes. */
	CHECK(call(fd, CMD_POKE, (uintptr_t)p + 4096, 99, NULL) == 0 && *(uint64_t *)(q + 4096) == 99);
	*(uint64_t *)(q + 8192) = 98;
	CHECK(ask(fd, CMD_PEEK, (uintptr_t)p + 8192) == 98);
	CHECK(dereg_mr(fd, m) == 0);
	CHECK(*(uint64_t *)(q + 4096) == 99 && *(uint64_t *)(q + 8192) == 98);
	CHECK(syscall(SYS_madvise, q, 2 * N, MADV_DONTNEED) == 0);
	all_are(q, 2 * N, 0);
	CHECK(shared(fd, other) && dereg_mr(fd, mo) == 0);
	all_are(other, N, 6);
	munmap(q, 2 * N);
	munmap(area + N, 3 * N);
	nothing_left(fd);
}

/* mremap also grows memory in place, if the addresses behind it are free. */
static void appends(int fd)
{
	char *p = fresh(2 * N);
	memset(p, 3, N);
	munmap(p + N, N);
	uint32_t m = reg_as(fd, p, N, SHARED);
	char *q = mremap(p, N, 2 * N, 0);
	CHECK(q == p || errno == ENOMEM); /* another thread may have taken the place */
	if (q == p) {
		all_are(p + N, N, 0);
		CHECK(mremap(p, 2 * N, N, 0) == p);
	}
	CHECK(dereg_mr(fd, m) == 0);
	all_are(p, N, 3);
	munmap(p, N);
	nothing_left(fd);
}

static void zeros(int fd)
{
	char *p = fresh(N);
	memset(p, 7, N);
	uint32_t m = reg_as(fd, p, N, SHARED);
	CHECK(dereg_mr(fd, m) == 0);
	all_are(p, N, 7);
	CHECK(syscall(SYS_madvise, p, N, MADV_DONTNEED) == 0);
	all_are(p, N, 0);
	m = reg_as(fd, p, N, SHARED); /* and no old bytes come back */
	all_are(p, N, 0);
	CHECK(ask(fd, CMD_PEEK, (uintptr_t)p) == 0);
	CHECK(dereg_mr(fd, m) == 0);
	munmap(p, N);
	nothing_left(fd);
}

/* Registered again and again, each side sees what the other wrote. */
static void again(int fd)
{
	char *p = fresh(N);
	volatile uint64_t *v = (volatile uint64_t *)(p + 4096);
	for (uint64_t i = 1; i < 20; i++) {
		size_t n = i % 2 ? N : 16384;
		v[0] = i;
		uint32_t m = reg_as(fd, p, n, SHARED);
		CHECK(ask(fd, CMD_PEEK, (uintptr_t)v) == i);
		v[1] = i;
		CHECK(call(fd, CMD_POKE, (uintptr_t)(v + 2), i, NULL) == 0);
		CHECK(dereg_mr(fd, m) == 0);
		CHECK(dereg_mr(fd, m) == EINVAL);
		CHECK(v[0] == i && v[1] == i && v[2] == i);
		nothing_left(fd);
	}
	munmap(p, N);
}

/* Two regions meet in a page; a third lies over both. */
static void edges(int fd)
{
	char *p = fresh(8 * 4096);
	memset(p, 5, 8 * 4096);
	uint32_t a = reg_as(fd, p, 6000, SHARED), b = reg_as(fd, p + 6000, 10000, SHARED);
	uint32_t c = reg_as(fd, p + 100, 7 * 4096, SHARED);
	CHECK(dereg_mr(fd, c) == 0);
	CHECK(shared(fd, p) && shared(fd, p + 4096) && shared(fd, p + 3 * 4096) && !shared(fd, p + 4 * 4096));
	CHECK(dereg_mr(fd, a) == 0);
	CHECK(!shared(fd, p) && shared(fd, p + 4096) && shared(fd, p + 3 * 4096));
	CHECK(call(fd, CMD_POKE, (uintptr_t)p + 4096 + 8, 77, NULL) == 0);
	a = reg_as(fd, p, 4097, SHARED);
	CHECK(dereg_mr(fd, b) == 0);
	CHECK(shared(fd, p) && shared(fd, p + 4096) && !shared(fd, p + 2 * 4096));
	CHECK(dereg_mr(fd, a) == 0);
	CHECK(*(uint64_t *)(p + 4096 + 8) == 77 && p[0] == 5 && p[7 * 4096] == 5);
	munmap(p, 8 * 4096);
	nothing_left(fd);
}

static void unmapped(int fd)
{
	char *p = fresh(N);
	memset(p, 5, N);
	uint32_t m = reg_as(fd, p, N, SHARED);
	munmap(p, N / 2);
	munmap(p + N / 2 + 4096, 4096);
	CHECK(dereg_mr(fd, m) == 0);
	all_are(p + N / 2, 4096, 5);
	all_are(p + N / 2 + 8192, N / 2 - 8192, 5);
	munmap(p + N / 2, N / 2);
	nothing_left(fd);
}

/* Protection and advice are as they were. */
static void manners(int fd)
{
	unsigned char vec[1];
	int pair[2], status;
	char line[512];
	bool found = false, huge = false;
	char *p = fresh(4 * N), *q = (char *)(((uintptr_t)p + 2 * N) & ~(2 * N - 1));
	memset(p, 5, 4 * N);
	CHECK(madvise(q, N, MADV_HUGEPAGE) == 0 && madvise(q + N, N, MADV_DONTFORK) == 0);
	uint32_t m = reg_as(fd, q, 2 * N, SHARED);
	CHECK(mprotect(q + 4096, 4096, PROT_READ) == 0);
	CHECK(dereg_mr(fd, m) == 0);
	all_are(q, 2 * N, 5);
	CHECK(pipe(pair) == 0 && write(pair[1], "abcd", 4) == 4);
	CHECK(read(pair[0], q + 4096, 4) == -1 && errno == EFAULT);
	CHECK(read(pair[0], q + 8192, 4) == 4);
	close(pair[0]);
	close(pair[1]);
	pid_t pid = fork();
	if (pid == 0)
		_exit(q[0] == 5 && mincore(q + N, 4096, vec) == -1 && errno == ENOMEM ? 0 : 1);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	FILE *f = fopen("/proc/self/smaps", "r");
	CHECK(f);
	while (fgets(line, sizeof line, f)) {
		unsigned long start, end;
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			found = start <= (uintptr_t)q + 8192 && (uintptr_t)q + 8192 < end;
		else if (found && strncmp(line, "VmFlags:", 8) == 0)
			huge = strstr(line, " hg") != NULL;
	}
	fclose(f);
	CHECK(huge);
	munmap(p, 4 * N);
	nothing_left(fd);
}

static void forked(int fd)
{
	char *p = fresh(N), *q = fresh(N);
	memset(p, 1, N);
	memset(q, 1, N);
	uint32_t m = reg_as(fd, p, N, SHARED), still = reg_as(fd, q, N, SHARED);
	CHECK(dereg_mr(fd, m) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		all_are(p, N, 1);
		all_are(q, N, 1);
		memset(p, 2, N);
		memset(q, 2, N);
		_exit(0);
	}
	wait_ok(pid);
	all_are(p, N, 1);
	all_are(q, N, 1);
	CHECK(bare_mremap(q, N, 2 * N) == MAP_FAILED && errno == EFAULT); /* as before the fork */
	CHECK(dereg_mr(fd, still) == 0);
	munmap(p, N);
	munmap(q, N);
	nothing_left(fd);
}

/* A device is closed with regions; a registration is refused. */
static void ends(int fd)
{
	struct extents x;
	char *p = fresh(N);
	memset(p, 4, N);
	int second = open_device();
	reg_as(second, p, N, SHARED);
	reg_as(second, p + 4096, 4096, SHARED);
	CHECK(ask(fd, CMD_DATA, 0) == N);
	close(second);
	nothing_left(fd);
	all_are(p, N, 4);
	x.handle = 0;
	CHECK(call(fd, CMD_REFUSE, 0, 0, NULL) == 0);
	CHECK(reg_mr(fd, p, N, &x) == ENOMEM);
	nothing_left(fd);
	all_are(p, N, 4);
	munmap(p, N);
}

static void everything(int fd)
{
	blocks(fd, false);
	blocks(fd, true);
	grows(fd);
	moves(fd);
	appends(fd);
	zeros(fd);
	again(fd);
	edges(fd);
	unmapped(fd);
	manners(fd);
	forked(fd);
	ends(fd);
}

/* ---- other threads ---- */

static char *buffer;
static _Atomic int stop;

struct writer {
	pthread_t thread;
	int number, fd, rounds;
	uint64_t written[PAGES];
};

/* Each writer owns 8 bytes of every page and counts up in them. */
static void *writes(void *arg)
{
	struct writer *w = arg;
	while (!stop)
		for (size_t page = 0; page < PAGES; page++) {
			volatile uint64_t *slot = (volatile uint64_t *)(buffer + page * 4096 + w->number * 64);
			if (*slot != w->written[page]) {
				fprintf(stderr, "page %zu: lost a write: %lu, wrote %lu\n", page,
					(unsigned long)*slot, (unsigned long)w->written[page]);
				_exit(1);
			}
			*slot = ++w->written[page];
		}
	return NULL;
}

/* A thread whose system calls write into the pages. */
static void *reads(void *arg)
{
	struct writer *w = arg;
	int pair[2];
	CHECK(pipe(pair) == 0);
	for (int i = 0; !stop; i++) {
		uint32_t out = (uint32_t)i, in;
		char *at = buffer + (size_t)i % PAGES * 4096 + w->number * 64;
		CHECK(write(pair[1], &out, 4) == 4);
		CHECK(read(pair[0], at, 4) == 4);
		memcpy(&in, at, 4);
		CHECK(in == out);
	}
	close(pair[0]);
	close(pair[1]);
	return NULL;
}

/*
 * Registers parts that overlap others' parts, lets the daemon write to them, and deregisters them.
 */
static void *registers(void *arg)
{
	struct writer *w = arg;
	unsigned seed = (unsigned)w->number;
	for (int i = 1; i <= w->rounds; i++) {
		size_t from = (size_t)rand_r(&seed) % (PAGES - 1), n = (size_t)rand_r(&seed) % (PAGES - from) + 1;
		char *at = buffer + from * 4096;
		volatile uint64_t *slot = (volatile uint64_t *)(at + w->number * 64);
		uint32_t m = reg_as(w->fd, at + 10, n * 4096 - 20, SHARED);
		CHECK(call(w->fd, CMD_POKE, (uintptr_t)slot, (uint64_t)i, NULL) == 0);
		CHECK(*slot == (uint64_t)i);
		*slot = (uint64_t)i + 1;
		CHECK(ask(w->fd, CMD_PEEK, (uintptr_t)slot) == (uint64_t)i + 1);
		CHECK(dereg_mr(w->fd, m) == 0);
		CHECK(*slot == (uint64_t)i + 1);
	}
	return NULL;
}

/* Maps and unmaps its own memory, which no other thread may touch. */
static void *maps(void *arg)
{
	struct writer *w = arg;
	while (!stop) {
		size_t n = ((size_t)++w->rounds % PAGES + 1) * 4096;
		char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(p != MAP_FAILED);
		memset(p, w->rounds, n);
		sched_yield();
		all_are(p, n, (char)w->rounds);
		munmap(p, n);
	}
	return NULL;
}

static void many_threads(int rounds)
{
	static struct writer w[6];
	void *(*role[6])(void *) = {writes, writes, reads, registers, registers, maps};
	int fd = open_device();
	buffer = fresh(N);
	memset(w, 0, sizeof w);
	stop = 0;
	for (int i = 0; i < 6; i++) {
		w[i].number = i;
		w[i].fd = i == 4 ? open_device() : fd;
		w[i].rounds = rounds;
		CHECK(pthread_create(&w[i].thread, NULL, role[i], &w[i]) == 0);
	}
	pthread_join(w[4].thread, NULL);
	pthread_join(w[3].thread, NULL);
	stop = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(w[i].thread, NULL);
	pthread_join(w[5].thread, NULL);
	for (int i = 0; i < 2; i++)
		for (size_t page = 0; page < PAGES; page++)
			CHECK(*(uint64_t *)(buffer + page * 4096 + i * 64) == w[i].written[page]);
	nothing_left(fd);
	munmap(buffer, N);
	close(w[4].fd);
	close(fd);
}

static void *sleeps(void *arg)
{
	char c;
	CHECK(read(*(int *)arg, &c, 1) == 0);
	return NULL;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 60, pair[2];
	pthread_t t;
	int fd = open_device();
	everything(fd);
	CHECK(pipe(pair) == 0 && pthread_create(&t, NULL, sleeps, &pair[0]) == 0);
	everything(fd);
	many_threads(rounds);
	close(pair[1]);
	pthread_join(t, NULL);
	return 0;
}
