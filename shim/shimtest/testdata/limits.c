/*
 * limits [DESCRIPTORS [leak]]: opens the device; prints errno and nothing else if that fails.
 * With leak it then tries again and again, and insists that no descriptor stays open.
 */
#include "t.h"

#include <dirent.h>
#include <sys/resource.h>

static int descriptors(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* The process keeps its connection and its memfd, nothing else. */
static void leak(int before)
{
	for (int i = 0; i < 10; i++)
		CHECK(open(DEVICE, O_RDWR | O_CLOEXEC) == -1 && errno == EMFILE);
	int after = descriptors();
	if (after > before + 2) {
		fprintf(stderr, "%d descriptors before, %d after: some stayed open\n", before, after);
		_exit(2);
	}
}

int main(int argc, char **argv)
{
	if (argc > 2) { /* the same, of a number that can be had */
		struct rlimit r = {64, 64};
		CHECK(setrlimit(RLIMIT_NOFILE, &r) == 0);
		while (dup(0) >= 0)
			;
		for (int i = 0; i < atoi(argv[1]); i++)
			close(63 - i);
	} else if (argc > 1) { /* leave this many descriptors */
		int top = dup(0);
		struct rlimit r = {(rlim_t)(top + atoi(argv[1])), (rlim_t)(top + atoi(argv[1]))};
		close(top);
		CHECK(setrlimit(RLIMIT_NOFILE, &r) == 0);
	}
	int before = descriptors();
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		printf("errno %d\n", errno);
		if (argc > 2)
			leak(before);
		return 1;
	}
	int32_t n = -1;
	for (int i = 0; i < 100; i++) {
		int e = call(fd, CMD_CREATE_COMP_CHANNEL, 0, 0, &n);
		if (e) {
			printf("channel: errno %d\n", e);
			return 1;
		}
	}
	return 0;
}
