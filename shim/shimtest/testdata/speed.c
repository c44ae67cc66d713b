/* How long registration takes; prints seconds: touched, again, untouched, many small. */
#include "t.h"

int main(void)
{
	size_t n = 256ul << 20;
	int fd = open_device();
	char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(p, 1, n);
	double t0 = now();
	reg_as(fd, p, n, SHARED);
	double t1 = now();
	reg_as(fd, p, n, SHARED);
	double t2 = now();
	memset(p, 2, n);
	double t3 = now();
	char *q = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	double t4 = now();
	reg_as(fd, q, n, SHARED);
	double t5 = now();
	memset(q, 3, n);
	double t6 = now();
	for (int i = 0; i < 1000; i++)
		reg_as(fd, q + i * 4096, 4096, SHARED);
	double t7 = now();
	double f0 = now();
	pid_t pid = fork();
	if (pid == 0)
		_exit(p[n - 1] == 2 && q[n - 1] == 3 ? 0 : 1);
	double f1 = now();
	wait_ok(pid);
	printf("256 MiB touched %.3f again %.6f memset %.3f, untouched %.3f memset %.3f, 1000 x 4 KiB "
	       "again %.4f, fork with 512 MiB %.3f\n",
	       t1 - t0, t2 - t1, t3 - t2, t5 - t4, t6 - t5, t7 - t6, f1 - f0);
	CHECK(p[5] == 2 && q[5] == 3);
	return 0;
}
