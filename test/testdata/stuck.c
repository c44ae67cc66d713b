/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stuck WHAT: a program that registers a file of its own file system (FUSE) and does not
 * answer when the daemon touches it. The file system is served by a child, which lives on
 * when the program is killed, as an attacker would have it.
 *
 *   post      sends from a page that never comes, and prints how the send ended
 *   register  registers memory that begins with such a page, and prints the errno
 *
 * It prints "server PID" first, and "begun" when the daemon is stuck or about to be.
 */
#include "vt.h"
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define PAGES 16
#define SIZE (PAGES * 4096l)

static void text(const char *path, const char *fmt, ...)
{
	char b[64];
	va_list ap;
	int fd = open(path, O_WRONLY);

	va_start(ap, fmt);
	int n = vsnprintf(b, sizeof(b), fmt, ap);
	va_end(ap);
	CHECK(fd >= 0 && write(fd, b, n) == n, "%s: %s", path, strerror(errno));
	close(fd);
}

/* A mount namespace of our own, and where we are not root, a user namespace that allows it. */
static void namespaces(void)
{
	int uid = getuid(), gid = getgid();

	if (uid == 0) {
		ZERO(unshare(CLONE_NEWNS));
	} else {
		ZERO(unshare(CLONE_NEWUSER | CLONE_NEWNS));
		text("/proc/self/setgroups", "deny");
		text("/proc/self/uid_map", "%d %d 1", uid, uid);
		text("/proc/self/gid_map", "%d %d 1", gid, gid);
	}
	ZERO(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
}

static struct fuse_attr attributes(uint64_t ino)
{
	struct fuse_attr a = {.ino = ino, .nlink = 1, .blksize = 4096, .uid = getuid(), .gid = getgid()};

	a.mode = ino == 1 ? S_IFDIR | 0755 : S_IFREG | 0666;
	a.size = ino == 1 ? 4096 : SIZE;
	return a;
}

static void answer(int dev, uint64_t unique, int error, const void *body, size_t n)
{
	struct fuse_out_header h = {.len = (uint32_t)(sizeof(h) + n), .error = error, .unique = unique};
	char b[8192];

	memcpy(b, &h, sizeof(h));
	memcpy(b + sizeof(h), body, n);
	CHECK(write(dev, b, sizeof(h) + n) == (ssize_t)(sizeof(h) + n), "answer: %s", strerror(errno));
}

/* The file system: one file, "f", of which the first page can be read. */
static void serve(int dev)
{
	static char in[1 << 17], page[4096];

	alarm(300); /* nobody may be stuck for ever because a test went wrong */
	memset(page, 'p', sizeof(page));
	for (;;) {
		ssize_t n = read(dev, in, sizeof(in));
		struct fuse_in_header *h = (void *)in;
		char *body = in + sizeof(*h);

		if (n <= 0)
			_exit(0);
		switch (h->opcode) {
		case FUSE_INIT: {
			struct fuse_init_out o = {.major = 7, .minor = 31, .max_readahead = 4096, .max_write = 4096, .max_background = 12, .time_gran = 1, .max_pages = 1};

			answer(dev, h->unique, 0, &o, sizeof(o));
			break;
		}
		case FUSE_LOOKUP: {
			struct fuse_entry_out o = {.nodeid = 2, .attr_valid = 100, .entry_valid = 100, .attr = attributes(2)};

			answer(dev, h->unique, strcmp(body, "f") ? -ENOENT : 0, &o, strcmp(body, "f") ? 0 : sizeof(o));
			break;
		}
		case FUSE_GETATTR: {
			struct fuse_attr_out o = {.attr_valid = 100, .attr = attributes(h->nodeid)};

			answer(dev, h->unique, 0, &o, sizeof(o));
			break;
		}
		case FUSE_OPEN: {
			struct fuse_open_out o = {.fh = 1, .open_flags = FOPEN_KEEP_CACHE};

			answer(dev, h->unique, 0, &o, sizeof(o));
			break;
		}
		case FUSE_READ: {
			struct fuse_read_in *r = (void *)body;

			if (r->offset == 0)
				answer(dev, h->unique, 0, page, r->size < sizeof(page) ? r->size : sizeof(page));
			break; /* and otherwise never */
		}
		case FUSE_FORGET:
		case FUSE_BATCH_FORGET:
		case FUSE_INTERRUPT:
			break;
		default:
			answer(dev, h->unique, -ENOSYS, NULL, 0);
		}
	}
}

int main(int argc, char **argv)
{
	char options[128], path[] = "/tmp/vrdma-stuck-XXXXXX", file[64];

	CHECK(argc == 2, "usage: stuck post|register");
	namespaces();
	MADE(mkdtemp(path));
	int dev = open("/dev/fuse", O_RDWR);
	CHECK(dev >= 0, "/dev/fuse: %s", strerror(errno));
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=%d,group_id=%d", dev, getuid(), getgid());
	CHECK(mount("stuck", path, "fuse", MS_NOSUID | MS_NODEV, options) == 0, "mount: %s", strerror(errno));
	int server = fork();
	if (server == 0) {
		setpgid(0, 0); /* what ends the program does not end it */
		serve(dev);
	}
	close(dev);
	printf("server %d\n", server);
	fflush(stdout);
	snprintf(file, sizeof(file), "%s/f", path);
	int fd = open(file, O_RDWR);
	CHECK(fd >= 0, "%s: %s", file, strerror(errno));
	char *p = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(p != MAP_FAILED, "mmap: %s", strerror(errno));
	ZERO(madvise(p, SIZE, MADV_RANDOM));
	ZERO(umount2(path, MNT_DETACH)); /* the mapping keeps it */
	rmdir(path);

	struct dev d = dev_open();
	if (strcmp(argv[1], "register") == 0) {
		printf("begun\n");
		fflush(stdout);
		struct ibv_mr *mr = ibv_reg_mr(d.pd, p + 4096, 4096, 0);
		printf("register %d\n", mr ? 0 : errno);
		fflush(stdout);
		pause();
	}
	struct ibv_mr *mr = MADE(ibv_reg_mr(d.pd, p, SIZE, 0));
	struct couple c = couple_new(&d, (struct opt){.depth = 16});
	struct buf to = buf_new(&d, 4096, ALL_ACCESS);
	struct buf from = {.p = p, .len = SIZE, .mr = mr};
	struct work w = rdma(IBV_WR_RDMA_WRITE, &from, 8192, 64, 1, (uintptr_t)to.p, to.mr->rkey);
	post_work(&c.a, w);
	printf("begun\n");
	fflush(stdout);
	printf("ended %d\n", wait_wc(c.a.cq, "the write").status);
	fflush(stdout);
	pause();
	return 0;
}
