/* SPDX-License-Identifier: Apache-2.0 */
/* MPI ranks measure messages between ranks 0 and 1, all-reduce and all-to-all among all ranks, and check every byte of the last round.
 *
 *	mpibench ROUNDS
 *
 * It prints a line for each measurement: its name, and the microseconds of one way or one operation. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, size, rounds;

static void check(int ok, const char *what, size_t at)
{
	if (!ok) {
		fprintf(stderr, "FAIL rank %d: %s at %zu\n", rank, what, at);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

static unsigned char byte_of(int from, int to, size_t i) { return (unsigned char)(from * 31 + to * 7 + i * 13 + i / 251); }

/* Large messages have fewer rounds. */
static int rounds_of(size_t bytes) { return bytes > 65536 ? 1 + rounds / 10 : rounds; }

static void report(const char *what, size_t bytes, double seconds, int n)
{
	if (rank == 0)
		printf("%s %zu: %.2f us\n", what, bytes, seconds / n * 1e6);
}

static void message(size_t bytes)
{
	unsigned char *out = malloc(bytes), *in = calloc(1, bytes);
	int n = rounds_of(bytes), other = 1 - rank;
	double from = 0;

	for (size_t i = 0; i < bytes; i++)
		out[i] = byte_of(rank, other, i);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int round = -1 - n / 10; round < n && rank < 2; round++) {
		if (round == 0)
			from = MPI_Wtime();
		if (rank == 0)
			MPI_Send(out, (int)bytes, MPI_BYTE, other, 1, MPI_COMM_WORLD);
		MPI_Recv(in, (int)bytes, MPI_BYTE, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (rank == 1)
			MPI_Send(out, (int)bytes, MPI_BYTE, other, 1, MPI_COMM_WORLD);
	}
	report("message", bytes, (MPI_Wtime() - from) / 2, n);
	for (size_t i = 0; i < bytes && rank < 2; i++)
		check(in[i] == byte_of(other, rank, i), "message", i);
	free(out);
	free(in);
}

static void all_reduce(size_t bytes)
{
	size_t n = bytes / sizeof(long);
	long *out = malloc(bytes), *in = malloc(bytes);
	int times = rounds_of(bytes);

	for (size_t i = 0; i < n; i++)
		out[i] = rank + (long)i;
	MPI_Allreduce(out, in, (int)n, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	double from = MPI_Wtime();
	for (int round = 0; round < times; round++)
		MPI_Allreduce(out, in, (int)n, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	report("allreduce", bytes, MPI_Wtime() - from, times);
	for (size_t i = 0; i < n; i++)
		check(in[i] == (long)size * (size - 1) / 2 + size * (long)i, "all-reduce", i);
	free(out);
	free(in);
}

static void all_to_all(size_t bytes)
{
	unsigned char *out = malloc(bytes * (size_t)size), *in = calloc(bytes, (size_t)size);
	int times = rounds_of(bytes);

	for (int to = 0; to < size; to++)
		for (size_t i = 0; i < bytes; i++)
			out[(size_t)to * bytes + i] = byte_of(rank, to, i);
	MPI_Alltoall(out, (int)bytes, MPI_BYTE, in, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
	double from = MPI_Wtime();
	for (int round = 0; round < times; round++)
		MPI_Alltoall(out, (int)bytes, MPI_BYTE, in, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
	report("alltoall", bytes, MPI_Wtime() - from, times);
	for (int of = 0; of < size; of++)
		for (size_t i = 0; i < bytes; i++)
			check(in[(size_t)of * bytes + i] == byte_of(of, rank, i), "all-to-all", i);
	free(out);
	free(in);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	rounds = argc > 1 ? atoi(argv[1]) : 100;
	static const size_t messages[] = {1, 1024, 16384, 65536, 1 << 20, 4 << 20}, reduced[] = {8, 65536, 1 << 20}, exchanged[] = {8, 65536};
	for (size_t i = 0; i < sizeof messages / sizeof *messages && size == 2; i++)
		message(messages[i]);
	for (size_t i = 0; i < sizeof reduced / sizeof *reduced; i++)
		all_reduce(reduced[i]);
	for (size_t i = 0; i < sizeof exchanged / sizeof *exchanged; i++)
		all_to_all(exchanged[i]);
	MPI_Barrier(MPI_COMM_WORLD);
	printf("ok rank %d of %d\n", rank, size);
	fflush(stdout);
	MPI_Finalize();
	return 0;
}
