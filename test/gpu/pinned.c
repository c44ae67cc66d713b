/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a GPU has pinned and an RDMA device has registered, in either order: every byte that one
 * of them writes reaches the other and the program, before and after the region is deregistered.
 * Device memory is refused with EFAULT. Managed memory is refused, or right.
 *
 * CUDA's headers are not needed: libcuda is opened at run time. Exit 3: there is no GPU or no device.
 * tools/nccl-check runs this; a test only compiles it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SIZE ((size_t)4 << 20)
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

/* ---- CUDA's driver interface, cuda.h ---- */

typedef unsigned long long device_ptr;
enum { PORTABLE = 1, DEVICEMAP = 2, WRITECOMBINED = 4, ATTACH_GLOBAL = 1 };

static struct {
	int (*cuInit)(unsigned);
	int (*cuDeviceGet)(int *, int);
	int (*cuDevicePrimaryCtxRetain)(void **, int);
	int (*cuCtxSetCurrent)(void *);
	int (*cuCtxSynchronize)(void);
	int (*cuMemAlloc_v2)(device_ptr *, size_t);
	int (*cuMemFree_v2)(device_ptr);
	int (*cuMemAllocManaged)(device_ptr *, size_t, unsigned);
	int (*cuMemAllocHost_v2)(void **, size_t);
	int (*cuMemHostAlloc)(void **, size_t, unsigned);
	int (*cuMemFreeHost)(void *);
	int (*cuMemHostRegister_v2)(void *, size_t, unsigned);
	int (*cuMemHostUnregister)(void *);
	int (*cuMemsetD8_v2)(device_ptr, unsigned char, size_t);
	int (*cuMemcpyDtoHAsync_v2)(void *, device_ptr, size_t, void *);
	int (*cuMemcpyHtoDAsync_v2)(device_ptr, const void *, size_t, void *);
	int (*cuMemcpyDtoH_v2)(void *, device_ptr, size_t);
} cu;

static bool cuda(void)
{
	static const char *const names[] = {
		"cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuCtxSynchronize", "cuMemAlloc_v2",
		"cuMemFree_v2", "cuMemAllocManaged", "cuMemAllocHost_v2", "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister_v2",
		"cuMemHostUnregister", "cuMemsetD8_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoH_v2",
	};
	_Static_assert(sizeof cu == sizeof names, "one name for each function");
	void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context;
	int device;
	if (!lib) {
		printf("no GPU: %s\n", dlerror());
		return false;
	}
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		void *f = dlsym(lib, names[i]);
		if (!f) {
			printf("no GPU: libcuda has no %s\n", names[i]);
			return false;
		}
		memcpy((char *)&cu + i * sizeof f, &f, sizeof f);
	}
	int e = cu.cuInit(0);
	if (e || (e = cu.cuDeviceGet(&device, 0)) || (e = cu.cuDevicePrimaryCtxRetain(&context, device)) || (e = cu.cuCtxSetCurrent(context))) {
		printf("no GPU: CUDA error %d\n", e);
		return false;
	}
	return true;
}

/* ---- a queue pair connected to itself ---- */

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static char *aside; /* registered, not pinned */
static struct ibv_mr *aside_mr;

static bool device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	union ibv_gid gid;
	if (!context || !(pd = ibv_alloc_pd(context)) || !(cq = ibv_create_cq(context, 16, NULL, NULL, 0)) || ibv_query_gid(context, 1, 0, &gid)) {
		printf("no RDMA device: %s\n", strerror(errno));
		return false;
	}
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	if (!(qp = ibv_create_qp(pd, &init)))
		return false;
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS};
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return false;
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
				 .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}}};
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return false;
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		return false;
	aside = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return aside != MAP_FAILED && (aside_mr = ibv_reg_mr(pd, aside, SIZE, ACCESS));
}

