/* Threads write all the time while the pages under them are replaced: no write is lost. */
#include "t.h"

#define N (2 << 20)
#define WRITERS 3

static char *buffer;
static _Atomic int stop;

struct writer {
	pthread_t thread;
	int number;
	uint64_t written[N / 4096];
};

/* Each writer owns 8 bytes of every page and counts up in them. */
static void *writes(void *arg)
{
	struct writer *w = arg;
	for (uint64_t i = 0; !stop; i++)
		for (int page = 0; page < N / 4096; page++) {
			volatile uint64_t *slot =
				(volatile uint64_t *)(buffer + page * 4096 + w->number * 64);
			if (*slot != w->written[page]) {
				fprintf(stderr, "page %d: lost a write: %lu, wrote %lu\n", page,
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
	int pair[2];
	(void)arg;
	CHECK(pipe(pair) == 0);
	for (int i = 0; !stop; i++) {
		uint32_t out = (uint32_t)i, in;
		char *at = buffer + i % (N / 4096) * 4096 + 2048;
		CHECK(write(pair[1], &out, 4) == 4);
		CHECK(read(pair[0], at, 4) == 4);
		memcpy(&in, at, 4);
		CHECK(in == out);
	}
	close(pair[0]);
	close(pair[1]);
	return NULL;
}

static struct writer w[WRITERS];

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 60;
	int fd = open_device();
	for (int round = 0; round < rounds; round++) {
		pthread_t reader;
		buffer = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(buffer != MAP_FAILED);
		memset(w, 0, sizeof w);
		stop = 0;
		for (int i = 0; i < WRITERS; i++) {
			w[i].number = i;
			pthread_create(&w[i].thread, NULL, writes, &w[i]);
		}
		pthread_create(&reader, NULL, reads, NULL);
		usleep((useconds_t)(round % 5) * 700);
		reg_as(fd, buffer, N, SHARED);
		usleep(1000);
		stop = 1;
		for (int i = 0; i < WRITERS; i++)
			pthread_join(w[i].thread, NULL);
		pthread_join(reader, NULL);
		for (int i = 0; i < WRITERS; i++)
			for (int page = 0; page < N / 4096; page++) {
				uint64_t *slot = (uint64_t *)(buffer + page * 4096 + i * 64);
				CHECK(*slot == w[i].written[page]);
			}
		CHECK(ask(fd, CMD_PEEK, (uintptr_t)buffer) == w[0].written[0]);
		munmap(buffer, N);
	}
	return 0;
}
