/* Every way to look at the device tree. */
#include "t.h"

#include <dirent.h>
#include <glob.h>
#include <limits.h>
#include <sys/sysmacros.h>

#define RXE "/sys/class/infiniband/rxe0"

static void has(const char *path, const char *want)
{
	char text[64] = {0};
	int fd = open(path, O_RDONLY);
	CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0 && strstr(text, want));
	close(fd);
	fd = openat(AT_FDCWD, path, O_RDONLY);
	CHECK(fd >= 0);
	close(fd);
	FILE *f = fopen(path, "r");
	CHECK(f && fgets(text, sizeof text, f) && strstr(text, want));
	CHECK(freopen(path, "r", f));
	fclose(f);
	CHECK(access(path, R_OK) == 0 && faccessat(AT_FDCWD, path, R_OK, 0) == 0 && euidaccess(path, R_OK) == 0);
}

static int entries(const char *path)
{
	struct dirent **list;
	int n = 0, m = scandir(path, &list, NULL, alphasort);
	for (int i = 0; i < m; i++)
		free(list[i]);
	if (m >= 0)
		free(list);
	DIR *d = opendir(path);
	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	CHECK(n == m);
	return n - 2;
}

static void tree(void)
{
	struct stat st;
	struct statx sx;
	char buf[PATH_MAX], *p;
	has(RXE "/node_type", "1: CA");
	has("/sys/class/infiniband_verbs/abi_version", "6");
	has("/sys/class/infiniband_mad/abi_version", "5");
	has("/sys/class/misc/rdma_cm/abi_version", "4");
	CHECK(entries("/sys/class/infiniband") == 1 && entries("/sys/class/infiniband_verbs") == 2);
	CHECK(stat(RXE, &st) == 0 && S_ISDIR(st.st_mode));
	CHECK(lstat(RXE "/node_guid", &st) == 0 && S_ISREG(st.st_mode));
	CHECK(fstatat(AT_FDCWD, RXE, &st, 0) == 0 && S_ISDIR(st.st_mode));
	CHECK(statx(AT_FDCWD, RXE, 0, STATX_TYPE, &sx) == 0 && S_ISDIR(sx.stx_mode));
	CHECK(realpath(RXE "/device", buf) && strstr(buf, "class/infiniband/rxe0/device"));
	p = canonicalize_file_name(RXE);
	CHECK(p);
	free(p);
	CHECK(readlink(RXE "/node_guid", buf, sizeof buf) == -1 && errno == EINVAL);
	CHECK(stat("/sys/class/infiniband/mlx5_0", &st) == -1 && errno == ENOENT);
	CHECK(stat("/sys/class/infinibandits", &st) == -1 && errno == ENOENT);
	CHECK(stat("/sys/class/net", &st) == 0);
	glob_t g;
	CHECK(glob("/sys/class/infiniband/*/ports/*/state", 0, NULL, &g) == 0 && g.gl_pathc == 1);
	CHECK(strcmp(g.gl_pathv[0], RXE "/ports/1/state") == 0);
	globfree(&g);
}

static void node(void)
{
	struct stat st;
	struct statx sx;
	char buf[PATH_MAX];
	CHECK(access(DEVICE, R_OK | W_OK) == 0 && access(DEVICE, X_OK) == -1);
	CHECK(faccessat(AT_FDCWD, DEVICE, R_OK, AT_EACCESS) == 0);
	CHECK(stat(DEVICE, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(231, 192));
	CHECK(lstat(DEVICE, &st) == 0 && S_ISCHR(st.st_mode));
	CHECK(statx(AT_FDCWD, DEVICE, 0, STATX_ALL, &sx) == 0 && sx.stx_rdev_minor == 192);
	CHECK(realpath(DEVICE, buf) && strcmp(buf, DEVICE) == 0);
	CHECK(readlink(DEVICE, buf, sizeof buf) == -1 && errno == EINVAL);
	CHECK(stat("/dev/infiniband", &st) == 0 && S_ISDIR(st.st_mode));
	CHECK(access("/dev/infiniband/uverbs1", F_OK) == -1 && errno == ENOENT);
	CHECK(open("/dev/infiniband/rdma_cm", O_RDWR) == -1 && errno == ENOENT);
	CHECK(open("/dev/infiniband/issm0", O_RDWR) == -1 && errno == ENOENT);
}

/* Counters are fresh however they are reached. */
static void counters(void)
{
	int fd = open_device();
	uint64_t n = ask(fd, CMD_SYNCS, 0);
	char buf[PATH_MAX];
	has(RXE "/ports/1/counters/port_xmit_data", "0");
	CHECK(ask(fd, CMD_SYNCS, 0) == n + 4); /* open, openat, fopen, freopen */
	snprintf(buf, sizeof buf, "%s/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts", getenv("SYSFS_PATH"));
	close(open(buf, O_RDONLY));
	CHECK(ask(fd, CMD_SYNCS, 0) == n + 5);
	int dir = open(RXE, O_RDONLY | O_DIRECTORY);
	close(openat(dir, "ports/1/counters/port_xmit_data", O_RDONLY));
	close(dir);
	CHECK(ask(fd, CMD_SYNCS, 0) == n + 6);
	CHECK(chdir(RXE "/ports/1/counters") == 0);
	close(open("port_xmit_data", O_RDONLY));
	CHECK(ask(fd, CMD_SYNCS, 0) == n + 7);
	CHECK(chdir("/") == 0);
	close(open("etc/passwd", O_RDONLY));
	close(open("/etc/passwd", O_RDONLY));
	has(RXE "/node_type", "CA");
	CHECK(ask(fd, CMD_SYNCS, 0) == n + 7);
	close(fd);
}

int main(void)
{
	tree();
	node();
	counters();
	return 0;
}
