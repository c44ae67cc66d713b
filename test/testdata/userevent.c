/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only a librdmacm of 2025 and later has: events that a program writes itself, and
 * address information that is looked up in the background, which needs them. It is found
 * at run time, so that older headers will do.
 */
#include <dlfcn.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADDRINFO_RESOLVED = 16, USER = 18 };

#define CHECK(x)                                                                       \
	do {                                                                           \
		if (!(x)) {                                                            \
			fprintf(stderr, "%d: %s: %s\n", __LINE__, #x, strerror(errno)); \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

int main(void)
{
	int (*write_event)(struct rdma_cm_id *, int, int, uint64_t);
	int (*resolve)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *);
	int (*query)(struct rdma_cm_id *, struct rdma_addrinfo **);
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *info = NULL;
	struct rdma_cm_event *e;
	struct rdma_cm_id *id;
	uint64_t arg;

	*(void **)&write_event = dlsym(RTLD_DEFAULT, "rdma_write_cm_event");
	*(void **)&resolve = dlsym(RTLD_DEFAULT, "rdma_resolve_addrinfo");
	*(void **)&query = dlsym(RTLD_DEFAULT, "rdma_query_addrinfo");
	CHECK(write_event && resolve && query);
	CHECK(ch && !rdma_create_id(ch, &id, NULL, RDMA_PS_TCP));

	CHECK(!write_event(id, USER, -5, 0x1122334455667788));
	CHECK(!rdma_get_cm_event(ch, &e));
	memcpy(&arg, &e->param, sizeof arg);
	CHECK((int)e->event == USER && e->status == -5 && e->id == id && arg == 0x1122334455667788);
	rdma_ack_cm_event(e);
	CHECK(write_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0) == -1 && errno == EINVAL);

	CHECK(!resolve(id, "127.0.0.1", "7040", &hints));
	CHECK(!rdma_get_cm_event(ch, &e));
	CHECK((int)e->event == ADDRINFO_RESOLVED && e->status == 0);
	rdma_ack_cm_event(e);
	CHECK(!query(id, &info) && info && info->ai_dst_len);
	rdma_freeaddrinfo(info);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
	puts("ok");
	return 0;
}
