/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An ordinary TCP program: N connections at once, each with a thread that sends SIZE bytes
 * there, gets a checksum and the same bytes back, and compares. It knows nothing of RDMA.
 *
 *   tcp PORT N SIZE          serve
 *   tcp PORT N SIZE ADDR     call
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(x)                                                                       \
	({                                                                             \
		long r_ = (long)(x);                                                   \
		if (r_ < 0) {                                                          \
			fprintf(stderr, "%d: %s: %s\n", __LINE__, #x, strerror(errno)); \
			exit(1);                                                       \
		}                                                                      \
		r_;                                                                    \
	})

static size_t size;

struct connection {
	int number, fd;
	pthread_t thread;
};

static uint64_t mix(uint64_t h, const unsigned char *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		h = (h ^ b[i]) * 1099511628211ull;
	return h;
}

static void all(int fd, void *buf, size_t n, int in)
{
	for (size_t at = 0; at < n;) {
		long r = in ? read(fd, (char *)buf + at, n - at) : write(fd, (char *)buf + at, n - at);
		if (r <= 0) {
			fprintf(stderr, "%s after %zu of %zu bytes: %s\n", in ? "read" : "write", at, n, r ? strerror(errno) : "end");
			exit(1);
		}
		at += (size_t)r;
	}
}

static void *serve(void *arg)
{
	struct connection *c = arg;
	unsigned char *buf = malloc(size), end;
	all(c->fd, buf, size, 1);
	uint64_t sum = mix(0, buf, size);
	all(c->fd, &sum, sizeof sum, 0);
	all(c->fd, buf, size, 0);
	if (read(c->fd, &end, 1) != 0) {
		fprintf(stderr, "connection %d: no end came\n", c->number);
		exit(1);
	}
	close(c->fd);
	free(buf);
	return NULL;
}

static void *call(void *arg)
{
	struct connection *c = arg;
	unsigned char *buf = malloc(size), *back = malloc(size);
	uint64_t sum;
	for (size_t j = 0; j < size; j++)
		buf[j] = (unsigned char)(j * 7 + (size_t)c->number + (j >> 9));
	all(c->fd, buf, size, 0);
	all(c->fd, &sum, sizeof sum, 1);
	all(c->fd, back, size, 1);
	if (sum != mix(0, buf, size) || memcmp(buf, back, size)) {
		fprintf(stderr, "connection %d: other bytes\n", c->number);
		exit(1);
	}
	CHECK(shutdown(c->fd, SHUT_WR));
	close(c->fd);
	free(buf);
	free(back);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	int n = atoi(argv[2]), l = -1;
	size = (size_t)atol(argv[3]);
	struct connection *c = calloc((size_t)n, sizeof *c);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
	if (argc == 4) {
		l = (int)CHECK(socket(AF_INET, SOCK_STREAM, 0));
		CHECK(bind(l, (struct sockaddr *)&a, sizeof a));
		CHECK(listen(l, 128));
	} else {
		inet_pton(AF_INET, argv[4], &a.sin_addr);
	}
	for (int i = 0; i < n; i++) {
		c[i].number = i;
		if (l >= 0) {
			c[i].fd = (int)CHECK(accept(l, NULL, NULL));
		} else {
			c[i].fd = (int)CHECK(socket(AF_INET, SOCK_STREAM, 0));
			CHECK(connect(c[i].fd, (struct sockaddr *)&a, sizeof a));
		}
	}
	for (int i = 0; i < n; i++)
		if ((errno = pthread_create(&c[i].thread, NULL, l >= 0 ? serve : call, &c[i])))
			CHECK(-1);
	for (int i = 0; i < n; i++)
		pthread_join(c[i].thread, NULL);
	puts("all arrived");
	return 0;
}
