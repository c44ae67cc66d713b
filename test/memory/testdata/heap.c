/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap: threads allocate, fill, register, move and free buffers of an allocator, whose own
 * records lie on the same pages. The allocator may be another than glibc's (LD_PRELOAD); its
 * library is printed. HEAP_ROUNDS is how often each thread does so.
 */
#include "mem.h"

enum { THREADS = 4, KEPT = 8 };

static struct loop device;
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER; /* of the queue pairs */
static long turns_each;

static void *use(void *arg)
{
	unsigned random = (unsigned)(uintptr_t)arg * 7919u + 1;
	char *kept[KEPT] = {0};
	size_t lengths[KEPT] = {0};

	for (long n = 0; n < turns_each; n++) {
		unsigned i = (random = random * 1103515245u + 12345u) >> 16;
		size_t len = 64 + (i * 977ul) % (n % 8 ? 6000 : 300000);
		char **slot = &kept[i % KEPT];
		struct buf b;

		if (*slot) {
			expect_fill(*slot, lengths[i % KEPT], (uint32_t)(uintptr_t)arg + i % KEPT, "an older buffer");
			*slot = MADE(realloc(*slot, len));
		} else {
			*slot = MADE(malloc(len));
		}
		lengths[i % KEPT] = len;
		fill(*slot, len, (uint32_t)(uintptr_t)arg + i % KEPT);
		b = reg(&device, *slot, len);
		pthread_mutex_lock(&one);
		prove(&device, &b, "a buffer of the heap");
		pthread_mutex_unlock(&one);
		unreg(&b);
		expect_fill(*slot, len, (uint32_t)(uintptr_t)arg + i % KEPT, "a buffer");
		if (n % 5 == 0) {
			free(*slot);
			*slot = NULL;
		}
	}
	for (int i = 0; i < KEPT; i++)
		free(kept[i]);
	return NULL;
}

static void name_library(const char *line, void *arg)
{
	const char *path = strchr(line, '/');

	(void)arg;
	if (path && strstr(line, "r-xp") && (strstr(path, "malloc")))
		printf("%s", path);
}

int main(void)
{
	pthread_t t[THREADS];

	setvbuf(stdout, NULL, _IOLBF, 0);
	turns_each = getenv("HEAP_ROUNDS") ? atol(getenv("HEAP_ROUNDS")) : rounds(60);
	proc_lines("/proc/self/maps", name_library, NULL);
	device = loop_open();
	for (long i = 0; i < THREADS; i++)
		t[i] = thread_new(use, (void *)(i + 1));
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	loop_close(&device);
	printf("ok heap\n");
	return 0;
}
