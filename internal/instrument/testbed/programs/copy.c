/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy BYTES TIMES: how fast memcpy copies BYTES between two buffers. Both are written before,
 * so that no page fault is measured. Together they should exceed the caches.
 *
 * It prints the median of all passes in bytes/s.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

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

static void *buffer(size_t size, int fill)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED) {
		perror("copy: mmap");
		exit(1);
	}
	memset(p, fill, size);
	return p;
}

int main(int argc, char **argv)
{
	size_t size = argc > 1 ? strtoull(argv[1], NULL, 10) : 64u << 20;
	int times = argc > 2 ? atoi(argv[2]) : 11;
	char *from, *to;
	double *rate;

	if (size == 0 || times < 1) {
		fprintf(stderr, "usage: copy BYTES TIMES\n");
		return 2;
	}
	from = buffer(size, 1);
	to = buffer(size, 2);
	rate = calloc((size_t)times, sizeof(*rate));
	if (!rate)
		return 1;
	for (int i = 0; i < times; i++) {
		double begin;

		from[(size_t)i % size] = (char)i; /* so that no pass can be left out */
		begin = now();
		memcpy(to, from, size);
		rate[i] = (double)size / (now() - begin);
		if (to[(size_t)i % size] != (char)i)
			return 1;
	}
	qsort(rate, (size_t)times, sizeof(*rate), compare);
	printf("%.0f\n", rate[times / 2]);
	return 0;
}
