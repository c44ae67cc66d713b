/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors by which the kernel or a device accesses this process's memory.
 *
 * An io_uring, an AIO context and vhost keep addresses of buffers, and access them at any time, in
 * any thread, also in the one that replaces pages. Device drivers (GPUs, vfio, RDMA, V4L2) pin
 * pages. replace.c detects a pin before it replaces a page, but a pin of a page of the memfd cannot
 * be detected before the page becomes private again.
 *
 * So all descriptors are checked before pages change. fstat is enough to recognize sockets, files,
 * pipes and harmless devices.
 */
#include "async.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "maps.h"
#include "uring.h"

enum holder { HARMLESS, PINS, OPERATES };

/* Character devices that never write to memory of a process but by its own read and ioctl. */
static enum holder device(unsigned maj, unsigned min)
{
	if (maj == 1 || maj == 4 || maj == 5 || (maj >= 136 && maj <= 143)) /* null, zero, random; terminals */
		return HARMLESS;
	if (maj == 13) /* input */
		return HARMLESS;
	if (maj != 10)
		return PINS;
	switch (min) {
	case 126: /* userfaultfd */
	case 183: /* hwrng */
	case 200: /* tun */
	case 229: /* fuse */
	case 232: /* kvm: it follows the process's page tables (MMU notifiers) */
	case 236: /* device mapper */
	case 237: /* loop-control */
		return HARMLESS;
	case 137: /* vhci */
	case 238: /* vhost-net */
	case 241: /* vhost-vsock */
		return OPERATES;
	}
	return PINS;
}

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* A file without a type: "anon_inode:[io_uring]". */
static enum holder anonymous(long dir, const char *name, int fd)
{
	char text[64] = {0};
	if (sys(SYS_readlinkat, dir, name, text, sizeof text - 1) <= 0)
		return HARMLESS; /* it was closed */
	if (begins(text, "anon_inode:[io_uring]"))
		return uring_harmless(fd) ? PINS : OPERATES; /* it may have pinned a ring of buffers */
	return begins(text, "anon_inode:[vfio") || begins(text, "anon_inode:[iommufd") ? PINS : HARMLESS;
}

static enum holder descriptor(long dir, const char *name)
{
	struct stat st;
	int fd = 0;
	for (const char *c = name; *c; c++) {
		if (*c < '0' || *c > '9')
			return HARMLESS;
		fd = fd * 10 + (*c - '0');
	}
	if (sys(SYS_fstat, fd, &st) < 0)
		return HARMLESS;
	if (S_ISCHR(st.st_mode))
		return device(major(st.st_rdev), minor(st.st_rdev));
	return st.st_mode & S_IFMT ? HARMLESS : anonymous(dir, name, fd);
}

static enum holder descriptors(void)
{
	struct entry {
		uint64_t ino, off;
		uint16_t length;
		uint8_t type;
		char name[];
	} __attribute__((packed)) *e;
	char list[4096];
	enum holder worst = HARMLESS;
	long n, dir = maps_file("fd/");
	if (dir < 0)
		return OPERATES;
	while (worst != OPERATES && (n = sys(SYS_getdents64, dir, list, sizeof list)) > 0)
		for (long i = 0; i < n; i += e->length) {
			e = (struct entry *)(void *)(list + i);
			enum holder h = descriptor(dir, e->name);
			if (h > worst)
				worst = h;
		}
	sys(SYS_close, dir);
	return worst;
}

/* Whether a process can have an AIO context: none has if aio-nr, the system's total of AIO requests, is 0. */
static bool aio_possible(void)
{
	char text[2] = {0};
	long fd = sys(SYS_openat, AT_FDCWD, "/proc/sys/fs/aio-nr", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return true;
	long n = sys(SYS_read, fd, text, sizeof text);
	sys(SYS_close, fd);
	return !(n == 2 && text[0] == '0' && text[1] == '\n');
}

/* An AIO context is a mapping that is called "/[aio]". */
static bool aio(void)
{
	static struct maps m;
	if (!aio_possible())
		return false;
	if (!maps_open(&m))
		return true;
	bool found = maps_named(&m, "/[aio]");
	maps_close(&m);
	return found || m.broken;
}

bool async_any(enum async what)
{
	enum holder h = descriptors();
	if (h == OPERATES || (h == PINS && what == ASYNC_PINS))
		return true;
	return aio();
}
