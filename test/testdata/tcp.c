/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An ordinary TCP program: N connections at once, SIZE bytes over each, and a checksum
 * back. It knows nothing of RDMA.
 *
 *   tcp PORT N SIZE          serve
 *   tcp PORT N SIZE ADDR     call
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
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

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	int n = atoi(argv[2]), fds[1024];
	size_t size = (size_t)atol(argv[3]);
	unsigned char *buf = malloc(size);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
	uint64_t sum, want = 0;

	if (argc == 4) {
		int l = (int)CHECK(socket(AF_INET, SOCK_STREAM, 0));
		CHECK(bind(l, (struct sockaddr *)&a, sizeof a));
		CHECK(listen(l, 128));
		for (int i = 0; i < n; i++)
			fds[i] = (int)CHECK(accept(l, NULL, NULL));
		for (int i = 0; i < n; i++) {
			all(fds[i], buf, size, 1);
			sum = mix((uint64_t)i, buf, size);
			all(fds[i], &sum, sizeof sum, 0);
			char end;
			if (read(fds[i], &end, 1) != 0)
				return fprintf(stderr, "connection %d: more came\n", i), 1;
		}
	} else {
		inet_pton(AF_INET, argv[4], &a.sin_addr);
		for (int i = 0; i < n; i++) {
			fds[i] = (int)CHECK(socket(AF_INET, SOCK_STREAM, 0));
			CHECK(connect(fds[i], (struct sockaddr *)&a, sizeof a));
		}
		for (int i = 0; i < n; i++) {
			for (size_t j = 0; j < size; j++)
				buf[j] = (unsigned char)(j * 7 + (size_t)i + (j >> 9));
			want = mix((uint64_t)i, buf, size);
			all(fds[i], buf, size, 0);
			all(fds[i], &sum, sizeof sum, 1);
			if (sum != want)
				return fprintf(stderr, "connection %d: another checksum\n", i), 1;
			CHECK(shutdown(fds[i], SHUT_WR));
		}
	}
	for (int i = 0; i < n; i++)
		close(fds[i]);
	puts("all arrived");
	return 0;
}
