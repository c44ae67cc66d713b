/* Opens the device; prints errno and nothing else if that fails. */
#include "t.h"

#include <sys/resource.h>

int main(int argc, char **argv)
{
	if (argc > 1) { /* leave this many descriptors */
		int top = dup(0);
		struct rlimit r = {(rlim_t)(top + atoi(argv[1])), (rlim_t)(top + atoi(argv[1]))};
		close(top);
		CHECK(setrlimit(RLIMIT_NOFILE, &r) == 0);
	}
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		printf("errno %d\n", errno);
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
