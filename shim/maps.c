/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the process's own mappings: one PROCMAP_QUERY (Linux 6.11) for each,
 * or the text of /proc/thread-self/maps. Nothing here allocates or writes outside its
 * own buffers, because it also runs while other threads are held back.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "maps.h"

/* <linux/fs.h> of Linux 6.11 */
struct procmap_query {
	uint64_t size, query_flags, query_addr;
	uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
	uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
	uint64_t vma_name_addr, build_id_addr;
};
#define PROCMAP_QUERY 0xc0686611u
#define QUERY_COVERING_OR_NEXT 0x10
#define QUERY_SHARED 0x08
#define QUERY_FILE_BACKED 0x20
#define VMA_READABLE 1u
#define VMA_WRITABLE 2u
#define VMA_EXECUTABLE 4u
#define VMA_MAYSHARE 8u

struct raw {
	uint64_t start, end, offset, inode, page_size;
	uint32_t major, minor;
	unsigned flags;
	const char *name;
};

static enum vma_kind classify(const struct raw *r)
{
	bool shared = r->flags & VMA_MAYSHARE;
	if (r->inode && r->inode == process.inode && makedev(r->major, r->minor) == process.device)
		return shared ? VMA_OWN : VMA_BORROWED;
	if (shared)
		return VMA_SHARED;
	if (r->page_size != PAGE || (r->flags & VMA_EXECUTABLE))
		return VMA_SPECIAL;
	if (r->inode || r->major || r->minor)
		return strncmp(r->name, "/anon_hugepage", 14) ? VMA_PRIVATE : VMA_SPECIAL;
	/* "[stack]", "[vdso]", "[vvar]" are special; "[heap]" and "[anon:...]" are not. */
	if (r->name[0] == '[' && strncmp(r->name, "[heap", 5) && strncmp(r->name, "[anon", 5))
		return VMA_SPECIAL;
	return VMA_ANONYMOUS;
}

static void fill(struct vma *v, const struct raw *r)
{
	v->start = r->start;
	v->end = r->end;
	v->offset = r->offset;
	v->device = makedev(r->major, r->minor);
	v->inode = r->inode;
	v->prot = (r->flags & VMA_READABLE ? PROT_READ : 0) | (r->flags & VMA_WRITABLE ? PROT_WRITE : 0) |
		  (r->flags & VMA_EXECUTABLE ? PROT_EXEC : 0);
	v->kind = classify(r);
}

static bool query(struct maps *m, uint64_t address, uint64_t filter, struct vma *out)
{
	char name[256] = {0}; /* also for valgrind, which does not know that the kernel writes there */
	struct procmap_query q = {
		.size = sizeof q,
		.query_flags = QUERY_COVERING_OR_NEXT | filter,
		.query_addr = address,
		.vma_name_size = sizeof name,
		.vma_name_addr = (uintptr_t)name,
	};
	long e = sys(SYS_ioctl, m->fd, PROCMAP_QUERY, &q);
	if (e == -ENAMETOOLONG) { /* then it is a file's, and no name that we know */
		q.size = sizeof q;
		q.query_flags = QUERY_COVERING_OR_NEXT | filter;
		q.query_addr = address;
		q.vma_name_size = 0;
		q.vma_name_addr = 0;
		e = sys(SYS_ioctl, m->fd, PROCMAP_QUERY, &q);
	}
	if (e < 0) {
		m->broken |= e != -ENOENT;
		return false;
	}
	if (q.vma_name_size == 0)
		name[0] = 0;
	struct raw r = {q.vma_start, q.vma_end, q.vma_offset, q.inode, q.vma_page_size,
			q.dev_major, q.dev_minor, (unsigned)q.vma_flags, name};
	fill(out, &r);
	return true;
}

/* ---- the text ---- */

static uint64_t number(const char **p, unsigned base)
{
	uint64_t v = 0;
	for (;; (*p)++) {
		unsigned c = (unsigned char)**p, d;
		if (c >= '0' && c <= '9')
			d = c - '0';
		else if (base == 16 && c >= 'a' && c <= 'f')
			d = c - 'a' + 10;
		else
			return v;
		v = v * base + d;
	}
}

/* "7f00-7f01 rw-p 00000000 00:01 123   /name" */
static void parse(const char *p, struct vma *out)
{
	struct raw r = {.page_size = PAGE};
	r.start = number(&p, 16);
	p++;
	r.end = number(&p, 16);
	p++;
	r.flags = (p[0] == 'r' ? VMA_READABLE : 0) | (p[1] == 'w' ? VMA_WRITABLE : 0) |
		  (p[2] == 'x' ? VMA_EXECUTABLE : 0) | (p[3] == 's' ? VMA_MAYSHARE : 0);
	p += 5;
	r.offset = number(&p, 16);
	p++;
	r.major = (uint32_t)number(&p, 16);
	p++;
	r.minor = (uint32_t)number(&p, 16);
	p++;
	r.inode = number(&p, 10);
	while (*p == ' ')
		p++;
	r.name = p;
	fill(out, &r);
}

