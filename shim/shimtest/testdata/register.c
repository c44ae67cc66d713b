/* How registration treats every kind of memory. */
#include "t.h"

#include <sys/prctl.h>

static char bss[3 << 20];
static char data[20000] = {1, 2, 3};
static const char constant[8192] = {4, 5, 6};

/* The daemon sees what we write, and we see what it writes. */
static void coherent(int fd, volatile void *p)
{
	volatile uint64_t *v = (volatile uint64_t *)(((uintptr_t)p + 7) & ~7ul);
	*v = 0x1122334455667788 ^ (uintptr_t)v;
	CHECK(ask(fd, CMD_PEEK, (uintptr_t)v) == *v);
	CHECK(call(fd, CMD_POKE, (uintptr_t)v, 99 + (uintptr_t)v, NULL) == 0);
	CHECK(*v == 99 + (uintptr_t)v);
}

static void heap(int fd)
{
	char *small = malloc(100), *middle = malloc(50000), *big = malloc(5 << 20);
	for (int i = 0; i < 50000; i++)
		middle[i] = (char)(i * 7);
	memset(big, 0x5a, 5 << 20);
	reg_as(fd, small, 100, SHARED);
	reg_as(fd, middle + 1, 49999, SHARED);
	reg_as(fd, big + 4097, (4 << 20) + 3, SHARED);
	reg_as(fd, big, 5 << 20, SHARED); /* overlaps */
	reg_as(fd, big, 5 << 20, SHARED); /* again */
	for (int i = 0; i < 50000; i++)
		CHECK(middle[i] == (char)(i * 7));
	for (int i = 0; i < 5 << 20; i++)
		CHECK(big[i] == 0x5a);
	coherent(fd, small);
	coherent(fd, middle + 20000);
	coherent(fd, big + (1 << 20));
	small = realloc(small, 200);
	free(small);
	free(middle);
	free(big);
	for (int i = 0; i < 1000; i++) { /* the allocator is not confused */
		char *p = calloc(1, (size_t)(i * 37 % 9000) + 1);
		CHECK(p && p[0] == 0);
		memset(p, 1, (size_t)(i * 37 % 9000) + 1);
		free(p);
	}
}

static void statics(int fd)
{
	bss[5] = 5;
	reg_as(fd, bss, sizeof bss, SHARED);
	CHECK(bss[5] == 5 && bss[1 << 20] == 0);
	coherent(fd, bss + 5000);
	reg_as(fd, data, sizeof data, SHARED); /* single threaded */
	CHECK(data[0] == 1 && data[2] == 3 && data[100] == 0);
	coherent(fd, data + 8192);
	reg_as(fd, constant, sizeof constant, FOREIGN);
	CHECK(constant[1] == 5);
}

static void stacks(int fd)
{
	char local[10000];
	memset(local, 3, sizeof local);
	reg_as(fd, local, sizeof local, FOREIGN);
	CHECK(local[9999] == 3);
}

