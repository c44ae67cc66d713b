/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the function behind the one we interpose. dlsym and dlopen moved from
 * libdl to libc in glibc 2.34 under a new symbol version; asking for the old one
 * lets the library load everywhere since 2.17 (shim.mk keeps libdl.so.2 and
 * libpthread.so.0 among the needed libraries for that).
 *
 * Where a library has a function in several versions, dlsym(RTLD_NEXT) of glibc before
 * 2.36 finds the oldest: another ABI, for programs of long ago. So those are asked for
 * by their version. A library that has no such version (another preloaded one, another
 * machine's libc) has only one.
 */
#include <dlfcn.h>
#include <string.h>

#include "vrdma.h"

#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver dlvsym, dlvsym@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
__asm__(".symver dlvsym, dlvsym@GLIBC_2.17");
#endif

/* musl has no versions, and not this; there the library must load to say what is wrong. */
extern void *dlvsym(void *, const char *, const char *) __attribute__((weak));

static const struct {
	const char *name, *version;
} versions[] = {
	{"ibv_open_device", "IBVERBS_1.1"},
	{"ibv_modify_qp", "IBVERBS_1.1"},
	{"glob", "GLIBC_2.27"},
	{"glob64", "GLIBC_2.27"},
	{"realpath", "GLIBC_2.3"},
};

void *real_resolve(_Atomic(void *) *slot, const char *name)
{
	void *p = NULL;
	for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
		if (dlvsym && strcmp(versions[i].name, name) == 0)
			p = dlvsym(RTLD_NEXT, name, versions[i].version);
	if (!p)
		p = dlsym(RTLD_NEXT, name);
	atomic_store_explicit(slot, p, memory_order_release);
	return p;
}
