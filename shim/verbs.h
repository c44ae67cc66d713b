/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What poll.c has to know of libibverbs' structures, as far as programs have them compiled
 * in: so they cannot change. Not <infiniband/verbs.h>, which is not there on every machine
 * that builds us; a test compares the two.
 */
#ifndef VRDMA_VERBS_H
#define VRDMA_VERBS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct context { /* struct ibv_context */
	void *device;
	void *ops[32];
	int cmd_fd;
	int async_fd;
	int num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat;
};
enum { OP_POLL_CQ = 11 };

struct cq { /* struct ibv_cq, and the head of struct ibv_cq_ex */
	struct context *context;
};

struct cq_ex { /* struct ibv_cq_ex */
	struct cq cq;
	void *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t comp_events_completed;
	uint32_t async_events_completed;
	uint32_t comp_mask;
	int status;
	uint64_t wr_id;
	int (*start_poll)(struct cq_ex *, void *attr);
};

/*
 * Before a context with this in abi_compat lies the rest of a struct verbs_context, which
 * grows at its front: sz says how much of it there is, counted from its end.
 */
#define ABI_EXTENDED ((void *)~(uintptr_t)0)
struct before_context {
	struct cq_ex *(*create_cq_ex)(struct context *, void *attr);
	void *others[13];
	size_t sz;
};

#endif
