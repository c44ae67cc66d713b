/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths that lead to the device. The daemon keeps a copy of what sysfs would
 * show in <socket>.d/sys; absolute paths to the RDMA parts of /sys are sent
 * there, and /dev/infiniband/uverbs0 and rdma_cm exist as long as the tree has them.
 * (What libibverbs itself reads comes here already, through SYSFS_PATH.)
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "vrdma.h"

#define DEV "/dev/infiniband"
#define DEVICE "uverbs0"
#define MANAGER "rdma_cm"

/* After prefix comes the end, or a new component, or (sysfs classes) a suffix such as _verbs. */
static bool below(const char *path, const char *prefix, size_t n, bool suffix)
{
	return strncmp(path, prefix, n) == 0 &&
	       (path[n] == 0 || path[n] == '/' || (suffix && path[n] == '_'));
}
#define BELOW(path, prefix, suffix) below(path, prefix, sizeof(prefix) - 1, suffix)

static bool missing; /* the last attempt to open the device failed */

bool path_manager(const char *path)
{
	const char *name = strrchr(path, '/');
	return name && strcmp(name + 1, MANAGER) == 0;
}

/* Is there such a device? Its number is in the tree, as "231:192". */
bool path_rdev(const char *path, unsigned *maj, unsigned *min)
{
	char file[PATH_ROOM], text[32];
	unsigned v[2] = {0, 0}, *p = v;
	snprintf(file, sizeof file, "%s/class/%s/dev", settings()->tree,
		 path_manager(path) ? "misc/" MANAGER : "infiniband_verbs/" DEVICE);
	long fd = sys(SYS_openat, AT_FDCWD, file, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	long n = sys(SYS_read, fd, text, sizeof text);
	sys(SYS_close, fd);
	for (long i = 0; i < n && p < v + 2; i++) {
		if (text[i] == ':')
			p++;
		else if (text[i] >= '0' && text[i] <= '9')
			*p = *p * 10 + (unsigned)(text[i] - '0');
	}
	*maj = v[0];
	*min = v[1];
	return n > 0;
}

static enum node map_dev(const char *path)
{
	const char *rest = path + sizeof DEV - 1;
	unsigned maj, min;
	while (*rest == '/')
		rest++;
	if ((strcmp(rest, DEVICE) == 0 || strcmp(rest, MANAGER) == 0) && path_rdev(path, &maj, &min))
		return NODE_DEVICE;
	return NODE_MISSING;
}

static long seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

/*
 * The tree of a NIC that was never used has no port yet. The daemon writes the rest when a program
 * connects. A daemon that refuses us may take seconds for that. So after a refusal we do not connect
 * again for 5 s.
 */
static _Atomic long not_before;

static void whole_tree(const char *sub)
{
	char file[PATH_ROOM];
	int e = errno;
	if (!BELOW(sub, "/class/infiniband", false) ||
	    snprintf(file, sizeof file, "%s/%s", settings()->tree, VRDMA_UNFINISHED) >= PATH_ROOM)
		return;
	if (sys(SYS_faccessat, AT_FDCWD, file, F_OK) == 0 && seconds() >= atomic_load(&not_before) && !wire_sync())
		atomic_store(&not_before, seconds() + 5);
	errno = e;
}

enum node path_map(const char *path, char out[PATH_ROOM], const char **use)
{
	*use = path;
	if (likely(!path || path[0] != '/' || (path[1] != 's' && path[1] != 'd')))
		return NODE_OTHER;
	if (BELOW(path, DEV, false) && path[sizeof DEV - 1] == '/')
		return map_dev(path);
	const char *sub = path + 4;
	if (BELOW(path, DEV, false))
		sub = "/class/infiniband_verbs"; /* lists uverbs0 */
	else if (!BELOW(path, "/sys/class/infiniband", true) &&
		 !BELOW(path, "/sys/class/misc/rdma_cm", false))
		return NODE_OTHER;
	if (snprintf(out, PATH_ROOM, "%s%s", settings()->tree, sub) >= PATH_ROOM)
		return NODE_OTHER;
	*use = out;
	whole_tree(sub);
	return NODE_TREE;
}

/* ---- counters are brought up to date when someone looks ---- */

/* The working directory is in the tree, or even a directory of counters. */
static _Atomic bool cwd_inside, cwd_counters;

static bool inside(const char *path)
{
	const struct settings *s = settings();
	return strncmp(path, s->tree, s->tree_len) == 0;
}

static bool counters(const char *path)
{
	return strstr(path, "counters") != NULL;
}

void path_cwd(void)
{
	char cwd[PATH_ROOM];
	bool in = sys(SYS_getcwd, cwd, sizeof cwd) > 0 && inside(cwd);
	atomic_store(&cwd_inside, in);
	atomic_store(&cwd_counters, in && counters(cwd));
}

void path_refresh(int dirfd, const char *path)
{
	char link[64], dir[PATH_ROOM];
	if (path[0] == '/') {
		if (inside(path) && counters(path))
			wire_sync();
	} else if (dirfd == AT_FDCWD) {
		if (atomic_load(&cwd_counters) || (atomic_load(&cwd_inside) && counters(path)))
			wire_sync();
	} else {
		snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
		long n = sys(SYS_readlinkat, AT_FDCWD, link, dir, sizeof dir - 1);
		if (n <= 0)
			return;
		dir[n] = 0;
		if (inside(dir) && (counters(dir) || counters(path)))
			wire_sync();
	}
}

/* ---- open ---- */

/* The path to open, or NULL with *result set: the call is answered. */
static const char *opening(int dirfd, const char *path, int flags, char *room, int *result)
{
	const char *use;
	int e = errno;
	switch (path_map(path, room, &use)) {
	case NODE_DEVICE:
		*result = path_manager(path) ? channel_open(flags) : device_open(flags);
		missing = *result < 0;
		return NULL;
	case NODE_MISSING:
		if (strcmp(path, DEV "/" DEVICE) == 0)
			*result = device_open(flags); /* says what is missing */
		else
			*result = (errno = ENOENT, -1);
		return NULL;
	case NODE_OTHER:
	case NODE_TREE:
		break;
	}
	if (use)
		path_refresh(dirfd, use);
	errno = e;
	return use;
}

#define MODE(flags)                                                      \
	({                                                               \
		mode_t m_ = 0;                                           \
		if ((flags) & (O_CREAT | __O_TMPFILE)) {                 \
			va_list args_;                                   \
			va_start(args_, flags);                          \
			m_ = va_arg(args_, mode_t);                      \
			va_end(args_);                                   \
		}                                                        \
		m_;                                                      \
	})

#define OPEN(name)                                                       \
	EXPORT int name(const char *path, int flags, ...)                \
	{                                                                \
		char room[PATH_ROOM];                                    \
		int r = -1;                                              \
		mode_t mode = MODE(flags);                               \
		path = opening(AT_FDCWD, path, flags, room, &r);         \
		return path ? REAL(name)(path, flags, mode) : r;         \
	}
#define OPENAT(name)                                                     \
	EXPORT int name(int dirfd, const char *path, int flags, ...)     \
	{                                                                \
		char room[PATH_ROOM];                                    \
		int r = -1;                                              \
		mode_t mode = MODE(flags);                               \
		path = opening(dirfd, path, flags, room, &r);            \
		return path ? REAL(name)(dirfd, path, flags, mode) : r;  \
	}
#define OPEN_2(name)                                                     \
	int name(const char *path, int flags);                           \
	EXPORT int name(const char *path, int flags)                     \
	{                                                                \
		char room[PATH_ROOM];                                    \
		int r = -1;                                              \
		path = opening(AT_FDCWD, path, flags, room, &r);         \
		return path ? REAL(name)(path, flags) : r;               \
	}
#define OPENAT_2(name)                                                   \
	int name(int dirfd, const char *path, int flags);                \
	EXPORT int name(int dirfd, const char *path, int flags)          \
	{                                                                \
		char room[PATH_ROOM];                                    \
		int r = -1;                                              \
		path = opening(dirfd, path, flags, room, &r);            \
		return path ? REAL(name)(dirfd, path, flags) : r;        \
	}

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
OPEN_2(__open_2)
OPEN_2(__open64_2)
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)