/* The next line, NUL terminated in place. */
static char *line(struct maps *m)
{
	for (;;) {
		char *end = memchr(m->text + m->next, '\n', m->have - m->next);
		if (end) {
			char *l = m->text + m->next;
			*end = 0;
			m->next = (size_t)(end - m->text) + 1;
			return l;
		}
		if (m->eof)
			return NULL;
		memmove(m->text, m->text + m->next, m->have - m->next);
		m->have -= m->next;
		m->next = 0;
		long n = sys(SYS_read, m->fd, m->text + m->have, sizeof m->text - m->have);
		if (n <= 0) {
			m->eof = true;
			m->broken |= n < 0 || !m->some;
		} else {
			m->some = true;
			m->have += (size_t)n;
		}
	}
}

static bool search(struct maps *m, uint64_t address, struct vma *out)
{
	for (;;) {
		char *l = line(m);
		if (!l)
			return false;
		parse(l, out);
		if (out->end <= address)
			continue;
		/* It may be wanted again: the next address can lie in it too. */
		m->next = (size_t)(l - m->text);
		l[strlen(l)] = '\n';
		return true;
	}
}

/* Not of the process: where the first thread has ended, that has no memory. */
static int open_file(const char *name, int flags)
{
	char path[40];
	snprintf(path, sizeof path, "/proc/thread-self/%s", name);
	long fd = sys(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC);
	if (fd == -ENOENT) { /* before Linux 3.17 */
		snprintf(path, sizeof path, "/proc/self/%s", name);
		fd = sys(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC);
	}
	return (int)fd;
}

int maps_file(const char *name)
{
	return open_file(name, O_RDONLY);
}

int maps_memory(void)
{
	return open_file("mem", O_RDWR);
}

bool maps_open(struct maps *m)
{
	static _Atomic int known; /* 1: the kernel has PROCMAP_QUERY, -1: it has not */
	struct vma any;
	m->have = m->next = 0;
	m->eof = m->some = m->broken = false;
	m->fd = maps_file("maps");
	if (m->fd < 0)
		return false;
	if (!atomic_load(&known))
		atomic_store(&known, query(m, 0, 0, &any) ? 1 : -1);
	m->broken = false;
	m->query = atomic_load(&known) > 0;
	return true;
}

void maps_rewind(struct maps *m)
{
	if (!m->query)
		sys(SYS_lseek, m->fd, 0, SEEK_SET);
	m->have = m->next = 0;
	m->eof = m->some = m->broken = false;
}

void maps_close(struct maps *m)
{
	sys(SYS_close, m->fd);
}

bool maps_find(struct maps *m, uint64_t address, struct vma *out)
{
	return m->query ? query(m, address, 0, out) : search(m, address, out);
}

bool maps_shared(struct maps *m, uint64_t address, struct vma *out)
{
	if (m->query)
		return query(m, address, QUERY_SHARED | QUERY_FILE_BACKED, out);
	while (search(m, address, out)) {
		if (out->kind == VMA_SHARED || out->kind == VMA_OWN)
			return true;
		address = out->end;
	}
	return false;
}

static bool query_named(struct maps *m, const char *name)
{
	struct procmap_query q;
	char got[256];
	for (uint64_t at = 0;; at = q.vma_end) {
		memset(got, 0, sizeof got);
		q = (struct procmap_query){
			.size = sizeof q,
			.query_flags = QUERY_COVERING_OR_NEXT | QUERY_SHARED | QUERY_FILE_BACKED,
			.query_addr = at,
			.vma_name_size = sizeof got,
			.vma_name_addr = (uintptr_t)got,
		};
		long e = sys(SYS_ioctl, m->fd, PROCMAP_QUERY, &q);
		if (e == -ENAMETOOLONG) { /* not a name of the kernel's */
			q.size = sizeof q;
			q.query_flags = QUERY_COVERING_OR_NEXT | QUERY_SHARED | QUERY_FILE_BACKED;
			q.query_addr = at;
			q.vma_name_size = 0;
			q.vma_name_addr = 0;
			e = sys(SYS_ioctl, m->fd, PROCMAP_QUERY, &q);
		}
		if (e < 0) {
			m->broken |= e != -ENOENT;
			return false;
		}
		if (strncmp(got, name, strlen(name)) == 0)
			return true;
	}
}

bool maps_named(struct maps *m, const char *name)
{
	if (m->query)
		return query_named(m, name);
	for (char *l; (l = line(m));) {
		const char *c = strchr(l, '/');
		if (c && strncmp(c, name, strlen(name)) == 0)
			return true;
	}
	return false;
}
