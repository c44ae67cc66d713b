/* Polling an empty queue yields, and ends when the daemon does. Linked or loaded later. */
#include "t.h"

#include <dlfcn.h>

struct context {
	void *device;
	void *ops[32];
	int cmd_fd;
};

#ifdef LOAD
/* Loaded with RTLD_LOCAL, as python and UCX do: the name here is the preloaded library's. */
static struct context *open_it(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	CHECK(lib);
	struct context *(*f)(void *) = (struct context * (*)(void *)) dlsym(RTLD_DEFAULT, "ibv_open_device");
	CHECK(f);
	return f(NULL);
}
#else
struct context *ibv_open_device(void *);
static struct context *open_it(void)
{
	return ibv_open_device(NULL);
}
#endif


int main(void)
{
	struct context *c = open_it();
	struct {
		struct context *context;
	} cq = {c};
	int (*poll_cq)(void *, int, void *) = (int (*)(void *, int, void *))c->ops[11];
	CHECK(c->cmd_fd >= 0);
	for (int i = 0; i < 100000; i++)
		CHECK(poll_cq(&cq, 1, NULL) == 0);
	CHECK(poll_cq(&cq, -1, NULL) == 3);
	CHECK(call(c->cmd_fd, CMD_DIE, 0, 0, NULL) == EIO);
	int polls = 0, r;
	while ((r = poll_cq(&cq, 1, NULL)) == 0)
		CHECK(++polls < 1000000);
	CHECK(r == -1 && polls > 10000);
	return 0;
}