/*
 * When its device node cannot be opened, libibverbs waits 5 s for udev to make
 * one, with a watch on /dev/char. We have printed the error, so the watch fails
 * and the user does not wait.
 */
EXPORT int inotify_add_watch(int fd, const char *path, uint32_t mask)
{
	if (missing && path && strcmp(path, "/dev/char/") == 0)
		return errno = ENOENT, -1;
	return REAL(inotify_add_watch)(fd, path, mask);
}

/* ---- streams, directories, links ---- */

/* Every other call that takes a path: run it with the path we mean. */
#define MAPPED(path, failure, call)                                      \
	({                                                               \
		char room_[PATH_ROOM];                                   \
		const char *use_;                                        \
		enum node n_ = path_map(path, room_, &use_);             \
		if (n_ == NODE_MISSING || n_ == NODE_DEVICE) {           \
			errno = n_ == NODE_MISSING ? ENOENT : ENOTDIR;   \
			return failure;                                  \
		}                                                        \
		path = use_;                                             \
		call;                                                    \
	})

#define FOPEN(name)                                                      \
	EXPORT FILE *name(const char *restrict path, const char *restrict mode) \
	{                                                                \
		return MAPPED(path, NULL, ({                             \
			if (path)                                        \
				path_refresh(AT_FDCWD, path);            \
			REAL(name)(path, mode);                          \
		}));                                                     \
	}
