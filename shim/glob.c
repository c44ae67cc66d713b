/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glob() opens directories by names of its own inside libc. For patterns that may
 * lead to the device tree we ask it to use the calls that we stand in for.
 */
#include <dirent.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>

#include "vrdma.h"

static bool concerns_us(const char *pattern)
{
	return pattern && (strncmp(pattern, "/sys/class/", 11) == 0 ||
			   strncmp(pattern, "/dev/infiniband", 15) == 0);
}

static void *open_directory(const char *path)
{
	return opendir(path);
}

static void close_directory(void *d)
{
	closedir(d);
}

/* struct dirent and dirent64, stat and stat64, glob_t and glob64_t are the same on 64-bit machines. */
#define GLOB(name, type, entry, status, next, look, look_not)                             \
	static struct entry *next_##name(void *d)                                         \
	{                                                                                 \
		return next(d);                                                           \
	}                                                                                 \
	EXPORT int name(const char *restrict pattern, int flags,                          \
			int (*on_error)(const char *, int), type *restrict out)           \
	{                                                                                 \
		if (!concerns_us(pattern) || (flags & GLOB_ALTDIRFUNC))                   \
			return REAL(name)(pattern, flags, on_error, out);                 \
		out->gl_opendir = open_directory;                                         \
		out->gl_closedir = close_directory;                                       \
		out->gl_readdir = next_##name;                                            \
		out->gl_stat = look;                                                      \
		out->gl_lstat = look_not;                                                 \
		return REAL(name)(pattern, flags | GLOB_ALTDIRFUNC, on_error, out);       \
	}

GLOB(glob, glob_t, dirent, stat, readdir, stat, lstat)
GLOB(glob64, glob64_t, dirent64, stat64, readdir64, stat64, lstat64)
