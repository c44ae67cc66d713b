/* verbs.h says what libibverbs' own header says. */
#include <infiniband/verbs.h>

#include "../../verbs.h"

#define SAME(ours, a, theirs, b) _Static_assert(offsetof(ours, a) == offsetof(theirs, b), #a)

SAME(struct context, ops, struct ibv_context, ops);
_Static_assert(offsetof(struct context, ops) + OP_POLL_CQ * sizeof(void *) ==
		       offsetof(struct ibv_context, ops) + offsetof(struct ibv_context_ops, poll_cq), "poll_cq");
SAME(struct context, cmd_fd, struct ibv_context, cmd_fd);
SAME(struct context, abi_compat, struct ibv_context, abi_compat);
_Static_assert(sizeof(struct context) == sizeof(struct ibv_context), "ibv_context");
SAME(struct cq, context, struct ibv_cq, context);
SAME(struct cq_ex, cq.context, struct ibv_cq_ex, context);
SAME(struct cq_ex, wr_id, struct ibv_cq_ex, wr_id);
SAME(struct cq_ex, start_poll, struct ibv_cq_ex, start_poll);
_Static_assert(offsetof(struct verbs_context, context) - offsetof(struct verbs_context, create_cq_ex) ==
		       sizeof(struct before_context) - offsetof(struct before_context, create_cq_ex), "create_cq_ex");
_Static_assert(offsetof(struct verbs_context, context) - offsetof(struct verbs_context, sz) ==
		       sizeof(struct before_context) - offsetof(struct before_context, sz), "sz");

int main(void)
{
	return 0;
}