FOPEN(fopen)
FOPEN(fopen64)

#define FREOPEN(name)                                                    \
	EXPORT FILE *name(const char *restrict path, const char *restrict mode, \
			  FILE *restrict stream)                         \
	{                                                                \
		return MAPPED(path, NULL, ({                             \
			if (path)                                        \
				path_refresh(AT_FDCWD, path);            \
			REAL(name)(path, mode, stream);                  \
		}));                                                     \
	}
FREOPEN(freopen)
FREOPEN(freopen64)

/* libibverbs looks for devices here and says nothing useful when it finds no tree. */
static void explain_no_tree(const char *path)
{
	const struct settings *s = settings();
	if (strncmp(path, s->tree, s->tree_len) != 0 || strcmp(path + s->tree_len, "/class/infiniband_verbs") != 0)
		return;
	if (in_container())
		complain("no RDMA device: the vrdma daemon on this container's host is not running; it has to be "
			 "started there, and then new programs have the device");
	else
		complain("no RDMA device: there is no device tree at %s; start the program with "
			 "'vrdma run -- PROGRAM', or set VRDMA_SOCKET to a running daemon's socket "
			 "(in a container: bind-mount its directory at the same place)", s->tree);
}

EXPORT DIR *opendir(const char *path)
{
	DIR *d = MAPPED(path, NULL, REAL(opendir)(path));
	int e = errno;
	if (!d && e == ENOENT && path)
		explain_no_tree(path);
	errno = e;
	return d;
}

EXPORT int scandir(const char *restrict path, struct dirent ***restrict list,
		   int (*select)(const struct dirent *),
		   int (*compare)(const struct dirent **, const struct dirent **))
{
	return MAPPED(path, -1, REAL(scandir)(path, list, select, compare));
}

EXPORT int scandir64(const char *restrict path, struct dirent64 ***restrict list,
		     int (*select)(const struct dirent64 *),
		     int (*compare)(const struct dirent64 **, const struct dirent64 **))
{
	return MAPPED(path, -1, REAL(scandir64)(path, list, select, compare));
}

EXPORT int chdir(const char *path)
{
	int r = MAPPED(path, -1, REAL(chdir)(path));
	if (r == 0)
		path_cwd();
	return r;
}

EXPORT int fchdir(int fd)
{
	int r = REAL(fchdir)(fd);
	if (r == 0)
		path_cwd();
	return r;
}

/* A device node is no link (EINVAL) and its own real path. */
#define LINK(call) OF_FILE(EINVAL, call)
#define OF_FILE(device, call)                                            \
	({                                                               \
		char room_[PATH_ROOM];                                   \
		const char *use_;                                        \
		enum node n_ = path_map(path, room_, &use_);             \
		if (n_ == NODE_MISSING || n_ == NODE_DEVICE)             \
			return errno = n_ == NODE_MISSING ? ENOENT : (device), -1; \
		path = use_;                                             \
		call;                                                    \
	})

