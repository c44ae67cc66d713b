/*
 * No byte is lost where something runs out, ends or was moved: what cannot be made private
 * now stays as it is, and becomes private later.
 *
 *   keep CASE
 */
#include "t.h"

#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define N (1ul << 20)
#define SMALL (64ul << 10) /* no seam: it can grow */
#define PAGE 4096ul

static int fd;

static char *fresh(size_t n)
{
	static uint64_t next = 0x200000000000;
	char *p = mmap((void *)(uintptr_t)next, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	next += n + 16 * N;
	return p;
}

static void all_are(const char *p, size_t n, char want)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != want) {
			fprintf(stderr, "byte %zu of %p is %d, want %d\n", i, (const void *)p, p[i], want);
			_exit(1);
		}
}

/* Everything is private again at the next deregistration at the latest. */
static void nothing_left(void)
{
	char *p = fresh(PAGE);
	CHECK(dereg_mr(fd, reg_as(fd, p, PAGE, SHARED)) == 0);
	munmap(p, PAGE);
	uint64_t n = ask(fd, CMD_DATA, 0);
	if (n) {
		fprintf(stderr, "the memfd still holds %lu bytes\n", (unsigned long)n);
		_exit(1);
	}
}

/* ---- another thread, which counts in a page ---- */

static char *counted;
static _Atomic bool stop;

static void *counts(void *arg)
{
	volatile uint64_t *p = (volatile uint64_t *)counted;
	(void)arg;
	for (uint64_t i = 0; !stop; i++, *p = i)
		CHECK(*p == i);
	return NULL;
}

static pthread_t start_counting(char *at)
{
	pthread_t t;
	counted = at;
	stop = false;
	CHECK(pthread_create(&t, NULL, counts, NULL) == 0);
	return t;
}

static void stop_counting(pthread_t t)
{
	stop = true;
	CHECK(pthread_join(t, NULL) == 0);
}

/* ---- cases ---- */

