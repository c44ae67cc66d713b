// numbers PORT: a TCP server in a virtual machine that migrates. A stream consists of the numbers 0, 1, 2 … as 64-bit
// words. The first byte of a connection says what becomes of it:
//
//	f   numbers flow in both directions. The last ones that arrived stay in memory and are checked again at the end.
//	h   nothing is read before the file "go" exists: what arrives stays in the buffers of the kernel
//	d   no numbers: 32 MiB of memory are written again and again until the peer closes, so that a migration does not end
//
// When the peer has sent everything, the answer is ~0 and how many numbers were right. A wrong number ends the program.
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORDS = 1 << 20, BATCH = 2048, DIRTY = 32 << 20 };

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "numbers: %s: %s\n", what, strerror(errno));
	exit(1);
}

struct stream {
	int socket;
	bool stop;
	pthread_mutex_t lock;
};

static void send_all(int socket, const void *b, size_t n)
{
	while (n > 0) {
		ssize_t k = send(socket, b, n, MSG_NOSIGNAL);
		must(k > 0, "send");
		b = (const char *)b + k;
		n -= k;
	}
}

// speak sends numbers until it is stopped.
static void *speak(void *arg)
{
	struct stream *s = arg;
	uint64_t next = 0, batch[BATCH];
	for (;;) {
		pthread_mutex_lock(&s->lock);
		bool stop = s->stop;
		pthread_mutex_unlock(&s->lock);
		if (stop)
			return NULL;
		for (int i = 0; i < BATCH; i++)
			batch[i] = next++;
		send_all(s->socket, batch, sizeof batch);
		usleep(10000);
	}
}

// listen_to checks numbers until the peer has sent the last one.
static uint64_t listen_to(int socket)
{
	uint64_t *memory = malloc(WORDS * 8);
	must(memory != NULL, "memory");
	uint64_t bytes = 0;
	for (;;) {
		uint64_t at = bytes % (WORDS * 8);
		ssize_t n = recv(socket, (char *)memory + at, WORDS * 8 - at, 0);
		must(n >= 0, "recv");
		uint64_t first = bytes / 8;
		bytes += n;
		for (uint64_t i = first; i < bytes / 8; i++)
			if (memory[i % WORDS] != i) {
				fprintf(stderr, "numbers: number %llu is %llx\n", (unsigned long long)i, (unsigned long long)memory[i % WORDS]);
				exit(1);
			}
		if (n == 0)
			break;
	}
	uint64_t end = bytes / 8;
	for (uint64_t i = end > WORDS ? end - WORDS : 0; i < end; i++)
		if (memory[i % WORDS] != i) {
			fprintf(stderr, "numbers: number %llu has become %llx\n", (unsigned long long)i, (unsigned long long)memory[i % WORDS]);
			exit(1);
		}
	free(memory);
	return end;
}

// dirty writes to many pages until the peer closes.
static void dirty(int socket)
{
	volatile char *memory = malloc(DIRTY);
	must(memory != NULL, "memory");
	char c;
	for (char value = 1; recv(socket, &c, 1, MSG_DONTWAIT) < 0; value++) {
		for (size_t at = 0; at < DIRTY; at += 4096)
			memory[at] = value;
		usleep(20000);
	}
	free((void *)memory);
}

static void *serve(void *arg)
{
	struct stream s = {.socket = (int)(intptr_t)arg, .lock = PTHREAD_MUTEX_INITIALIZER};
	char mode;
	must(recv(s.socket, &mode, 1, 0) == 1, "mode");
	if (mode == 'd') {
		dirty(s.socket);
		close(s.socket);
		return NULL;
	}
	pthread_t speaker;
	if (mode == 'f')
		must(pthread_create(&speaker, NULL, speak, &s) == 0, "thread");
	else
		while (access("go", F_OK) != 0)
			usleep(20000);
	uint64_t answer[2] = {~0ull, listen_to(s.socket)};
	if (mode == 'f') {
		pthread_mutex_lock(&s.lock);
		s.stop = true;
		pthread_mutex_unlock(&s.lock);
		pthread_join(speaker, NULL);
	}
	send_all(s.socket, answer, sizeof answer);
	close(s.socket);
	return NULL;
}

int main(int argc, char **argv)
{
	must(argc == 2, "usage: numbers PORT");
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
	int l = socket(AF_INET, SOCK_STREAM, 0), size = 1 << 20;
	must(l >= 0 && setsockopt(l, SOL_SOCKET, SO_RCVBUF, &size, sizeof size) == 0, "socket");
	must(bind(l, (struct sockaddr *)&at, sizeof at) == 0 && listen(l, 16) == 0, "listen");
	for (;;) {
		int c = accept(l, NULL, NULL);
		must(c >= 0, "accept");
		pthread_t t;
		must(pthread_create(&t, NULL, serve, (void *)(intptr_t)c) == 0 && pthread_detach(t) == 0, "thread");
	}
}
