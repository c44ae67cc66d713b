/* Messages between kv_server and kv_client. Numbers are in the host's byte order: both machines have the
 * same architecture. */
#ifndef KV_H
#define KV_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define KV_PORT "7471"
#define KV_KEYS 32768

enum kv_type {
	KV_DISCONNECT, /* the client disconnects */
	KV_SET,        /* table[key] = value */
	KV_SET_REPLY,
	KV_QUERY,      /* what is table[key]? */
	KV_QUERY_REPLY,
	KV_INFO,       /* where is the table? The reply is of the same type. */
};

struct kv_message {
	uint32_t type;
	union {
		struct {
			int32_t key;
			int32_t value;
		};
		struct {
			uint32_t rkey;
			uint32_t keys;
			uint64_t address;
		} info;
	};
};

_Static_assert(sizeof(struct kv_message) == 24, "the message has 24 bytes");

static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

/* check ends the program unless there is a successful completion. */
static inline void check(const char *what, int got, const struct ibv_wc *wc)
{
	if (got < 0)
		die(what);
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s: %s\n", what, ibv_wc_status_str(wc->status));
		exit(1);
	}
}

#endif
