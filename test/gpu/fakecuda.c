/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 without a GPU, for pinned.c: device memory is not accessible, and memcpy works in its stead.
 * Host memory is a shared mapping of /dev/zero, as the real one's.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

typedef unsigned long long device_ptr;

static char *memory, *shadow; /* device memory: its address, its content */
static size_t length;

static char *content(device_ptr p)
{
	char *at = (char *)(uintptr_t)p;
	return memory && at >= memory && at < memory + length ? shadow + (at - memory) : at;
}

static void *map(size_t n, int prot, int flags)
{
	void *p = mmap(NULL, n, prot, flags | MAP_ANONYMOUS, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *d, int n) { return *d = n; }
int cuDevicePrimaryCtxRetain(void **c, int d) { return *c = NULL, d; }
int cuCtxSetCurrent(void *c) { return c != NULL; }
int cuCtxSynchronize(void) { return 0; }
int cuMemAlloc_v2(device_ptr *p, size_t n)
{
	memory = map(n, PROT_NONE, MAP_PRIVATE);
	shadow = map(n, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	length = n;
	return *p = (uintptr_t)memory, !memory || !shadow;
}
int cuMemFree_v2(device_ptr p) { return p == 0; }
int cuMemHostAlloc(void **p, size_t n, unsigned flags) { return *p = map(n, PROT_READ | PROT_WRITE, MAP_SHARED), !*p || flags > 7; }
int cuMemAllocHost_v2(void **p, size_t n) { return cuMemHostAlloc(p, n, 0); }
int cuMemAllocManaged(device_ptr *p, size_t n, unsigned flags) { return *p = (uintptr_t)map(n, PROT_READ | PROT_WRITE, MAP_PRIVATE), !*p || !flags; }
int cuMemFreeHost(void *p) { return p == NULL; }
int cuMemHostRegister_v2(void *p, size_t n, unsigned flags) { return !p || !n || flags > 7; }
int cuMemHostUnregister(void *p) { return p == NULL; }
int cuMemsetD8_v2(device_ptr p, unsigned char v, size_t n) { return memset(content(p), v, n) == NULL; }
int cuMemcpyDtoHAsync_v2(void *to, device_ptr from, size_t n, void *stream) { return memcpy(to, content(from), n) == NULL || stream; }
int cuMemcpyHtoDAsync_v2(device_ptr to, const void *from, size_t n, void *stream) { return memcpy(content(to), from, n) == NULL || stream; }
int cuMemcpyDtoH_v2(void *to, device_ptr from, size_t n) { return cuMemcpyDtoHAsync_v2(to, from, n, NULL); }
