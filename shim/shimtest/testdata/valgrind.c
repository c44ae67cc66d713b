/* What a program under valgrind does with the device: register, deregister, fork. No page is replaced there. */
#include "t.h"

int main(void)
{
	size_t n = 1 << 20;
	int fd = open_device();
	struct extents x;
	char *p = malloc(n), *q = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(p, 1, n);
	memset(q, 2, n);
	CHECK(reg_mr(fd, p, n, &x) == 0 && dereg_mr(fd, x.handle) == 0); /* valgrind's heap is executable */
	for (int i = 0; i < 3; i++) {
		uint32_t a = reg_as(fd, q, n, FOREIGN), b = reg_as(fd, q + 100, 5000, FOREIGN);
		pid_t pid = fork();
		if (pid == 0)
			_exit(p[0] == 1 && q[n - 1] == 2 ? 0 : 1);
		wait_ok(pid);
		CHECK(dereg_mr(fd, a) == 0 && dereg_mr(fd, b) == 0);
	}
	CHECK(madvise(q, n, MADV_DONTNEED) == 0 && q[5] == 0 && p[5] == 1);
	free(p);
	munmap(q, n);
	close(fd);
	return 0;
}
