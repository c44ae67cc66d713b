/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device without GPUDirect answers to programs with GPU memory: ranges that the processor cannot
 * read are refused with EFAULT, dma-bufs with EOPNOTSUPP. And the parent device as NCCL resolves it.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096ul

static int wrong;
static struct ibv_pd *pd;

static void reg(const char *what, void *at, size_t n, int access, int want)
{
	errno = 0;
	struct ibv_mr *mr = ibv_reg_mr(pd, at, n, access);
	int e = mr ? 0 : errno;
	if (e != want) {
		printf("%s: %s, want %s\n", what, strerror(e), strerror(want));
		wrong++;
	}
	if (mr)
		ibv_dereg_mr(mr);
}

/* The pages of [vvar] are not the process's memory: VM_PFNMAP, as device memory is. */
static void *vvar(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	unsigned long at = 0;
	while (f && fgets(line, sizeof line, f))
		if (strstr(line, "[vvar]"))
			sscanf(line, "%lx", &at);
	if (f)
		fclose(f);
	return (void *)at;
}

int main(void)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	if (!context || !(pd = ibv_alloc_pd(context)))
		return 1;
	char *b = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(b, 1, 64 * PAGE);
	reg("memory", b, 64 * PAGE, access, 0);
	mprotect(b, 8 * PAGE, PROT_NONE);
	reg("memory that cannot be read", b, 4 * PAGE, access, EFAULT);
	reg("memory that cannot be read, for reading", b, 4 * PAGE, 0, EFAULT);
	reg("memory that cannot be read at its beginning", b, 16 * PAGE, access, EFAULT);
	munmap(b + 32 * PAGE, 8 * PAGE);
	reg("no memory", b + 32 * PAGE, 4 * PAGE, access, EFAULT);
	reg("memory with a hole", b + 16 * PAGE, 24 * PAGE, access, EFAULT);
	reg("memory beside the hole", b + 16 * PAGE, 16 * PAGE, access, 0);
	if (vvar())
		reg("memory of the kernel", vvar(), PAGE, 0, EFAULT);

	/* The probes of NCCL and UCX: any errno but EOPNOTSUPP means support. */
	errno = 0;
	if (ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0) || errno != EOPNOTSUPP) {
		printf("NCCL's probe for dma-bufs: %s\n", strerror(errno));
		wrong++;
	}
	errno = 0;
	if (ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, access) || errno != EOPNOTSUPP) {
		printf("UCX's probe for dma-bufs: %s\n", strerror(errno));
		wrong++;
	}

	/* NCCL overwrites the digits that distinguish functions of a PCI device. */
	char *path = realpath("/sys/class/infiniband/rxe0/device", NULL), subsystem[PATH_MAX], *found = NULL;
	if (path) {
		size_t n = strlen(path);
		path[n - 1] = path[n - 3] = path[n - 4] = '0';
		snprintf(subsystem, sizeof subsystem, "%s/subsystem", path);
		found = realpath(subsystem, NULL);
	}
	if (!found || strcmp(strrchr(found, '/'), "/vrdma")) {
		printf("the parent device %s has the subsystem %s\n", path ? path : "is missing: it", found ? found : "none");
		wrong++;
	}
	puts(wrong ? "FAILED" : "ok");
	return wrong != 0;
}
