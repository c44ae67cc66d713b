/* The daemon ends and another one takes its place: a new open meets the new one. */
#include "t.h"

int main(void)
{
	size_t n = 1 << 20;
	int fd = open_device();
	char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(p, 7, n);
	reg_as(fd, p, n, SHARED);
	CHECK(call(fd, CMD_DIE, 0, 0, NULL) == EIO);
	int next = -1;
	for (int i = 0; i < 60000 && next < 0; i++) {
		next = open(DEVICE, O_RDWR | O_CLOEXEC);
		usleep(1000);
	}
	CHECK(next >= 0 && ask(next, CMD_ECHO, 1) == 2);
	CHECK(call(fd, CMD_ECHO, 1, 0, NULL) == EIO);
	CHECK(p[0] == 7 && p[n - 1] == 7);
	reg_as(next, p, n, SHARED);
	CHECK(ask(next, CMD_PEEK, (uintptr_t)p) == 0x0707070707070707);
	pid_t pid = fork();
	if (pid == 0)
		_exit(p[5] != 7);
	wait_ok(pid);
	return 0;
}