/* Moves all of one region to another; a status of the completion, or -1. */
static int write_to(struct ibv_mr *from, struct ibv_mr *to)
{
	struct ibv_sge sge = {.addr = (uintptr_t)from->addr, .length = SIZE, .lkey = from->lkey};
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
				 .wr.rdma = {.remote_addr = (uintptr_t)to->addr, .rkey = to->rkey}}, *bad;
	struct ibv_wc wc;
	time_t end = time(NULL) + 60;
	if (ibv_post_send(qp, &wr, &bad))
		return -1;
	while (!ibv_poll_cq(cq, 1, &wc))
		if (time(NULL) > end)
			return -1;
	return wc.status;
}

/* ---- the cases ---- */

static int failures;

static size_t equal(const char *b, char value)
{
	size_t n = 0;
	for (size_t i = 0; i < SIZE; i++)
		n += b[i] == value;
	return n;
}

static void want(const char *step, const char *b, char value)
{
	size_t n = equal(b, value);
	if (n != SIZE) {
		printf("  WRONG: %s: %zu of %zu bytes arrived\n", step, n, SIZE);
		failures++;
	}
}

static void gpu_writes(device_ptr g, char *b, char value)
{
	int e = cu.cuMemsetD8_v2(g, (unsigned char)value, SIZE);
	if (!e)
		e = cu.cuMemcpyDtoHAsync_v2(b, g, SIZE, NULL);
	if (!e)
		e = cu.cuCtxSynchronize();
	if (e) {
		printf("  WRONG: the GPU's copy: CUDA error %d\n", e);
		failures++;
	}
}

static void gpu_reads(device_ptr g, const char *b, char value, const char *step)
{
	static char back[SIZE];
	memset(back, 0, sizeof back);
	if (cu.cuMemcpyHtoDAsync_v2(g, b, SIZE, NULL) || cu.cuCtxSynchronize() || cu.cuMemcpyDtoH_v2(back, g, SIZE))
		puts("  WRONG: the GPU's copy failed"), failures++;
	want(step, back, value);
}

/* The mapping that b is in, as the kernel describes it. */
static void mapping(const char *b)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	char line[512];
	bool in = false;
	while (f && fgets(line, sizeof line, f)) {
		unsigned long from, to;
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
			in = from <= (uintptr_t)b && (uintptr_t)b < to;
			if (in)
				printf("  %s", line);
		} else if (in && !strncmp(line, "VmFlags", 7)) {
			printf("  %s", line);
		}
	}
	if (f)
		fclose(f);
}

/* b is pinned and registered: everything that is written arrives. */
static void exchange(device_ptr g, char *b, struct ibv_mr *mr)
{
	int e;
	gpu_writes(g, b, 11);
	want("the program reads what the GPU wrote", b, 11);
	if ((e = write_to(mr, aside_mr)))
		printf("  WRONG: RDMA from it: %s\n", e < 0 ? "not posted, or no completion" : ibv_wc_status_str((enum ibv_wc_status)e)), failures++;
	want("RDMA reads what the GPU wrote", aside, 11);
	memset(aside, 12, SIZE);
	if ((e = write_to(aside_mr, mr)))
		printf("  WRONG: RDMA to it: %s\n", e < 0 ? "not posted, or no completion" : ibv_wc_status_str((enum ibv_wc_status)e)), failures++;
	want("the program reads what RDMA wrote", b, 12);
	gpu_reads(g, b, 12, "the GPU reads what RDMA wrote");
	memset(b, 13, SIZE);
	gpu_reads(g, b, 13, "the GPU reads what the program wrote");
	gpu_writes(g, b, 14);
	want("the program reads what the GPU wrote again", b, 14);
	if (ibv_dereg_mr(mr))
		puts("  WRONG: ibv_dereg_mr failed"), failures++;
	gpu_writes(g, b, 15);
	want("the program reads what the GPU wrote after deregistration", b, 15);
	memset(b, 16, SIZE);
	gpu_reads(g, b, 16, "the GPU reads what the program wrote after deregistration");
}