/* Moved memory grows by fresh memory, not by the pages behind its old address. */
static void moved(void)
{
	char *p = fresh(2 * SMALL), *other = p + SMALL, *to = fresh(N);
	memset(p, 1, SMALL);
	memset(other, 2, SMALL);
	uint32_t m = reg_as(fd, p, SMALL, SHARED), mo = reg_as(fd, other, SMALL, SHARED);
	munmap(to + SMALL, N - SMALL);
	CHECK(mremap(p, SMALL, SMALL, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	char *q = mremap(to, SMALL, 2 * SMALL, MREMAP_MAYMOVE);
	CHECK(q != MAP_FAILED);
	all_are(q, SMALL, 1);
	all_are(q + SMALL, SMALL, 0);
	memset(q + SMALL, 3, SMALL);
	all_are(other, SMALL, 2);
	CHECK(madvise(q, 2 * PAGE, MADV_DONTNEED) == 0);
	all_are(q, 2 * PAGE, 0);
	all_are(q + 2 * PAGE, SMALL - 2 * PAGE, 1);
	CHECK(dereg_mr(fd, m) == 0 && dereg_mr(fd, mo) == 0);
	all_are(q + 2 * PAGE, SMALL - 2 * PAGE, 1);
	all_are(other, SMALL, 2);
	nothing_left();
}

/*
 * A bare mremap appended pages of the file. They are registered, and their registration ends first.
 */
static void appended(void)
{
	char *p = fresh(2 * SMALL);
	memset(p, 1, SMALL);
	munmap(p + SMALL, SMALL);
	uint32_t m = reg_as(fd, p, SMALL, SHARED);
	CHECK((char *)syscall(SYS_mremap, p, SMALL, 2 * SMALL, 0) == p);
	memset(p + SMALL, 2, SMALL);
	uint32_t more = reg_as(fd, p + SMALL, SMALL, SHARED);
	CHECK(dereg_mr(fd, more) == 0);
	all_are(p + SMALL, SMALL, 2);
	CHECK(dereg_mr(fd, m) == 0);
	all_are(p, SMALL, 1);
	all_are(p + SMALL, SMALL, 2);
	nothing_left();
}

/* The first thread ends, another one goes on. */
static char *block;
static uint32_t block_mr;

static void *survives(void *arg)
{
	char state = 0;
	(void)arg;
	for (int i = 0; state != 'Z'; i++) {
		FILE *f = fopen("/proc/self/stat", "r");
		CHECK(f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1 && i < 60000);
		fclose(f);
		usleep(1000);
	}
	pthread_t t = start_counting(block + N);
	CHECK(dereg_mr(fd, block_mr) == 0);
	all_are(block, N, 5);
	for (int i = 0; i < 100; i++) {
		struct extents x;
		CHECK(reg_mr(fd, block, 2 * N, &x) == 0 && x.n == 1);
		if (i % 20 == 0) {
			pid_t pid = fork();
			if (pid == 0) {
				all_are(block, N, 5);
				memset(block, 6, 2 * N);
				_exit(0);
			}
			wait_ok(pid);
		}
		CHECK(dereg_mr(fd, x.handle) == 0);
	}
	stop_counting(t);
	all_are(block, N, 5);
	nothing_left();
	exit(0);
}

static void leaderless(void)
{
	pthread_t t;
	block = fresh(2 * N);
	memset(block, 5, N);
	block_mr = reg_as(fd, block, N, SHARED);
	CHECK(pthread_create(&t, NULL, survives, NULL) == 0);
	pthread_exit(NULL);
}

/* No descriptor is free, or one. */
static void descriptors(void)
{
	for (int spare = 0; spare < 2; spare++) {
		struct rlimit old, few;
		char *p = fresh(N), *q = fresh(SMALL), *to = fresh(SMALL);
		memset(p, 1, N);
		memset(q, 2, SMALL);
		uint32_t m = reg_as(fd, p, N, SHARED), mq = reg_as(fd, q, SMALL, SHARED);
		CHECK(mremap(q, SMALL, SMALL, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		int next = open("/dev/null", O_RDONLY);
		close(next);
		CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
		few = old;
		few.rlim_cur = (rlim_t)next + (rlim_t)spare;
		CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
		CHECK(dereg_mr(fd, mq) == 0 && dereg_mr(fd, m) == 0);
		all_are(p, N, 1);
		all_are(to, SMALL, 2);
		CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
		nothing_left();
		all_are(p, N, 1);
		all_are(to, SMALL, 2);
	}
}

/* No address space is left. */
static void addresses(void)
{
	struct rlimit old, few;
	char *p = fresh(4 * N);
	memset(p, 1, 4 * N);
	pthread_t t = start_counting(fresh(PAGE));
	uint32_t m = reg_as(fd, p, 4 * N, SHARED);
	CHECK(getrlimit(RLIMIT_AS, &old) == 0);
	few = old;
	few.rlim_cur = PAGE;
	CHECK(setrlimit(RLIMIT_AS, &few) == 0);
	CHECK(dereg_mr(fd, m) == 0);
	all_are(p, 4 * N, 1);
	CHECK(setrlimit(RLIMIT_AS, &old) == 0);
	nothing_left();
	all_are(p, 4 * N, 1);
	stop_counting(t);
}

/* No mapping more is allowed. */
static void mappings(void)
{
	size_t n = 1 << 17;
	char *p = fresh(N), *q = fresh(N), *many = mmap(NULL, n * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(many != MAP_FAILED);
	memset(p, 1, N);
	memset(q, 2, N);
	*(uint64_t *)(q + N / 2) = 0;
	pthread_t t = start_counting(q + N / 2);
	uint32_t m = reg_as(fd, p, N, SHARED);
	CHECK(mprotect(p + PAGE, PAGE, PROT_READ) == 0);
	for (size_t i = 0; i < n && mprotect(many + 2 * i * PAGE, PAGE, PROT_READ) == 0; i++)
		;
	CHECK(errno == ENOMEM);
	struct extents x;
	CHECK(reg_mr(fd, q + PAGE, N - 2 * PAGE, &x) == 0);
	CHECK(dereg_mr(fd, m) == 0);
	all_are(p, N, 1);
	CHECK(dereg_mr(fd, x.handle) == 0);
	all_are(q, N / 2, 2);
	munmap(many, n * PAGE);
	nothing_left();
	all_are(p, N, 1);
	all_are(q, N / 2, 2);
	stop_counting(t);
}

/* Memory that is private again is one mapping with its neighbours. */
static void crowd(void)
{
	size_t n = 700, before = 0, last = 0;
	char *p = fresh(2 * n * PAGE), line[512];
	for (size_t i = 0; i < n; i++)
		*(uint64_t *)(p + 2 * i * PAGE + 8) = i;
	pthread_t t = start_counting(p + 2 * (n - 1) * PAGE);
	for (size_t i = 0; i < n; i++) {
		uint32_t m = reg_as(fd, p + 2 * i * PAGE + 8, 100, SHARED);
		CHECK(dereg_mr(fd, m) == 0);
		if (i != n - 2 && i != n - 1)
			continue;
		FILE *f = fopen("/proc/self/maps", "r");
		for (before = last, last = 0; f && fgets(line, sizeof line, f);)
			last++;
		fclose(f);
	}
	CHECK(last < n / 2 && last <= before);
	for (int i = 0; i < 300; i++)
		CHECK(dereg_mr(fd, reg_as(fd, p + 2 * (n - 1) * PAGE, PAGE, SHARED)) == 0);
	stop_counting(t);
	for (size_t i = 0; i < n; i++)
		CHECK(*(uint64_t *)(p + 2 * i * PAGE + 8) == i);
	nothing_left();
}

#ifndef PROCMAP_QUERY
#define PROCMAP_QUERY 0xc0686611u
#endif

static void *deregisters(void *arg)
{
	CHECK(dereg_mr(fd, *(uint32_t *)arg) == 0);
	CHECK(ask(fd, CMD_DATA, 0) == 0);
	return NULL;
}

/* A buffer that lies beside the stack of the thread that deregisters it. */
static void beside(void)
{
	pthread_attr_t a;
	pthread_t t;
	char *stack = fresh(2 * SMALL + 2 * N), *p = stack + 2 * N;
	int maps = open("/proc/self/maps", O_RDONLY);
	if (ioctl(maps, PROCMAP_QUERY, NULL) < 0 && errno == ENOTTY)
		return; /* there, whose memory it is is not known so exactly */
	close(maps);
	uint32_t m = reg_as(fd, p, 2 * SMALL, SHARED);
	CHECK(pthread_attr_init(&a) == 0 && pthread_attr_setstack(&a, stack, 2 * N) == 0);
	CHECK(pthread_create(&t, &a, deregisters, &m) == 0 && pthread_join(t, NULL) == 0);
	pthread_attr_destroy(&a);
}

static _Atomic bool started;

static void *counts_on_its_stack(void *arg)
{
	volatile uint64_t n = 0;
	(void)arg;
	started = true;
	for (uint64_t i = 0; !stop; i++, n = i)
		CHECK(n == i);
	return NULL;
}

/* A registered buffer that became a thread's stack stays shared as long as the thread lives. */
static void beneath(void)
{
	pthread_attr_t a;
	pthread_t t;
	char *stack = fresh(SMALL);
	uint32_t m = reg_as(fd, stack, SMALL, SHARED);
	CHECK(pthread_attr_init(&a) == 0 && pthread_attr_setstack(&a, stack, SMALL) == 0);
	CHECK(pthread_create(&t, &a, counts_on_its_stack, NULL) == 0);
	while (!started)
		sched_yield();
	CHECK(dereg_mr(fd, m) == 0);
	CHECK(ask(fd, CMD_DATA, 0) != 0);
	stop_counting(t);
	pthread_attr_destroy(&a);
	nothing_left();
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*f)(void);
	} cases[] = {{"moved", moved}, {"appended", appended}, {"leaderless", leaderless}, {"descriptors", descriptors},
		     {"addresses", addresses}, {"mappings", mappings}, {"crowd", crowd}, {"beside", beside},
		     {"beneath", beneath}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (argc == 2 && !strcmp(argv[1], cases[i].name)) {
			fd = open_device();
			cases[i].f();
			return 0;
		}
	fprintf(stderr, "no such case\n");
	return 1;
}