EXPORT ssize_t readlink(const char *restrict path, char *restrict buf, size_t n)
{
	return LINK(REAL(readlink)(path, buf, n));
}

EXPORT ssize_t readlinkat(int dirfd, const char *restrict path, char *restrict buf, size_t n)
{
	return LINK(REAL(readlinkat)(dirfd, path, buf, n));
}

ssize_t __readlink_chk(const char *path, char *buf, size_t n, size_t room);
EXPORT ssize_t __readlink_chk(const char *path, char *buf, size_t n, size_t room)
{
	return LINK(REAL(__readlink_chk)(path, buf, n, room));
}

ssize_t __readlinkat_chk(int dirfd, const char *path, char *buf, size_t n, size_t room);
EXPORT ssize_t __readlinkat_chk(int dirfd, const char *path, char *buf, size_t n, size_t room)
{
	return LINK(REAL(__readlinkat_chk)(dirfd, path, buf, n, room));
}

static char *same_path(const char *path, char *out)
{
	return out ? strcpy(out, path) : strdup(path);
}

#define REALPATH(out, call)                                              \
	({                                                               \
		char room_[PATH_ROOM];                                   \
		const char *use_;                                        \
		enum node n_ = path_map(path, room_, &use_);             \
		if (n_ == NODE_MISSING)                                  \
			return errno = ENOENT, NULL;                     \
		if (n_ == NODE_DEVICE)                                   \
			return same_path(path, out);                     \
		path = use_;                                             \
		call;                                                    \
	})

EXPORT char *realpath(const char *restrict path, char *restrict out)
{
	return REALPATH(out, REAL(realpath)(path, out));
}

char *__realpath_chk(const char *path, char *out, size_t room);
EXPORT char *__realpath_chk(const char *path, char *out, size_t room)
{
	return REALPATH(out, REAL(__realpath_chk)(path, out, room));
}

EXPORT char *canonicalize_file_name(const char *path)
{
	return REALPATH((char *)NULL, REAL(canonicalize_file_name)(path));
}

/* ---- extended attributes: ls asks for them ---- */

EXPORT ssize_t getxattr(const char *path, const char *name, void *value, size_t n)
{
	return OF_FILE(ENOTSUP, REAL(getxattr)(path, name, value, n));
}

EXPORT ssize_t lgetxattr(const char *path, const char *name, void *value, size_t n)
{
	return OF_FILE(ENOTSUP, REAL(lgetxattr)(path, name, value, n));
}

EXPORT ssize_t listxattr(const char *path, char *list, size_t n)
{
	return OF_FILE(ENOTSUP, REAL(listxattr)(path, list, n));
}

EXPORT ssize_t llistxattr(const char *path, char *list, size_t n)
{
	return OF_FILE(ENOTSUP, REAL(llistxattr)(path, list, n));
}

/* ---- access ---- */

/* Everyone may read and write the device; nobody may execute it. */
#define ACCESS(mode, call)                                               \
	({                                                               \
		char room_[PATH_ROOM];                                   \
		const char *use_;                                        \
		enum node n_ = path_map(path, room_, &use_);             \
		if (n_ == NODE_MISSING)                                  \
			return errno = ENOENT, -1;                       \
		if (n_ == NODE_DEVICE)                                   \
			return (mode) & X_OK ? (errno = EACCES, -1) : 0; \
		path = use_;                                             \
		call;                                                    \
	})

EXPORT int access(const char *path, int mode)
{
	return ACCESS(mode, REAL(access)(path, mode));
}

EXPORT int faccessat(int dirfd, const char *path, int mode, int flags)
{
	return ACCESS(mode, REAL(faccessat)(dirfd, path, mode, flags));
}

EXPORT int euidaccess(const char *path, int mode)
{
	return ACCESS(mode, REAL(euidaccess)(path, mode));
}

EXPORT int eaccess(const char *path, int mode)
{
	return ACCESS(mode, REAL(eaccess)(path, mode));
}
