/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cycle BYTES ROUNDS [THREADS [nouffd]]: registers, uses and deregisters a buffer repeatedly, and
 * compares that with the first registration of memory in use. Other threads sleep. nouffd
 * forbids userfaultfd, as in a container.
 *
 * It prints three medians in seconds: a first registration, a registration and deregistration
 * in the loop, and that deregistration alone.
 */
#include "device.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof *v, compare);
	return v[n / 2];
}

static unsigned char *in_use(size_t size)
{
	unsigned char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		fail("mmap");
	memset(p, 0x5a, size);
	return p;
}

/* Registers and deregisters; the times go to reg and dereg. */
static void turn(struct ibv_pd *pd, unsigned char *p, size_t size, double *reg, double *dereg)
{
	double begin = now(), middle, end;
	struct ibv_mr *mr = ibv_reg_mr(pd, p, size, ACCESS);

	if (!mr)
		fail("ibv_reg_mr");
	middle = now();
	for (size_t i = 0; i < size; i += 4096)
		p[i]++;
	end = now();
	if (ibv_dereg_mr(mr))
		fail("ibv_dereg_mr");
	*reg = middle - begin;
	*dereg = now() - end;
}

static void *sleeps(void *arg)
{
	pause();
	return arg;
}

/* The system call, and making one through /dev/userfaultfd. */
static void forbid_userfaultfd(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xaa00 /* USERFAULTFD_IOC_NEW */, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof code / sizeof *code, code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog))
		fail("seccomp");
}

int main(int argc, char **argv)
{
	size_t size = argc > 1 ? strtoull(argv[1], NULL, 10) : 4096;
	int rounds = argc > 2 ? atoi(argv[2]) : 100, threads = argc > 3 ? atoi(argv[3]) : 0;
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	double *first = calloc((size_t)rounds, sizeof *first), *both = calloc((size_t)rounds, sizeof *both);
	double *back = calloc((size_t)rounds, sizeof *back);
	unsigned char *loop = in_use(size), value = 0x5a;

	if (!pd || !first || !both || !back)
		fail("ibv_alloc_pd");
	if (argc > 4 && !strcmp(argv[4], "nouffd"))
		forbid_userfaultfd();
	for (int i = 0; i < threads; i++) {
		pthread_t t;

		if (pthread_create(&t, NULL, sleeps, NULL))
			fail("pthread_create");
	}
	for (int i = 0; i < rounds; i++) {
		unsigned char *p = in_use(size);
		double reg, dereg;

		turn(pd, p, size, &first[i], &dereg);
		munmap(p, size);
		turn(pd, loop, size, &reg, &back[i]);
		both[i] = reg + back[i];
		value++;
		for (size_t at = 0; at < size; at += 4096)
			if (loop[at] != value) {
				fprintf(stderr, "the byte at %zu changed\n", at);
				return 1;
			}
	}
	printf("%.9f %.9f %.9f\n", median(first, rounds), median(both, rounds), median(back, rounds));
	if (ibv_dealloc_pd(pd) || ibv_close_device(context))
		fail("cleaning up");
	return 0;
}
