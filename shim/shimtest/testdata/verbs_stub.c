/* Stands in for libibverbs.so.1: opens the device and has a poll_cq that finds nothing, or what stub_hook finds. */
#include <fcntl.h>
#include <errno.h>
#include <stdlib.h>

#include "../../verbs.h"

int stub_polls;
int (*stub_hook)(void *cq, int n, void *wc);

static int poll_cq(void *cq, int n, void *wc)
{
	if (stub_hook)
		return stub_hook(cq, n, wc);
	stub_polls++;
	return n < 0 ? 3 : 0;
}

static int start_poll(struct cq_ex *cq, void *attr)
{
	(void)cq;
	stub_polls++;
	return attr ? 0 : ENOENT;
}

static struct cq_ex *create_cq_ex(struct context *c, void *attr)
{
	(void)attr;
	struct cq_ex *cq = calloc(1, sizeof *cq);
	cq->cq.context = c;
	cq->start_poll = start_poll;
	return cq;
}

struct context *ibv_open_device(void *device)
{
	struct {
		struct before_context before;
		struct context context;
	} *v = calloc(1, sizeof *v);
	struct context *c = &v->context;
	v->before.create_cq_ex = create_cq_ex;
	v->before.sz = sizeof *v;
	c->abi_compat = ABI_EXTENDED;
	c->device = device;
	c->ops[11] = (void *)poll_cq;
	c->cmd_fd = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);
	return c;
}
