/* SPDX-License-Identifier: Apache-2.0 */
/*
 * register BYTES: how long ibv_reg_mr takes for memory in use, and for a second registration of
 * the same memory while the first one exists.
 *
 * It prints the two times in seconds.
 */
#include "device.h"
#include <sys/mman.h>
#include <time.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	size_t size = argc > 1 ? strtoull(argv[1], NULL, 10) : 256u << 20;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *first, *second;
	double begin, middle, end;
	unsigned char *memory;

	if (!pd)
		fail("ibv_alloc_pd");
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("mmap");
	memset(memory, 0x5a, size);

	begin = now();
	first = ibv_reg_mr(pd, memory, size, access);
	if (!first)
		fail("ibv_reg_mr");
	middle = now();
	second = ibv_reg_mr(pd, memory, size, access);
	if (!second)
		fail("second ibv_reg_mr");
	end = now();

	for (size_t i = 0; i < size; i += 4096) {
		if (memory[i] != 0x5a) {
			fprintf(stderr, "registration changed the byte at %zu\n", i);
			return 1;
		}
	}
	printf("%.6f %.6f\n", middle - begin, end - middle);
	if (ibv_dereg_mr(second) || ibv_dereg_mr(first) || ibv_dealloc_pd(pd) || ibv_close_device(context))
		fail("cleaning up");
	return 0;
}
