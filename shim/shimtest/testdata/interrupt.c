/* Signals during round trips: requests and replies stay in step. */
#include "t.h"

#include <sys/time.h>

static volatile int ticks;
static void tick(int s)
{
	(void)s;
	ticks++;
}

static void *worker(void *arg)
{
	int fd = *(int *)arg;
	for (uint64_t i = 0; i < 300; i++)
		CHECK(ask(fd, i % 50 ? CMD_ECHO : CMD_SLOW, i) == i + 1);
	return NULL;
}

int main(void)
{
	struct sigaction sa = {.sa_handler = tick}; /* no SA_RESTART */
	struct itimerval it = {{0, 500}, {0, 500}};
	pthread_t t[4];
	int fd = open_device();

	sigaction(SIGALRM, &sa, NULL);
	setitimer(ITIMER_REAL, &it, NULL);
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, worker, &fd);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	/*
	 * After a second of waiting the shim unblocks the signals. On a busy machine that second ends late, and the
	 * answer may come first: ask again.
	 */
	int before = ticks;
	for (int i = 0; i < 20 && ticks <= before + 50; i++)
		CHECK(ask(fd, CMD_SLOW, 1600) == 1601);
	CHECK(ticks > before + 50);
	CHECK(ask(fd, CMD_ECHO, 5) == 6);
	return 0;
}
