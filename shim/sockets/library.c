/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mends rsockets from outside.
 *
 * Its service threads poll a list that grows four sockets at a time. The library of
 * rdma-core 44 goes on using the old list when there is a new one: from the fourth socket on
 * it reads and writes freed memory. A list that starts large never grows.
 *
 * A service thread that hears of a peer's death marks the connection and wakes whoever
 * polls, but not a close that waits for what was sent to arrive: that takes until the last
 * retry, some 17 seconds. So when it comes back from there we put the queue pair into its
 * error state, as the program is about to do, and the close sees its sends fail.
 *
 * Most calls of the preload library crash unless a certain few came before: bash dies of
 * asking for the name of its standard input. We make one such call at the start.
 *
 * And it reads its settings from files that few machines have. Where one is missing, ours
 * are better for a device that is made of memory.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
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
	return s->run == run && s->count == 0 && s->size >= 0 && s->context_size == 8 && !s->sockets == !s->contexts &&
	       s->pair[0] > 2 && s->pair[1] > 2;
}

static __thread int pair_first __attribute__((tls_model("initial-exec")));

void library_pair(const int pair[2]) { pair_first = pair[0]; }

static __thread struct {
	bool here;    /* this is a service thread */
	struct id *gone; /* its last event was: the peer disconnected */
} service __attribute__((tls_model("initial-exec")));

struct job {
	void *(*run)(void *);
	void *arg;
};

static void *serve(void *arg)
{
	struct job job = *(struct job *)arg;
	free(arg);
	service.here = true;
	return job.run(job.arg);
}

EXPORT int pthread_create(pthread_t *restrict id, const pthread_attr_t *restrict attr, void *(*run)(void *), void *restrict arg)
{
	/* rsockets makes the pair right before the thread, and id is the struct's first field. */
	struct service *s = arg;
	bool ours = s && (void *)id == arg && pair_first && s->pair[0] == pair_first && is_service(run, s);
	pair_first = 0;
	struct job *job = ours ? malloc(sizeof *job) : NULL;
	if (!job)
		return REAL(pthread_create)(id, attr, run, arg);
	if (s->size < TABLE)
		s->size = TABLE;
	*job = (struct job){run, arg};
	int r = REAL(pthread_create)(id, attr, serve, job);
	if (r)
		free(job);
	return r;
}

/* The head of struct rdma_cm_id; the kernel keeps its address with each event. */
struct id {
	void *verbs, *channel, *context, *qp;
};

/* struct rdma_ucm_get_event behind its struct rdma_ucm_cmd_hdr */
struct get_event {
	uint32_t command;
	uint16_t in, out;
	struct {
		struct id *uid;
		uint32_t id, event;
	} *response;
};
enum { GET_EVENT = 12, DISCONNECTED = 10, QP_STATE = 1, QP_ERROR = 6 };

void library_wrote(const void *buf, size_t n)
{
	struct get_event q;
	if (likely(!service.here) || n != sizeof q)
		return;
	memcpy(&q, buf, sizeof q);
	if (q.command == GET_EVENT && q.in == 8 && q.response->event == DISCONNECTED)
		service.gone = q.response->uid;
}

void library_polls(void)
{
	if (likely(!service.gone))
		return;
	int attributes[256] = {QP_ERROR}; /* struct ibv_qp_attr is smaller, and begins so */
	/* While this thread is here, nobody can take the connection from its list and free it. */
	if (service.gone->qp)
		REAL_AS(int (*)(void *, int *, int), ibv_modify_qp)(service.gone->qp, attributes, QP_STATE);
	service.gone = NULL;
}

__attribute__((constructor)) static void awaken(void) { REAL(poll)(NULL, 0, 0); }

#define SETTINGS "/etc/rdma/rsocket/"

static const struct {
	const char *name, *value;
} ours[] = {
	{"polling_time", "200"}, /* microseconds of polling before sleeping */
};

static FILE *file_of(const char *value)
{
	int pipe[2];
	if (sys(SYS_pipe2, pipe, O_CLOEXEC) < 0)
		return NULL;
	sys(SYS_write, pipe[1], value, strlen(value));
	sys(SYS_close, pipe[1]);
	return fdopen(pipe[0], "r");
}

static FILE *setting(const char *path)
{
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		if (!strcmp(path + sizeof SETTINGS - 1, ours[i].name))
			return file_of(ours[i].value);
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
