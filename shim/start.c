/* SPDX-License-Identifier: Apache-2.0 */
/* What happens when the library is loaded. */
#include <sys/mman.h>

#include "vrdma.h"

extern const char *gnu_get_libc_version(void) __attribute__((weak));

__attribute__((constructor)) static void start(void)
{
	if (!gnu_get_libc_version)
		complain("libvrdma.so needs glibc, and this program runs on another C library (musl?); "
			 "use a glibc based image");
	settings();
	path_cwd();
	other_process(); /* claims the tables for this process */
}
