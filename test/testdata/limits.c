/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limits N: makes objects until they are refused; the daemon allows N of each. The
 * refusal has the errno that Linux's rxe gives, objects that go make room for new
 * ones, and what there is goes on working.
 */
#include "vt.h"

static struct dev d;
static struct buf mem;
static int limit;

/* Each makes one more object and returns it, or NULL with errno set. */
static void *make_pd(void) { return ibv_alloc_pd(d.ctx); }
static void *make_mr(void) { return ibv_reg_mr(d.pd, mem.p, 4096, ALL_ACCESS); }
static void *make_cq(void) { return ibv_create_cq(d.ctx, 8, NULL, NULL, 0); }
static void *make_channel(void) { return ibv_create_comp_channel(d.ctx); }

static void *make_ah(void)
{
	struct ibv_ah_attr a = {.is_global = 1, .port_num = 1, .grh = {.dgid = d.gid, .sgid_index = (uint8_t)d.gid_index, .hop_limit = 1}};

	return ibv_create_ah(d.pd, &a);
}

static void *make_srq(void)
{
	struct ibv_srq_init_attr a = {.attr = {.max_wr = 4, .max_sge = 1}};

	return ibv_create_srq(d.pd, &a);
}

static struct ibv_cq *shared_cq;

static void *make_qp(void)
{
	struct ibv_qp_init_attr a = {.send_cq = shared_cq, .recv_cq = shared_cq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};

	return ibv_create_qp(d.pd, &a);
}

static void free_pd(void *p) { ZERO(ibv_dealloc_pd(p)); }
static void free_mr(void *p) { ZERO(ibv_dereg_mr(p)); }
static void free_cq(void *p) { ZERO(ibv_destroy_cq(p)); }
static void free_channel(void *p) { ZERO(ibv_destroy_comp_channel(p)); }
static void free_ah(void *p) { ZERO(ibv_destroy_ah(p)); }
static void free_srq(void *p) { ZERO(ibv_destroy_srq(p)); }
static void free_qp(void *p) { ZERO(ibv_destroy_qp(p)); }

static void exhaust(const char *what, int want, void *(*make)(void), void (*release)(void *))
{
	void **got = calloc((size_t)limit + 2, sizeof(void *));
	int n = 0;

	while (n < limit + 1 && (got[n] = make()))
		n++;
	int e = errno;
	CHECK(n > 0 && n <= limit, "%s: %d made, the limit is %d", what, n, limit);
	printf("%s: refused after %d with %s\n", what, n, strerrorname_np(e));
	CHECK(e == want, "%s: refused with %s, want %s", what, strerrorname_np(e), strerrorname_np(want));
	release(got[n - 1]);
	got[n - 1] = make();
	CHECK(got[n - 1], "%s: one was freed and a new one refused with %s", what, strerror(errno));
	while (n > 0)
		release(got[--n]);
	free(got);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(argc == 2, "usage: limits N");
	limit = atoi(argv[1]);
	d = dev_open();
	mem = buf_new(&d, 65536, ALL_ACCESS);
	struct couple c = couple_new(&d, (struct opt){0});
	shared_cq = c.a.cq;
	exhaust("PD", EINVAL, make_pd, free_pd);
	exhaust("MR", ENOMEM, make_mr, free_mr);
	exhaust("CQ", EINVAL, make_cq, free_cq);
	exhaust("QP", EINVAL, make_qp, free_qp);
	exhaust("SRQ", EINVAL, make_srq, free_srq);
	exhaust("AH", EINVAL, make_ah, free_ah);
	exhaust("channel", EMFILE, make_channel, free_channel);
	expect_alive(&c, &mem, "after all refusals");
	couple_free(&c);
	buf_free(&mem);
	dev_close(&d);
	printf("ok limits\n");
	return 0;
}