static struct ibv_mr *reg(void *b)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, b, SIZE, ACCESS);
	if (!mr) {
		printf("  WRONG: ibv_reg_mr: %s\n", strerror(errno));
		failures++;
	}
	return mr;
}

static void failed(const char *call, int e)
{
	printf("  WRONG: %s: CUDA error %d\n", call, e);
	failures++;
}

static void host_register(device_ptr g, unsigned flags, bool first)
{
	char *b = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = NULL;
	int e;
	memset(b, 1, SIZE);
	if (!first)
		mr = reg(b);
	if ((e = cu.cuMemHostRegister_v2(b, SIZE, flags)))
		failed("cuMemHostRegister", e);
	if (first)
		mr = reg(b);
	if (mr && !e) {
		mapping(b);
		exchange(g, b, mr);
	}
	if (!e)
		cu.cuMemHostUnregister(b);
	munmap(b, SIZE);
}

static void host_alloc(device_ptr g, int flags)
{
	void *b = NULL;
	int e = flags < 0 ? cu.cuMemAllocHost_v2(&b, SIZE) : cu.cuMemHostAlloc(&b, SIZE, (unsigned)flags);
	if (e) {
		failed("cuMemHostAlloc", e);
		return;
	}
	memset(b, 1, SIZE);
	struct ibv_mr *mr = reg(b);
	if (mr) {
		mapping(b);
		exchange(g, b, mr);
	}
	cu.cuMemFreeHost(b);
}

static void managed(device_ptr g)
{
	device_ptr m;
	int e = cu.cuMemAllocManaged(&m, SIZE, ATTACH_GLOBAL);
	if (e) {
		failed("cuMemAllocManaged", e);
		return;
	}
	char *b = (char *)(uintptr_t)m;
	memset(b, 1, SIZE);
	mapping(b);
	struct ibv_mr *mr = ibv_reg_mr(pd, b, SIZE, ACCESS);
	if (mr)
		exchange(g, b, mr);
	else
		printf("  refused: %s\n", strerror(errno));
	gpu_writes(g, b, 17);
	want("managed memory afterwards", b, 17);
	cu.cuMemFree_v2(m);
}

static void device_memory(device_ptr g)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, (void *)(uintptr_t)g, SIZE, ACCESS);
	if (mr || errno != EFAULT) {
		printf("  WRONG: %s, want EFAULT\n", mr ? "registered" : strerror(errno));
		failures++;
	}
	if (mr)
		ibv_dereg_mr(mr);
}

static void begin(const char *name)
{
	printf("%s\n", name);
}

int main(void)
{
	device_ptr g;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!cuda() || !device())
		return 3;
	int e = cu.cuMemAlloc_v2(&g, SIZE);
	if (e) {
		printf("no GPU memory: CUDA error %d\n", e);
		return 3;
	}
	begin("cuMemHostRegister, then ibv_reg_mr");
	host_register(g, 0, true);
	begin("ibv_reg_mr, then cuMemHostRegister");
	host_register(g, 0, false);
	begin("cuMemHostRegister PORTABLE and DEVICEMAP, then ibv_reg_mr");
	host_register(g, PORTABLE | DEVICEMAP, true);
	begin("ibv_reg_mr, then cuMemHostRegister PORTABLE and DEVICEMAP");
	host_register(g, PORTABLE | DEVICEMAP, false);
	begin("cuMemAllocHost, then ibv_reg_mr");
	host_alloc(g, -1);
	begin("cuMemHostAlloc PORTABLE and DEVICEMAP, then ibv_reg_mr");
	host_alloc(g, PORTABLE | DEVICEMAP);
	begin("cuMemHostAlloc WRITECOMBINED, then ibv_reg_mr");
	host_alloc(g, WRITECOMBINED);
	begin("cuMemAllocManaged, then ibv_reg_mr");
	managed(g);
	begin("cuMemAlloc, then ibv_reg_mr");
	device_memory(g);
	printf("%s: %d wrong\n", failures ? "FAILED" : "passed", failures);
	return failures != 0;
}