static void mappings(int fd)
{
	struct extents x;
	size_t page = 4096;
	char *p = mmap(NULL, 64 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	p[5 * page] = 9;
	munmap(p + 10 * page, 2 * page);
	mprotect(p + 20 * page, page, PROT_NONE);
	mprotect(p + 30 * page, page, PROT_READ);
	CHECK(reg_mr(fd, p + 1, 64 * page - 2, &x) == 0);
	CHECK(x.n == 7);
	uint32_t want[7][3] = {{SHARED, 10, 3}, {HOLE, 2, 0}, {SHARED, 8, 3}, {HOLE, 1, 0},
			       {SHARED, 9, 3}, {SHARED, 1, 1}, {SHARED, 33, 3}};
	uint64_t at = (uintptr_t)p + 1;
	for (int i = 0; i < 7; i++) {
		uint64_t length = want[i][1] * page - (i == 0 || i == 6);
		CHECK(x.e[i].kind == want[i][0] && x.e[i].prot == want[i][2]);
		CHECK(x.e[i].start == at && x.e[i].length == length);
		at += length;
	}
	CHECK(p[5 * page] == 9 && p[30 * page] == 0);
	coherent(fd, p + 5 * page);

	char *shared = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	reg_as(fd, shared, page, FOREIGN);
	int file = open("/proc/self/exe", O_RDONLY);
	char *ro = mmap(NULL, page, PROT_READ, MAP_PRIVATE, file, 0);
	reg_as(fd, ro, page, FOREIGN);
	close(file);
	char *huge = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
	if (huge != MAP_FAILED)
		reg_as(fd, huge, 4 << 20, FOREIGN);

	CHECK(reg_mr(fd, p, 0, &x) == 0 && x.n == 0);
	CHECK(reg_mr(fd, (void *)8192, 100, &x) == 0 && x.n == 1 && x.e[0].kind == HOLE);
	CHECK(reg_mr(fd, (void *)-4096, 8192, &x) == 0 && x.n == 1 && x.e[0].kind == HOLE);
	CHECK(reg_mr(fd, NULL, ~0ull >> 1, &x) == 0 && x.e[0].kind == HOLE);
}

/* Freed and mapped again at the same address; moved by mremap. */
static void reuse(int fd)
{
	size_t n = 1 << 20;
	char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(p, 1, n);
	reg_as(fd, p, n, SHARED);
	munmap(p, n);
	char *q = mmap(p, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	CHECK(q == p);
	reg_as(fd, q, n, SHARED);
	for (size_t i = 0; i < n; i++)
		CHECK(q[i] == 0);
	coherent(fd, q + 8192);

	memset(q, 2, n);
	char *r = mmap(NULL, 4 * n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *s = mremap(q, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, r + n);
	CHECK(s == r + n && s[77] == 2);
	q = mmap(p, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	memset(q, 3, n);
	reg_as(fd, q, n, SHARED);
	CHECK(q[77] == 3 && s[77] == 2); /* the moved buffer kept its bytes */
	reg_as(fd, r, 4 * n, SHARED);
	CHECK(q[77] == 3 && s[77] == 2 && r[0] == 0);
	coherent(fd, s);
	coherent(fd, q);
	munmap(q, n);
	munmap(r, 4 * n);
}

/* The memory of freed buffers goes back to the system. */
static void reaping(int fd)
{
	size_t n = 1 << 20;
	for (int i = 0; i < 200; i++) {
		char *p = mmap(NULL, n + (size_t)i * 4096, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		reg_as(fd, p, n, SHARED);
		munmap(p, n + (size_t)i * 4096);
	}
	CHECK(ask(fd, CMD_DATA, 0) < 60 << 20);
}

static void advice(int fd)
{
	size_t n = 1 << 20;
	char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(p, 1, n);
	reg_as(fd, p, n, SHARED);
	CHECK(madvise(p + 4096, 8192, MADV_DONTNEED) == 0);
	CHECK(p[0] == 1 && p[4096] == 0 && p[8192] == 0 && p[12288] == 1);
	CHECK(madvise(p, n, MADV_FREE) == 0);
	coherent(fd, p + 4096);
	munmap(p, n);
}

/*
 * A range that the daemon would refuse for its size is not touched; one without a limit is shared.
 */
static void terabytes(int fd)
{
	uint64_t before = ask(fd, CMD_DATA, 0);
	size_t n = 8ul << 40;
	char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(p != MAP_FAILED);
	p[n / 2] = 1;
	uint32_t handle = reg_as(fd, p, n, FOREIGN);
	CHECK(p[n / 2] == 1 && ask(fd, CMD_DATA, 0) == before);
	CHECK(call(fd, CMD_REFUSE, 0, 0, NULL) == 0);
	struct extents x;
	CHECK(reg_mr(fd, p, n, &x) == ENOMEM);
	CHECK(dereg_mr(fd, handle) == 0 && p[n / 2] == 1);
	munmap(p, n);

	n = 2ul << 30;
	p = mmap(NULL, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(p != MAP_FAILED);
	handle = reg_as(fd, p, n, SHARED);
	CHECK(dereg_mr(fd, handle) == 0 && p[n / 2] == 0);
	munmap(p, n);
}

int main(void)
{
	int fd = open_device();
	statics(fd);
	heap(fd);
	stacks(fd);
	mappings(fd);
	reuse(fd);
	reaping(fd);
	advice(fd);
	terabytes(fd);
	return 0;
}
