/* SPDX-License-Identifier: Apache-2.0 */
/*
 * idle QPS: opens the device, brings QPS queue pairs up, each connected to
 * itself, prints "ready" and is idle until its standard input ends.
 */
#include "device.h"
#include <unistd.h>

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 1;
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	union ibv_gid gid;
	char byte;

	if (!pd || !cq)
		fail("ibv_alloc_pd or ibv_create_cq");
	if (ibv_query_gid(context, 1, 0, &gid))
		fail("ibv_query_gid");
	for (int i = 0; i < count; i++) {
		struct ibv_qp *qp = ibv_create_qp(pd, &init);

		if (!qp)
			fail("ibv_create_qp");
		connect_qp(qp, &gid, qp->qp_num);
	}
	say("ready");
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	return 0;
}
