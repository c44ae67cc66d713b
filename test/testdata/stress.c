/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No byte of a program is lost or mixed up, whatever it does with its memory while that is
 * registered and deregistered. Workers do random things to buffers of their own and to the
 * cells that they own in areas that all share; hammers count in cells of theirs without a
 * pause. Every byte is known: a model holds what was written last, by the program or by the
 * device. What differs is reported with the seed and the worker's latest steps.
 *
 *   stress MODE STEPS SEED
 *     normal     4 workers, 2 hammers
 *     nouffd     the same, userfaultfd is forbidden
 *     noptrace   1 worker alone, userfaultfd and ptrace are forbidden
 *     oldmaps    as nouffd, and the mappings are read as text
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "vt.h"

#define PAGE 4096ul
#define CELL 256ul
#define AREA (768ul << 10)
#define AREAS 2
#define OWNERS 8 /* of cells, in turn: workers, then hammers */
#define WORKERS 4
#define HAMMERS 2
#define BUFFERS 6
#define REGIONS 12
#define STAGING 16384ul
#define STEPS_KEPT 60

struct buffer {
	unsigned char *p, *model; /* NULL: none */
	size_t n;
	bool mapped; /* by mmap, not by malloc */
};

struct region {
	struct ibv_mr *mr; /* NULL: none */
	uint64_t start, end;
	int buffer; /* -1: in an area; -2: its memory is gone or moved */
	int area;
};

struct worker {
	unsigned id, step;
	uint64_t random;
	struct couple couple;
	struct buf staging;
	unsigned char *model[AREAS]; /* of its cells; the others' are not looked at */
	struct buffer buffer[BUFFERS];
	struct region region[REGIONS];
	int pipe[2];
	char said[STEPS_KEPT][96];
	pthread_t thread;
};

static struct dev device;
static unsigned char *area[AREAS];
static struct worker worker[WORKERS];
static unsigned workers = WORKERS, hammers = HAMMERS, steps;
static uint64_t seed;
static const char *mode;
static _Atomic bool done;
static bool guarded; /* by userfaultfd; else a fork may hide for a moment what the device writes */
static _Atomic unsigned begun, ended; /* forks */
static _Atomic unsigned late;
static pthread_rwlock_t forking = PTHREAD_RWLOCK_INITIALIZER;

/* ---- what is said in the end ---- */

__attribute__((format(printf, 2, 3))) static void say(struct worker *w, const char *fmt, ...)
{
	va_list ap;
	static _Atomic unsigned moment;
	char *to = w->said[w->step % STEPS_KEPT];
	int n = snprintf(to, sizeof w->said[0], "%6u worker %u, step %u: ", atomic_fetch_add(&moment, 1), w->id, w->step);
	va_start(ap, fmt);
	vsnprintf(to + n, sizeof w->said[0] - (size_t)n, fmt, ap);
	va_end(ap);
}

/* The latest steps of all workers, and how the memory at p is mapped. */
static void history(const void *p)
{
	char line[512];
	for (unsigned i = 0; i < workers; i++)
		for (unsigned k = 1; k <= STEPS_KEPT; k++)
			if (worker[i].said[(worker[i].step + k) % STEPS_KEPT][0])
				fprintf(stderr, "  %s\n", worker[i].said[(worker[i].step + k) % STEPS_KEPT]);
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps)) {
		unsigned long start, end, at = (uintptr_t)p;
		if (sscanf(line, "%lx-%lx", &start, &end) == 2 && at + (1 << 20) > start && at < end + (1 << 20))
			fprintf(stderr, "  %s", line);
	}
	fflush(stderr);
}

