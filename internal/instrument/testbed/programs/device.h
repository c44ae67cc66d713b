/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the programs of this directory share. They exit at the first error. */
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

/*
 * Connects an RC queue pair to another. A sender without a posted receive waits as the RNR timer
 * code says: 12 is 0.64 ms, 1 is 10 us.
 */
static inline void connect_qp_rnr(struct ibv_qp *qp, const union ibv_gid *gid, unsigned int number, unsigned char rnr_timer)
{
	struct ibv_qp_attr a;

	memset(&a, 0, sizeof(a));
	a.qp_state = IBV_QPS_INIT;
	a.port_num = 1;
	a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("modify to INIT");

	memset(&a, 0, sizeof(a));
	a.qp_state = IBV_QPS_RTR;
	a.path_mtu = IBV_MTU_1024;
	a.dest_qp_num = number;
	a.max_dest_rd_atomic = 1;
	a.min_rnr_timer = rnr_timer;
	a.ah_attr.is_global = 1;
	a.ah_attr.grh.dgid = *gid;
	a.ah_attr.grh.hop_limit = 64;
	a.ah_attr.port_num = 1;
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("modify to RTR");

	memset(&a, 0, sizeof(a));
	a.qp_state = IBV_QPS_RTS;
	a.timeout = 14;
	a.retry_cnt = 7;
	a.rnr_retry = 7;
	a.max_rd_atomic = 1;
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				  IBV_QP_MAX_QP_RD_ATOMIC))
		fail("modify to RTS");
}

static inline void connect_qp(struct ibv_qp *qp, const union ibv_gid *gid, unsigned int number)
{
	connect_qp_rnr(qp, gid, number, 12);
}

/* Prints a line for the parent process. */
static inline void say(const char *word)
{
	if (puts(word) < 0 || fflush(stdout))
		fail("stdout");
}

#endif
