/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The socket of our daemon and the settings from the environment, read once, and the messages that
 * we print.
 *
 * The socket is the first of: VRDMA_SOCKET; SOCKET, if this library is in SOCKET.d; the user's own.
 * With the second, a container needs only the directory and a line in its /etc/ld.so.preload, no
 * variable. That file makes setuid programs load us, too. Their environment comes from an
 * unprivileged user, and must not select the daemon that they share memory with. So settings are
 * read with secure_getenv, which finds nothing in a setuid program.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vrdma.h"

#if defined(__x86_64__)
__asm__(".symver dladdr, dladdr@GLIBC_2.2.5"); /* see real.c */
#elif defined(__aarch64__)
__asm__(".symver dladdr, dladdr@GLIBC_2.17");
#endif

static struct settings values;
static _Atomic int ready; /* 0 unread, 1 being read, 2 done */

static void copy(char *to, size_t room, const char *from)
{
	size_t n = from ? strlen(from) : 0;
	if (n >= room)
		n = room - 1;
	if (n)
		memcpy(to, from, n);
	to[n] = 0;
}

static unsigned number(const char *s, unsigned otherwise)
{
	unsigned v = 0;
	if (!s || *s < '0' || *s > '9')
		return otherwise;
	for (; *s >= '0' && *s <= '9' && v < 100000000; s++)
		v = v * 10 + (unsigned)(*s - '0');
	return v;
}

/* SOCKET, if this library is SOCKET.d/libvrdma.so. */
static bool beside(char *to, size_t room)
{
	static const char tail[] = ".d/libvrdma.so";
	Dl_info here;
	if (!dladdr((void *)&values, &here) || !here.dli_fname || *here.dli_fname != '/')
		return false;
	size_t n = strlen(here.dli_fname), m = sizeof tail - 1;
	if (n <= m || n - m >= room || strcmp(here.dli_fname + n - m, tail) != 0)
		return false;
	memcpy(to, here.dli_fname, n - m);
	to[n - m] = 0;
	return true;
}

/* Where root's daemon is. */
#define ROOT_SOCKET "/var/lib/vrdma/vrdma.sock"

static void read_environment(void)
{
	const char *path = secure_getenv("VRDMA_SOCKET");
	const char *runtime = secure_getenv("XDG_RUNTIME_DIR");

	if (path && *path)
		copy(values.socket, sizeof values.socket, path);
	else if (beside(values.socket, sizeof values.socket))
		;
	else if (runtime && *runtime)
		snprintf(values.socket, sizeof values.socket, "%s/vrdma/vrdma.sock", runtime);
	else if (sys(SYS_getuid) == 0 && sys(SYS_faccessat, AT_FDCWD, ROOT_SOCKET, F_OK) == 0)
		copy(values.socket, sizeof values.socket, ROOT_SOCKET);
	else
		snprintf(values.socket, sizeof values.socket, "/tmp/vrdma-%ld/vrdma.sock",
			 sys(SYS_getuid));
	snprintf(values.tree, sizeof values.tree, "%s.d/sys", values.socket);
	values.tree_len = strlen(values.tree);
	copy(values.vnic, sizeof values.vnic, secure_getenv("VRDMA_VNIC"));
	copy(values.label, sizeof values.label, secure_getenv("VRDMA_TRACE"));
	copy(values.faults, sizeof values.faults, secure_getenv("VRDMA_FAULT"));
	values.yield = number(secure_getenv("VRDMA_YIELD"), 16);
	values.nap = number(secure_getenv("VRDMA_NAP"), 100);
}

const struct settings *settings(void)
{
	int state = atomic_load_explicit(&ready, memory_order_acquire);
	if (likely(state == 2))
		return &values;
	int unread = 0;
	if (atomic_compare_exchange_strong(&ready, &unread, 1)) {
		read_environment();
		atomic_store_explicit(&ready, 2, memory_order_release);
	}
	while (atomic_load_explicit(&ready, memory_order_acquire) != 2)
		sys(SYS_sched_yield);
	return &values;
}

void complain(const char *format, ...)
{
	static _Atomic(const char *) said[16];
	for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
		const char *none = NULL;
		if (atomic_compare_exchange_strong(&said[i], &none, format))
			break;
		if (none == format)
			return;
	}
	char line[1600];
	int n = snprintf(line, sizeof line, "vrdma: ");
	va_list args;
	va_start(args, format);
	int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
	va_end(args);
	if (m < 0)
		return;
	size_t len = strlen(line);
	line[len++] = '\n';
	sys(SYS_write, 2, line, len);
}

bool in_container(void)
{
	struct stat dir, above;
	return strcmp(settings()->socket, "/run/vrdma/vrdma.sock") == 0 &&
	       sys(SYS_newfstatat, AT_FDCWD, "/run/vrdma", &dir, 0) == 0 &&
	       sys(SYS_newfstatat, AT_FDCWD, "/run", &above, 0) == 0 && dir.st_dev != above.st_dev;
}
