/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs of this directory share: they end at the first error. */
#ifndef DEVICE_H
#define DEVICE_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

/* The first RDMA device. */
static inline struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	if (!list || !list[0]) {
		fprintf(stderr, "no RDMA device: run this with vrdma run\n");
		exit(1);
	}
	context = ibv_open_device(list[0]);
	if (!context)
		fail("ibv_open_device");
	ibv_free_device_list(list);
	return context;
}

#endif
