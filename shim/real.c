/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the function behind the one we interpose. dlsym and dlopen moved from
 * libdl to libc in glibc 2.34 under a new symbol version; asking for the old one
 * lets the library load everywhere since 2.17 (shim.mk keeps libdl.so.2 and
 * libpthread.so.0 among the needed libraries for that).
 */
#include <dlfcn.h>

#include "vrdma.h"

#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
#endif

void *real_resolve(_Atomic(void *) *slot, const char *name)
{
	void *p = dlsym(RTLD_NEXT, name);
	atomic_store_explicit(slot, p, memory_order_release);
	return p;
}
