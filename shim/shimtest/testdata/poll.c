/* Polling an empty queue yields, and ends when the daemon does. Linked, loaded later, or found by its first completion queue. */
#include "t.h"

#include <dlfcn.h>

#include "../../verbs.h"

#ifdef FIND
/* Creates a completion queue as libibverbs does; cq is the address of its struct ibv_cq. */
static void create_cq(struct context *c, uintptr_t cq)
{
	uint64_t response;
	struct {
		struct header h;
		uint64_t response, cq;
		uint32_t cqe, vector;
		int32_t channel;
		uint32_t reserved;
	} q = {{CMD_CREATE_CQ, 10, 0}, (uintptr_t)&response, cq, 1, 0, -1, 0};
	CHECK(write(c->cmd_fd, &q, sizeof q) == (ssize_t)sizeof q);
}

/* With a function of the library itself, as NCCL does. What is no context does not change, and what cannot be read harms nobody. */
static struct context *open_it(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	CHECK(lib);
	struct context *(*f)(void *) = (struct context * (*)(void *)) dlsym(lib, "ibv_open_device");
	CHECK(f);
	struct context *c = f(NULL), other = *c, *wild = (struct context *)8;
	void *plain = c->ops[11];
	create_cq(c, 0);
	create_cq(c, 8);
	create_cq(c, (uintptr_t)&wild);
	other.cmd_fd++;
	struct context *of_other = &other;
	create_cq(c, (uintptr_t)&of_other);
	CHECK(c->ops[11] == plain && other.ops[11] == plain);
	create_cq(c, (uintptr_t)&c);
	CHECK(c->ops[11] != plain);
	return c;
}
#elif defined LOAD
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
	/* An extended queue: also one that is made again from a wrapped context. */
	struct before_context *before = (struct before_context *)(void *)c - 1;
	struct cq_ex *ex = before->create_cq_ex(c, NULL), *second = before->create_cq_ex(c, NULL);
	CHECK(ex->start_poll == second->start_poll);
	int attr;
	for (int i = 0; i < 100000; i++)
		CHECK(ex->start_poll(ex, NULL) == ENOENT);
	CHECK(second->start_poll(second, &attr) == 0);
	CHECK(call(c->cmd_fd, CMD_DIE, 0, 0, NULL) == EIO);
	int polls = 0, r;
	while ((r = poll_cq(&cq, 1, NULL)) == 0)
		CHECK(++polls < 1000000);
	CHECK(r == -1 && polls > 10000);
	for (polls = 0; (r = ex->start_poll(ex, NULL)) == ENOENT;)
		CHECK(++polls < 1000000);
	CHECK(r == EIO);
	return 0;
}
