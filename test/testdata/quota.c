/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota limits: takes of each kind as much as it gets, and prints how many that were and the
 *               errno of the next
 * quota pace:   prints how long many commands took
 */
#include "vt.h"

enum { MOST = 64, MIB = 1 << 20 };

static void show(const char *kind, int n)
{
	printf("%s %d %s\n", kind, n, n == MOST ? "all" : strerrorname_np(errno));
}

int main(int argc, char **argv)
{
	struct dev d = dev_open();
	struct ibv_context *devices[MOST];
	struct ibv_cq *cqs[MOST];
	struct ibv_qp *qps[MOST];
	struct ibv_mr *mrs[MOST];
	struct ibv_pd *pds[MOST];
	int n, i;

	CHECK(argc == 2, "usage: quota limits | quota pace");
	if (!strcmp(argv[1], "pace")) {
		double t = vt_now();
		for (i = 0; i < MOST; i++)
			pds[i] = MADE(ibv_alloc_pd(d.ctx));
		printf("commands %d in %.0f ms\n", i, (vt_now() - t) * 1e3);
		for (i = 0; i < MOST; i++)
			ZERO(ibv_dealloc_pd(pds[i]));
		return 0;
	}
	struct ibv_device **list = MADE(ibv_get_device_list(NULL));
	for (n = 0; n < MOST && (devices[n] = ibv_open_device(list[0])); n++)
		;
	show("devices", n);
	for (i = 0; i < n; i++)
		ZERO(ibv_close_device(devices[i]));

	for (n = 0; n < MOST && (cqs[n] = ibv_create_cq(d.ctx, 16, NULL, NULL, 0)); n++)
		;
	show("cqs", n);
	for (i = 1; i < n; i++)
		ZERO(ibv_destroy_cq(cqs[i]));

	struct ibv_qp_init_attr a = {.send_cq = cqs[0], .recv_cq = cqs[0], .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	for (n = 0; n < MOST && (qps[n] = ibv_create_qp(d.pd, &a)); n++)
		;
	show("qps", n);
	for (i = 0; i < n; i++)
		ZERO(ibv_destroy_qp(qps[i]));

	char *mem = MADE(aligned_alloc(4096, (size_t)MOST * MIB));
	memset(mem, 1, (size_t)MOST * MIB);
	for (n = 0; n < MOST && (mrs[n] = ibv_reg_mr(d.pd, mem + (size_t)n * MIB, MIB, ALL_ACCESS)); n++)
		;
	show("memory", n);
	for (i = 0; i < n; i++)
		ZERO(ibv_dereg_mr(mrs[i]));
	return 0;
}
