/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values ADDRESS PORT PREFIX: a client of redis. It sets keys that begin with PREFIX to values of random lengths, overwrites
 * and gets them at random, and checks every byte and every answer. Prints "N values" after each hundred. It ends with an
 * error only.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { KEYS = 64, LONGEST = 100000, BATCH = 16 };

/* stdio calls the kernel by itself, so a library that replaces read and write does not see what it does. */
static int line_fd;
static char in[1 << 16], out[1 << 22];
static size_t in_at, in_end, out_end;

static void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("values: ", stderr);
	vfprintf(stderr, format, args);
	fprintf(stderr, " (%s)\n", strerror(errno));
	exit(1);
}

static uint64_t draw(void)
{
	static uint64_t s = 88172645463325252ull;

	s ^= s << 13;
	s ^= s >> 7;
	return s ^= s << 17;
}

/* What a key has: a version, from which length and bytes follow; 0: nothing yet. */
static uint32_t version[KEYS];

static size_t length(int key, uint32_t v)
{
	return (v * 2654435761u ^ (uint32_t)key * 40503u) % LONGEST;
}

static char byte_of(int key, uint32_t v, size_t i)
{
	return (char)((size_t)key * 31 + v * 7 + i * 13 + i / 251);
}

static char next(void)
{
	if (in_at == in_end) {
		ssize_t n = read(line_fd, in, sizeof in);
		if (n <= 0)
			fail("read: %zd", n);
		in_at = 0;
		in_end = (size_t)n;
	}
	return in[in_at++];
}

static void add(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	out_end += (size_t)vsnprintf(out + out_end, sizeof out - out_end, format, args);
	va_end(args);
}

static void flush(void)
{
	for (size_t at = 0; at < out_end;) {
		ssize_t n = write(line_fd, out + at, out_end - at);
		if (n <= 0)
			fail("write: %zd", n);
		at += (size_t)n;
	}
	out_end = 0;
}

static void answer(const char *want)
{
	char line[64];
	size_t n = 0;

	for (char c; (c = next()) != '\n';)
		if (n < sizeof line - 1)
			line[n++] = c;
	line[n ? n - 1 : 0] = 0; /* without \r */
	if (strcmp(line, want))
		fail("the answer is %s, want %s", line, want);
}

static void set(const char *prefix, int key)
{
	char name[64];
	uint32_t v = ++version[key];
	size_t n = length(key, v);

	snprintf(name, sizeof name, "%s:%d", prefix, key);
	add("*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n", strlen(name), name, n);
	for (size_t i = 0; i < n; i++)
		out[out_end++] = byte_of(key, v, i);
	add("\r\n");
}

static void get(const char *prefix, int key)
{
	char name[64];

	snprintf(name, sizeof name, "%s:%d", prefix, key);
	add("*2\r\n$3\r\nGET\r\n$%zu\r\n%s\r\n", strlen(name), name);
}

static void got(int key, uint32_t v)
{
	char want[32];
	size_t n = length(key, v);

	snprintf(want, sizeof want, "$%zu", n);
	answer(want);
	for (size_t i = 0; i < n; i++) {
		char c = next();
		if (c != byte_of(key, v, i))
			fail("key %d, version %u: byte %zu of %zu is %d, want %d", key, v, i, n, c, byte_of(key, v, i));
	}
	if (next() != '\r' || next() != '\n')
		fail("a value of %zu bytes does not end", n);
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET};

	line_fd = socket(AF_INET, SOCK_STREAM, 0);
	if (argc != 4 || !inet_aton(argv[1], &to.sin_addr))
		fail("usage: values ADDRESS PORT PREFIX");
	to.sin_port = htons((uint16_t)atoi(argv[2]));
	if (connect(line_fd, (struct sockaddr *)&to, sizeof to) < 0)
		fail("connect");
	for (unsigned long n = 0;;) {
		/* Some requests under way: half of them set, so the values that the others get are known here. */
		struct {
			int key;
			uint32_t get;
		} batch[BATCH];
		int many = (int)(draw() % BATCH) + 1;

		for (int i = 0; i < many; i++) {
			int key = (int)(draw() >> 20) % KEYS;

			if (key < 0)
				key = -key;
			batch[i].key = key;
			batch[i].get = draw() >> 40 & 1 ? version[key] : 0;
			if (batch[i].get)
				get(argv[3], key);
			else
				set(argv[3], key);
		}
		flush();
		for (int i = 0; i < many; i++) {
			if (batch[i].get)
				got(batch[i].key, batch[i].get);
			else
				answer("+OK");
			if (++n % 100 == 0) {
				printf("%lu values\n", n);
				fflush(stdout);
			}
		}
	}
}