static void differs(struct worker *w, const char *what, const unsigned char *got, const unsigned char *want, size_t n)
{
	size_t i = 0, last = n;
	while (i < n && got[i] == want[i])
		i++;
	while (last > i && got[last - 1] == want[last - 1])
		last--;
	fprintf(stderr, "stress %s %u %llu: worker %u, step %u: %s: bytes %zu to %zu of %zu at %p differ: first is %#x, want %#x\n",
		mode, steps, (unsigned long long)seed, w->id, w->step, what, i, last, n, (const void *)got, got[i], want[i]);
	history(got + i);
	_exit(3);
}

static void expect(struct worker *w, const char *what, const unsigned char *got, const unsigned char *want, size_t n)
{
	if (memcmp(got, want, n))
		differs(w, what, got, want, n);
}

/* ---- chance ---- */

static uint64_t draw(struct worker *w, uint64_t below)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return (w->random >> 11) % below;
}

static void scribble(struct worker *w, unsigned char *p, size_t n)
{
	uint64_t r = draw(w, 1ull << 40);
	for (size_t i = 0; i < n; i++, r = r * 6364136223846793005ull + 1442695040888963407ull)
		p[i] = (unsigned char)(r >> 33);
}

/* ---- memory whose bytes are known ---- */

struct place {
	unsigned char *p, *model;
	size_t n;
};

/* Some part of a buffer, or of one of the worker's cells; inside [start, end) unless that is 0. */
static struct place somewhere(struct worker *w, int buffer, int in, uint64_t start, uint64_t end)
{
	unsigned char *base = buffer >= 0 ? w->buffer[buffer].p : area[in];
	unsigned char *model = buffer >= 0 ? w->buffer[buffer].model : w->model[in];
	size_t n = buffer >= 0 ? w->buffer[buffer].n : AREA, from = 0, to = n;
	if (end) {
		from = start - (uintptr_t)base;
		to = end - (uintptr_t)base;
	}
	size_t at = from + draw(w, to - from), size = 1 + draw(w, draw(w, 4) ? 600 : STAGING);
	if (buffer < 0) { /* one cell */
		size_t cell = at / CELL / OWNERS * OWNERS + w->id;
		at = cell * CELL;
		if (at < from || at + CELL > to)
			return (struct place){0};
		size_t skip = draw(w, CELL);
		at += skip;
		if (size > CELL - skip)
			size = CELL - skip;
	}
	if (at + size > to)
		size = to - at;
	return (struct place){base + at, model + at, size};
}

static void verify_buffer(struct worker *w, const char *what, int i)
{
	if (w->buffer[i].p)
		expect(w, what, w->buffer[i].p, w->buffer[i].model, w->buffer[i].n);
}

static void verify_cells(struct worker *w, const char *what, int a)
{
	for (size_t at = w->id * CELL; at < AREA; at += OWNERS * CELL)
		expect(w, what, area[a] + at, w->model[a] + at, CELL);
}

static void verify_all(struct worker *w, const char *what)
{
	for (int i = 0; i < BUFFERS; i++)
		verify_buffer(w, what, i);
	for (int a = 0; a < AREAS; a++)
		verify_cells(w, what, a);
}

/* ---- steps ---- */

static int some_buffer(struct worker *w)
{
	int i = (int)draw(w, BUFFERS);
	return w->buffer[i].p ? i : -1;
}

