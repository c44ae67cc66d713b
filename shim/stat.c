/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stat family. A path is mapped as everywhere; the device, by path or by
 * descriptor, is a character device with the number that the daemon named.
 *
 * Old binaries call __xstat and its kin, new ones (glibc 2.33) stat itself: we
 * define both, and neither needs the other to exist in this libc. struct stat and
 * struct stat64 are the same on 64-bit machines.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "vrdma.h"

static void as_device(struct stat *st, unsigned maj, unsigned min)
{
	st->st_mode = S_IFCHR | 0666;
	st->st_rdev = makedev(maj, min);
	st->st_size = 0;
	st->st_blocks = 0;
}

static int result(long r)
{
	return r < 0 ? (errno = (int)-r, -1) : 0;
}

/* fstatat by any name. path may be empty with AT_EMPTY_PATH. */
static int stat_at(int dirfd, const char *path, struct stat *st, int flags)
{
	char room[PATH_ROOM];
	const char *use;
	unsigned maj, min;

	switch (path_map(path, room, &use)) {
	case NODE_MISSING:
		return errno = ENOENT, -1;
	case NODE_DEVICE:
		memset(st, 0, sizeof *st);
		st->st_nlink = 1;
		st->st_ino = 1;
		st->st_blksize = (blksize_t)PAGE;
		if (!path_rdev(path, &maj, &min))
			return errno = ENOENT, -1;
		as_device(st, maj, min);
		return 0;
	case NODE_OTHER:
	case NODE_TREE:
		break;
	}
	int r = result(sys(SYS_newfstatat, dirfd, use, st, flags));
	if (r == 0 && path && !*path && dirfd >= 0) {
		struct file *f = file_at(dirfd);
		if (f && file_is_node(f))
			as_device(st, f->rdev_major, f->rdev_minor);
	}
	return r;
}

static int stat_fd(int fd, struct stat *st)
{
	struct file *f = file_at(fd);
	int r = result(sys(SYS_fstat, fd, st));
	if (r == 0 && f && file_is_node(f))
		as_device(st, f->rdev_major, f->rdev_minor);
	return r;
}

#define STAT_FAMILY(suffix)                                                              \
	int stat##suffix(const char *restrict path, struct stat##suffix *restrict st);   \
	EXPORT int stat##suffix(const char *restrict path, struct stat##suffix *restrict st) \
	{                                                                                \
		return stat_at(AT_FDCWD, path, (struct stat *)(void *)st, 0);            \
	}                                                                                \
	int lstat##suffix(const char *restrict path, struct stat##suffix *restrict st);  \
	EXPORT int lstat##suffix(const char *restrict path, struct stat##suffix *restrict st) \
	{                                                                                \
		return stat_at(AT_FDCWD, path, (struct stat *)(void *)st, AT_SYMLINK_NOFOLLOW); \
	}                                                                                \
	int fstat##suffix(int fd, struct stat##suffix *st);                              \
	EXPORT int fstat##suffix(int fd, struct stat##suffix *st)                        \
	{                                                                                \
		return stat_fd(fd, (struct stat *)(void *)st);                           \
	}                                                                                \
	int fstatat##suffix(int dirfd, const char *restrict path, struct stat##suffix *restrict st, \
			    int flags);                                                  \
	EXPORT int fstatat##suffix(int dirfd, const char *restrict path,                 \
				   struct stat##suffix *restrict st, int flags)          \
	{                                                                                \
		return stat_at(dirfd, path, (struct stat *)(void *)st, flags);           \
	}                                                                                \
	int __xstat##suffix(int version, const char *path, struct stat##suffix *st);     \
	EXPORT int __xstat##suffix(int version, const char *path, struct stat##suffix *st) \
	{                                                                                \
		(void)version;                                                           \
		return stat_at(AT_FDCWD, path, (struct stat *)(void *)st, 0);            \
	}                                                                                \
	int __lxstat##suffix(int version, const char *path, struct stat##suffix *st);    \
	EXPORT int __lxstat##suffix(int version, const char *path, struct stat##suffix *st) \
	{                                                                                \
		(void)version;                                                           \
		return stat_at(AT_FDCWD, path, (struct stat *)(void *)st, AT_SYMLINK_NOFOLLOW); \
	}                                                                                \
	int __fxstat##suffix(int version, int fd, struct stat##suffix *st);              \
	EXPORT int __fxstat##suffix(int version, int fd, struct stat##suffix *st)        \
	{                                                                                \
		(void)version;                                                           \
		return stat_fd(fd, (struct stat *)(void *)st);                           \
	}                                                                                \
	int __fxstatat##suffix(int version, int dirfd, const char *path, struct stat##suffix *st, \
			       int flags);                                               \
	EXPORT int __fxstatat##suffix(int version, int dirfd, const char *path,          \
				      struct stat##suffix *st, int flags)                \
	{                                                                                \
		(void)version;                                                           \
		return stat_at(dirfd, path, (struct stat *)(void *)st, flags);           \
	}

STAT_FAMILY()
STAT_FAMILY(64)

int statx(int dirfd, const char *restrict path, int flags, unsigned mask, struct statx *restrict st);
EXPORT int statx(int dirfd, const char *restrict path, int flags, unsigned mask,
		 struct statx *restrict st)
{
	char room[PATH_ROOM];
	const char *use;
	unsigned maj, min;
	struct file *f;

	switch (path_map(path, room, &use)) {
	case NODE_MISSING:
		return errno = ENOENT, -1;
	case NODE_DEVICE:
		if (!path_rdev(path, &maj, &min))
			return errno = ENOENT, -1;
		memset(st, 0, sizeof *st);
		st->stx_nlink = 1;
		st->stx_ino = 1;
		st->stx_blksize = (uint32_t)PAGE;
		st->stx_mask = STATX_TYPE | STATX_MODE | STATX_NLINK | STATX_INO;
		break;
	case NODE_OTHER:
	case NODE_TREE:
		if (result(sys(SYS_statx, dirfd, use, flags, mask, st)) < 0)
			return -1;
		f = path && !*path && dirfd >= 0 ? file_at(dirfd) : NULL;
		if (!f || !file_is_node(f))
			return 0;
		maj = f->rdev_major;
		min = f->rdev_minor;
		break;
	}
	st->stx_mode = S_IFCHR | 0666;
	st->stx_rdev_major = maj;
	st->stx_rdev_minor = min;
	st->stx_size = 0;
	return 0;
}
