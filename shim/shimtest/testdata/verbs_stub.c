/* Stands in for libibverbs.so.1: opens the device and has a poll_cq that finds nothing, or what stub_hook finds. */
#include <fcntl.h>
#include <stdlib.h>

struct context {
	void *device;
	void *ops[32];
	int cmd_fd;
};

int stub_polls;
int (*stub_hook)(void *cq, int n, void *wc);

static int poll_cq(void *cq, int n, void *wc)
{
	if (stub_hook)
		return stub_hook(cq, n, wc);
	stub_polls++;
	return n < 0 ? 3 : 0;
}

struct context *ibv_open_device(void *device)
{
	struct context *c = calloc(1, sizeof *c);
	c->device = device;
	c->ops[11] = (void *)poll_cq;
	c->cmd_fd = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);
	return c;
}