static void make(struct worker *w)
{
	int i = (int)draw(w, BUFFERS);
	struct buffer *b = &w->buffer[i];
	if (b->p)
		return;
	b->mapped = draw(w, 2);
	b->n = draw(w, 3) ? 1 + draw(w, 40000) : 1 + draw(w, 400000);
	if (b->mapped) {
		b->n = (b->n + PAGE - 1) & ~(PAGE - 1);
		b->p = mmap(NULL, b->n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(b->p != MAP_FAILED, "mmap: %s", strerror(errno));
		b->model = MADE(calloc(1, b->n));
		say(w, "mmap %d %p %zu", i, b->p, b->n);
		verify_buffer(w, "fresh memory", i);
	} else {
		b->p = MADE(malloc(b->n));
		b->model = MADE(malloc(b->n));
		say(w, "malloc %d %p %zu", i, b->p, b->n);
		scribble(w, b->model, b->n);
		memcpy(b->p, b->model, b->n);
	}
}

/* The memory of a buffer is not where its regions expect it. */
static void strand(struct worker *w, int i)
{
	for (int k = 0; k < REGIONS; k++)
		if (w->region[k].mr && w->region[k].buffer == i)
			w->region[k].buffer = -2;
}

static void drop(struct worker *w)
{
	int i = some_buffer(w);
	if (i < 0)
		return;
	struct buffer *b = &w->buffer[i];
	bool registered = false;
	for (int k = 0; k < REGIONS; k++)
		registered |= w->region[k].mr && w->region[k].buffer == i;
	if (registered && !b->mapped) /* a free block that is registered is documented to be no good */
		return;
	verify_buffer(w, "before it is freed", i);
	say(w, "%s %d %p", b->mapped ? "munmap" : "free", i, b->p);
	strand(w, i);
	if (b->mapped)
		munmap(b->p, b->n);
	else
		free(b->p);
	free(b->model);
	b->p = NULL;
}

static void resize(struct worker *w)
{
	int i = some_buffer(w);
	if (i < 0)
		return;
	struct buffer *b = &w->buffer[i];
	size_t n = 1 + draw(w, draw(w, 2) ? 300000 : 2 * b->n), kept = n < b->n ? n : b->n;
	for (int k = 0; k < REGIONS && !b->mapped; k++)
		if (w->region[k].mr && w->region[k].buffer == i)
			return;
	if (b->mapped) {
		n = (n + PAGE - 1) & ~(PAGE - 1);
		kept = n < b->n ? n : b->n;
		void *q = mremap(b->p, b->n, n, MREMAP_MAYMOVE);
		say(w, "mremap %d %p %zu to %p %zu", i, b->p, b->n, q, n);
		if (q == MAP_FAILED)
			return; /* several mappings */
		strand(w, i);
		b->p = q;
	} else {
		uintptr_t old = (uintptr_t)b->p;
		b->p = MADE(realloc(b->p, n));
		say(w, "realloc %d %#lx %zu to %p %zu", i, (unsigned long)old, b->n, b->p, n);
	}
	b->model = MADE(realloc(b->model, n));
	if (n > kept)
		memset(b->model + kept, 0, n - kept);
	if (n > kept && !b->mapped)
		memset(b->p + kept, 0, n - kept);
	b->n = n;
	verify_buffer(w, "resized", i);
}

/* A mapping moves to another address, unchanged. */
static void shift(struct worker *w)
{
	int i = some_buffer(w);
	if (i < 0 || !w->buffer[i].mapped)
		return;
	struct buffer *b = &w->buffer[i];
	void *to = mmap(NULL, b->n + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(to != MAP_FAILED, "mmap: %s", strerror(errno));
	void *q = mremap(b->p, b->n, b->n, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	say(w, "shift %d %p %zu to %p: %p", i, b->p, b->n, to, q);
	if (q == MAP_FAILED) {
		munmap(to, b->n + PAGE);
		return;
	}
	munmap((char *)to + b->n, PAGE);
	strand(w, i);
	b->p = q;
	verify_buffer(w, "moved", i);
}

static void put(struct worker *w)
{
	struct place at = somewhere(w, some_buffer(w), (int)draw(w, AREAS), 0, 0);
	if (!at.n)
		return;
	scribble(w, at.model, at.n);
	if (draw(w, 2)) {
		say(w, "write %p %zu", at.p, at.n);
		memcpy(at.p, at.model, at.n);
		return;
	}
	say(w, "read() %p %zu", at.p, at.n);
	CHECK(write(w->pipe[1], at.model, at.n) == (ssize_t)at.n, "write: %s", strerror(errno));
	for (size_t got = 0; got < at.n;) {
		ssize_t r = read(w->pipe[0], at.p + got, at.n - got);
		CHECK(r > 0, "read: %s", strerror(errno));
		got += (size_t)r;
	}
}

static void wipe(struct worker *w)
{
	int i = some_buffer(w);
	if (i < 0 || !w->buffer[i].mapped)
		return;
	struct buffer *b = &w->buffer[i];
	size_t page = draw(w, b->n / PAGE), n = 1 + draw(w, b->n / PAGE - page);
	say(w, "DONTNEED %d %p %zu pages", i, b->p + page * PAGE, n);
	ZERO(madvise(b->p + page * PAGE, n * PAGE, MADV_DONTNEED));
	memset(b->model + page * PAGE, 0, n * PAGE);
	verify_buffer(w, "DONTNEED", i);
}

static void protect(struct worker *w)
{
	int i = some_buffer(w);
	if (i < 0 || !w->buffer[i].mapped)
		return;
	struct buffer *b = &w->buffer[i];
	size_t page = draw(w, b->n / PAGE);
	say(w, "mprotect %d %p", i, b->p + page * PAGE);
	ZERO(mprotect(b->p + page * PAGE, PAGE, PROT_READ));
	for (int k = 0; k < REGIONS; k++) /* what is registered meanwhile is made private in two mappings */
		if (w->region[k].mr && draw(w, 3) == 0) {
			say(w, "mprotect %d %p, deregister %p to %p", i, b->p + page * PAGE, (void *)w->region[k].start, (void *)w->region[k].end);
			ZERO(ibv_dereg_mr(w->region[k].mr));
			w->region[k].mr = NULL;
		}
	verify_buffer(w, "read only", i);
	ZERO(mprotect(b->p + page * PAGE, PAGE, PROT_READ | PROT_WRITE));
}

static void enroll(struct worker *w)
{
	struct region *r = &w->region[draw(w, REGIONS)];
	if (r->mr)
		return;
	r->buffer = some_buffer(w);
	r->area = (int)draw(w, AREAS);
	uint64_t base = (uintptr_t)(r->buffer < 0 ? area[r->area] : w->buffer[r->buffer].p);
	size_t n = r->buffer < 0 ? AREA : w->buffer[r->buffer].n;
	size_t from = draw(w, 3) ? draw(w, n) : 0;
	size_t size = draw(w, 3) ? 1 + draw(w, n - from) : n - from;
	if (r->buffer < 0 && size > 65536 && draw(w, 8))
		size = 65536;
	r->start = base + from;
	r->end = r->start + size;
	say(w, "register %p %zu", (void *)r->start, size);
	r->mr = MADE(ibv_reg_mr(device.pd, (void *)(uintptr_t)r->start, size, ALL_ACCESS));
}

static void leave(struct worker *w)
{
	struct region *r = &w->region[draw(w, REGIONS)];
	if (!r->mr)
		return;
	say(w, "deregister %p to %p", (void *)r->start, (void *)r->end);
	ZERO(ibv_dereg_mr(r->mr));
	r->mr = NULL;
}

/*
 * The device and the process agree. While another thread forks, a page that was written under
 * a lock that fork waits for is a copy for a moment (shim/monitor.c): then a little later.
 */
static bool agrees(struct worker *w, const struct place *at, bool reads, uint32_t rkey)
{
	post_work(&w->couple.a, rdma(reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, &w->staging, 0, at->n, w->step, (uintptr_t)at->p, rkey));
	expect_wc(w->couple.a.cq, w->step, IBV_WC_SUCCESS, "transfer");
	return !memcmp(reads ? (unsigned char *)w->staging.p : at->p, at->model, at->n);
}

static void transfer(struct worker *w)
{
	struct region *r = &w->region[draw(w, REGIONS)];
	if (!r->mr || r->buffer == -2)
		return;
	struct place at = somewhere(w, r->buffer, r->area, r->start, r->end);
	if (!at.n)
		return;
	bool reads = draw(w, 2);
	if (!guarded)
		ZERO(pthread_rwlock_rdlock(&forking));
	say(w, "RDMA %s %p %zu", reads ? "READ" : "WRITE", at.p, at.n);
	if (!reads) {
		scribble(w, at.model, at.n);
		memcpy(w->staging.p, at.model, at.n);
	}
	double until = vt_now() + PATIENCE / 1e3;
	unsigned before = atomic_load(&ended);
	while (!agrees(w, &at, reads, r->mr->rkey)) {
		bool excused = guarded && vt_now() < until && atomic_load(&begun) != before;
		if (!excused)
			expect(w, reads ? "the device reads" : "the device wrote", reads ? (unsigned char *)w->staging.p : at.p, at.model, at.n);
		before = atomic_load(&ended);
		atomic_fetch_add(&late, 1);
		sched_yield();
	}
	if (!guarded)
		ZERO(pthread_rwlock_unlock(&forking));
}

static void split(struct worker *w)
{
	if (!guarded)
		ZERO(pthread_rwlock_wrlock(&forking));
	say(w, "fork");
	atomic_fetch_add(&begun, 1);
	pid_t pid = fork();
	if (pid)
		atomic_fetch_add(&ended, 1);
	if (!guarded && pid)
		ZERO(pthread_rwlock_unlock(&forking));
	CHECK(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0) {
		verify_all(w, "in a child");
		for (int i = 0; i < BUFFERS; i++)
			if (w->buffer[i].p)
				memset(w->buffer[i].p, 0xee, w->buffer[i].n);
		for (int a = 0; a < AREAS; a++)
			memset(area[a], 0xee, AREA);
		_exit(0);
	}
	verify_all(w, "after a fork");
	int status;
	CHECK(waitpid(pid, &status, 0) == pid, "waitpid: %s", strerror(errno));
	if (status) {
		fprintf(stderr, "the child ended with status %#x\n", status);
		_exit(3);
	}
	verify_all(w, "after the child");
}

static void *nothing(void *arg)
{
	memset(arg, 0x77, 100);
	return arg;
}

static void spawn(struct worker *w)
{
	pthread_t t;
	char a[100];
	if (workers == 1)
		return;
	say(w, "thread");
	ZERO(pthread_create(&t, NULL, nothing, a));
	ZERO(pthread_join(t, NULL));
}

static const struct {
	void (*f)(struct worker *);
	unsigned weight;
} step[] = {{make, 12}, {drop, 4}, {resize, 6}, {shift, 2}, {put, 30}, {wipe, 3}, {protect, 2},
	    {enroll, 20}, {leave, 14}, {transfer, 20}, {split, 1}, {spawn, 1}};

static void *work(void *arg)
{
	struct worker *w = arg;
	for (w->step = 1; w->step <= steps && !atomic_load(&done); w->step++) {
		size_t i = 0;
		w->said[w->step % STEPS_KEPT][0] = 0;
		for (uint64_t r = draw(w, 115); r >= step[i].weight; i++)
			r -= step[i].weight;
		step[i].f(w);
		int b = (int)draw(w, BUFFERS + 4 * AREAS);
		if (b < BUFFERS)
			verify_buffer(w, "a look", b);
		else if (b < BUFFERS + AREAS)
			verify_cells(w, "a look", b - BUFFERS);
	}
	for (int k = 0; k < REGIONS; k++)
		if (w->region[k].mr)
			ZERO(ibv_dereg_mr(w->region[k].mr));
	verify_all(w, "in the end");
	return NULL;
}

/* Counts in its cells without a pause: the next count shows a lost store. */
static void *hammer(void *arg)
{
	unsigned id = WORKERS + (unsigned)(uintptr_t)arg;
	uint64_t n = 0, spot = 0, seen[AREAS][AREA / CELL / OWNERS] = {0};
	while (!atomic_load(&done)) {
		for (int burst = 0; burst < 64; burst++, n++) {
			unsigned a = n / 4096 % AREAS;
			spot = (spot + (n % 64 == 0)) % (AREA / CELL / OWNERS);
			volatile uint64_t *p = (void *)(area[a] + (spot * OWNERS + id) * CELL);
			if (*p != seen[a][spot]) {
				fprintf(stderr, "stress %s %u %llu: hammer %u: %p holds %#llx, want %#llx\n", mode, steps, (unsigned long long)seed,
					id, (void *)p, (unsigned long long)*p, (unsigned long long)seen[a][spot]);
				history((const void *)p);
				_exit(3);
			}
			*p = ++seen[a][spot];
		}
		sched_yield();
	}
	return NULL;
}

/* ---- what is forbidden ---- */

#define LOAD(what) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, what))
#define IF(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip)
#define DENY(e) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (e))

static void forbid(bool ptrace, bool query)
{
	struct sock_filter code[] = {
		LOAD(nr),
		IF(SYS_userfaultfd, 1), DENY(EPERM),
		IF(ptrace ? SYS_ptrace : ~0u, 1), DENY(EPERM),
		IF(SYS_ioctl, 5), LOAD(args[1]),
		IF(query ? 0xc0686611u : ~0u /* PROCMAP_QUERY */, 1), DENY(ENOTTY),
		IF(0xaa00 /* USERFAULTFD_IOC_NEW */, 1), DENY(ENOTTY),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof code / sizeof *code, code};
	ZERO(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	ZERO(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog));
}

static void worker_init(struct worker *w, unsigned id)
{
	w->id = id;
	w->random = (seed + 1) * 0x9e3779b97f4a7c15ull + id * 0xd1342543de82ef95ull;
	for (int i = 0; i < 8; i++)
		draw(w, 2);
	w->couple = couple_new(&device, (struct opt){.type = IBV_QPT_RC});
	w->staging = buf_new(&device, STAGING, ALL_ACCESS);
	for (int a = 0; a < AREAS; a++)
		w->model[a] = MADE(calloc(1, AREA));
	ZERO(pipe(w->pipe));
}

int main(int argc, char **argv)
{
	pthread_t hammering[HAMMERS];
	CHECK(argc == 4, "usage: stress normal|nouffd|noptrace|oldmaps STEPS SEED");
	mode = argv[1];
	steps = (unsigned)atoi(argv[2]);
	seed = strtoull(argv[3], NULL, 0);
	guarded = !strcmp(mode, "normal");
	if (!guarded)
		forbid(!strcmp(mode, "noptrace"), !strcmp(mode, "oldmaps"));
	if (!strcmp(mode, "noptrace")) {
		workers = 1;
		hammers = 0;
	}
	device = dev_open();
	area[0] = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(area[0] != MAP_FAILED, "mmap: %s", strerror(errno));
	area[1] = (unsigned char *)sbrk(AREA + PAGE) + 100; /* in the heap, and not at the start of a page */
	memset(area[1], 0, AREA);
	for (unsigned i = 0; i < workers; i++)
		worker_init(&worker[i], i);
	for (unsigned i = 0; i < hammers; i++)
		ZERO(pthread_create(&hammering[i], NULL, hammer, (void *)(uintptr_t)i));
	for (unsigned i = 1; i < workers; i++)
		ZERO(pthread_create(&worker[i].thread, NULL, work, &worker[i]));
	work(&worker[0]);
	for (unsigned i = 1; i < workers; i++)
		ZERO(pthread_join(worker[i].thread, NULL));
	atomic_store(&done, true);
	for (unsigned i = 0; i < hammers; i++)
		ZERO(pthread_join(hammering[i], NULL));
	printf("%u times later, during a fork\nok stress %s %u %llu\n", late, mode, steps, (unsigned long long)seed);
	return 0;
}
