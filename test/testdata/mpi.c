/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi [FILE]: two or more MPI ranks exchange messages of every size, put, get and accumulate,
 * and check each byte. With FILE they repeat that until it exists, and the first rank prints "round N".
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;

static void check(int ok, const char *what, size_t at)
{
	if (!ok) {
		fprintf(stderr, "FAIL rank %d: %s at %zu\n", rank, what, at);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

static unsigned char byte_of(int from, size_t len, size_t i)
{
	return (unsigned char)(from * 31 + len * 7 + i * 13 + i / 251);
}

static void exchange(size_t len)
{
	int next = (rank + 1) % size, prev = (rank + size - 1) % size;
	unsigned char *out = calloc(1, len + 1), *in = calloc(1, len + 1);
	MPI_Status st;
	int got;

	for (size_t i = 0; i < len; i++)
		out[i] = byte_of(rank, len, i);
	MPI_Sendrecv(out, (int)len, MPI_BYTE, next, 5, in, (int)len, MPI_BYTE, prev, 5, MPI_COMM_WORLD, &st);
	MPI_Get_count(&st, MPI_BYTE, &got);
	check((size_t)got == len, "length", (size_t)got);
	for (size_t i = 0; i < len; i++)
		check(in[i] == byte_of(prev, len, i), "byte", i);
	free(out);
	free(in);
}

static void one_sided(void)
{
	enum { N = 4096 };
	long *win_mem, local[N];
	MPI_Win win;
	int next = (rank + 1) % size, prev = (rank + size - 1) % size;

	MPI_Win_allocate(N * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &win_mem, &win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < N; i++)
		local[i] = rank * 100000L + i;
	MPI_Put(local, N, MPI_LONG, next, 0, N, MPI_LONG, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < N; i++)
		check(win_mem[i] == prev * 100000L + i, "put", (size_t)i);
	MPI_Win_fence(0, win);
	memset(local, 0, sizeof(local));
	MPI_Get(local, N, MPI_LONG, next, 0, N, MPI_LONG, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < N; i++)
		check(local[i] == rank * 100000L + i, "get", (size_t)i);
	win_mem[0] = 0;
	MPI_Win_fence(0, win);
	long one = 1, old;
	MPI_Win_lock_all(0, win);
	for (int i = 0; i < 200; i++)
		MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 0, MPI_SUM, win);
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_fence(0, win);
	if (rank == 0)
		check(win_mem[0] == 200L * size, "fetch and add", (size_t)win_mem[0]);
	MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (int n = 1, again = 1; again; n++) {
		for (size_t len = 1; len <= 16 << 20; len *= 2) {
			exchange(len - 1);
			exchange(len);
		}
		one_sided();
		long sum = 0, mine = rank + 1;
		MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
		check(sum == (long)size * (size + 1) / 2, "allreduce", (size_t)sum);
		again = argc > 1 && access(argv[1], F_OK) < 0;
		MPI_Bcast(&again, 1, MPI_INT, 0, MPI_COMM_WORLD);
		if (again && rank == 0) {
			printf("round %d\n", n);
			fflush(stdout);
		}
	}
	printf("ok rank %d of %d\n", rank, size);
	MPI_Finalize();
	return 0;
}
