/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mends rsockets from outside.
 *
 * Its service threads poll a list that grows four sockets at a time. The library of
 * rdma-core 44 goes on using the old list when there is a new one: from the fourth socket on
 * it reads and writes freed memory. A list that starts large never grows.
 *
 * And it reads its settings from files that few machines have. Where one is missing, ours
 * are better for a device that is made of memory.
 */
#include <stdio.h>
#include <string.h>

#include "sockets.h"

/* struct rs_svc of librdmacm/rsocket.c, the same from version 1.1.0 to 65. */
struct service {
	pthread_t id;
	int pair[2];
	int count, size, context_size;
	void *(*run)(void *);
	void *sockets, *contexts;
};

/* Nothing but that struct looks like this: it names the function that gets it, and a
 * pair of open descriptors. */
static bool is_service(void *(*run)(void *), const struct service *s)
{
	return s->run == run && s->count == 0 && s->size == 0 && s->context_size == 8 && !s->sockets && !s->contexts &&
	       s->pair[0] > 2 && s->pair[1] > 2;
}

static __thread int pair_first __attribute__((tls_model("initial-exec")));

void library_pair(const int pair[2]) { pair_first = pair[0]; }

EXPORT int pthread_create(pthread_t *restrict id, const pthread_attr_t *restrict attr, void *(*run)(void *), void *restrict arg)
{
	/* rsockets makes the pair right before the thread, and id is the struct's first field. */
	struct service *s = arg;
	if (s && (void *)id == arg && pair_first && s->pair[0] == pair_first && is_service(run, s))
		s->size = TABLE;
	pair_first = 0;
	return REAL(pthread_create)(id, attr, run, arg);
}

#define SETTINGS "/etc/rdma/rsocket/"

static const struct {
	const char *name, *value;
} ours[] = {
	{"mem_default", "1048576"},  /* the receive buffer */
	{"wmem_default", "1048576"}, /* the send buffer */
	{"polling_time", "50"},      /* microseconds of polling before sleeping */
};

static FILE *setting(const char *path)
{
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		if (!strcmp(path + sizeof SETTINGS - 1, ours[i].name))
			return fmemopen((void *)(uintptr_t)ours[i].value, strlen(ours[i].value), "r");
	return NULL;
}

EXPORT FILE *fopen(const char *restrict path, const char *restrict mode)
{
	FILE *f = REAL(fopen)(path, mode);
	if (unlikely(!f && !strncmp(path, SETTINGS, sizeof SETTINGS - 1))) {
		int why = errno;
		f = setting(path);
		errno = why;
	}
	return f;
}
