/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the program shares with others: POSIX shared memory, files of tmpfs and hugetlbfs,
 * memfds, System V segments, shared anonymous memory. The daemon maps the file behind the mapping
 * beside us. Root's daemon opens that file by itself. An ordinary user's takes a copy of a
 * descriptor of ours (pidfd_getfd), which we have or make:
 *
 *   a file with a name      opened by its name
 *   a file without          a descriptor that the program has, if there is one
 *   shared anonymous        one of this library's (anonymous.c)
 *   System V                none: the daemon attaches the segment
 *
 * A descriptor that is the wrong one does no harm: the daemon compares.
 */
#include "shared.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "anonymous.h"

#define TMPFS 0x01021994
#define HUGETLBFS 0x958458f6
#define DELETED " (deleted)"

bool shared_wanted(void)
{
	return atomic_load(&process.maps) & VRDMA_MAPS_SHARED;
}

static bool same(int fd, const struct vma *v)
{
	struct stat st;
	return sys(SYS_fstat, fd, &st) == 0 && st.st_dev == v->device && st.st_ino == v->inode;
}

/* Is fd, opened O_PATH or not, a file that lies in memory? */
static bool in_memory(int fd)
{
	struct statfs fs;
	return sys(SYS_fstatfs, fd, &fs) == 0 && (fs.f_type == TMPFS || fs.f_type == HUGETLBFS);
}

static int by_name(const char *name, const struct vma *v)
{
	char path[40];
	int at = (int)sys(SYS_openat, AT_FDCWD, name, O_PATH | O_NOFOLLOW | O_CLOEXEC), fd = -1;
	if (at < 0)
		return -1;
	if (same(at, v) && in_memory(at)) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", at);
		fd = (int)sys(SYS_openat, AT_FDCWD, path,
			      (v->prot & PROT_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK);
	}
	sys(SYS_close, at);
	return fd;
}

struct entry { /* struct linux_dirent64 */
	uint64_t inode;
	int64_t next;
	unsigned short length;
	unsigned char type;
	char name[];
};

static int number(const char *p)
{
	int n = 0;
	if (!*p)
		return -1;
	for (; *p; p++) {
		if (*p < '0' || *p > '9')
			return -1;
		n = n * 10 + *p - '0';
	}
	return n;
}

/* Can [v->start, v->end) be mapped by fd as it is? */
static bool allows(int fd, const struct vma *v)
{
	long flags = sys(SYS_fcntl, fd, F_GETFL, 0);
	return flags >= 0 && !(flags & O_PATH) &&
	       ((flags & O_ACCMODE) == O_RDWR || (!(v->prot & PROT_WRITE) && (flags & O_ACCMODE) == O_RDONLY));
}

/* A descriptor of the program for the file that its links call name. */
static int among_ours(const char *name, const struct vma *v)
{
	_Alignas(8) char list[4096];
	char link[256];
	int found = -1, dir = (int)sys(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long n;

	if (dir < 0)
		return -1;
	while (found < 0 && (n = sys(SYS_getdents64, dir, list, sizeof list)) > 0) {
		for (long at = 0; at < n && found < 0;) {
			struct entry *e = (struct entry *)(void *)(list + at);
			int fd = number(e->name);
			at += e->length;
			if (fd < 0)
				continue;
			/* The name first: to ask a file about itself may take long. */
			long k = sys(SYS_readlinkat, dir, e->name, link, sizeof link - 1);
			if (k <= 0)
				continue;
			link[k] = 0;
			if (strcmp(link, name) == 0 && same(fd, v) && allows(fd, v))
				found = fd;
		}
	}
	sys(SYS_close, dir);
	return found;
}

int shared_file(struct shared *s, const struct vma *v)
{
	char link[64], name[256];
	long n;

	if (!(atomic_load(&process.maps) & VRDMA_MAPS_DESCRIPTORS) || s->n == SHARED_MAX)
		return -1;
	int fd = anonymous_file(v);
	if (fd >= 0)
		return fd;
	snprintf(link, sizeof link, "/proc/self/map_files/%lx-%lx", (unsigned long)v->start, (unsigned long)v->end);
	n = sys(SYS_readlinkat, AT_FDCWD, link, name, sizeof name - 1);
	if (n <= 0)
		return -1;
	name[n] = 0;
	if (strncmp(name, "/SYSV", 5) == 0)
		return -1; /* its inode's number is another file's, too */
	if (n < (long)sizeof DELETED || strcmp(name + n - (sizeof DELETED - 1), DELETED)) {
		fd = by_name(name, v);
		if (fd >= 0)
			return s->fd[s->n++] = fd;
	}
	return among_ours(name, v);
}

bool shared_offers(const struct vrdma_extent *e, uint32_t n)
{
	for (; n; e++, n--)
		if (e->kind == VRDMA_EXTENT_SHARED && e->prot >> VRDMA_DESCRIPTOR_SHIFT)
			return true;
	return false;
}

void shared_end(struct shared *s)
{
	while (s->n > 0)
		sys(SYS_close, s->fd[--s->n]);
}
