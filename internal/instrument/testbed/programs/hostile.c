/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostile KIND COUNT: a tenant that attacks its daemon. It prints how far it got, "ready DONE of
 * COUNT", with the first error, and goes on until its standard input ends.
 *
 *	spin         uses COUNT processors and not the device
 *	rnr          COUNT queue pairs send to peers without receives, 10 us apart, for ever
 *	error        COUNT queue pairs in the ERROR state
 *	ring         rings the doorbells of COUNT queue pairs all the time, with nothing posted
 *	copy         COUNT queue pairs write 1 MiB repeatedly
 *	commands     COUNT programs query the device as fast as they can
 *	connections  COUNT connections to the daemon's socket that say nothing
 *	qps          COUNT queue pairs
 *	mappings     COUNT programs that register 256 pages, each 1 GiB from the next
 *	requests     COUNT tools that never end a request
 *
 * It uses libibverbs and the build's own libvrdma.so where possible, so that it works against
 * builds with another protocol. Several processes share the work where one process would
 * exceed its limits.
 */
#include "device.h"
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MIB (1u << 20)
#define GIB (1ull << 30)

/* What a process holds. */
static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr; /* of 2 MiB */
	char *memory;
	union ibv_gid gid;
	struct ibv_qp **qps;
	int count;
} me;

static void begin(int count)
{
	me.context = open_device();
	me.pd = ibv_alloc_pd(me.context);
	me.cq = ibv_create_cq(me.context, 255, NULL, NULL, 0);
	me.qps = calloc((size_t)count + 1, sizeof(*me.qps));
	me.memory = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!me.pd || !me.cq || !me.qps || me.memory == MAP_FAILED || ibv_query_gid(me.context, 1, 0, &me.gid))
		fail("the device");
	memset(me.memory, 1, 2 * MIB);
	me.mr = ibv_reg_mr(me.pd, me.memory, 2 * MIB, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!me.mr)
		fail("ibv_reg_mr");
}

/* A queue pair, or NULL and errno. */
static struct ibv_qp *create(unsigned int depth)
{
	struct ibv_qp_init_attr init = {
		.send_cq = me.cq,
		.recv_cq = me.cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = depth, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	errno = 0;
	return ibv_create_qp(me.pd, &init);
}

/* Posts an unsignaled request; 0, or errno when the queue is full. */
static int post(struct ibv_qp *qp, enum ibv_wr_opcode op, unsigned int length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)me.memory, .length = length, .lkey = me.mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.opcode = op,
		.sg_list = &sge,
		.num_sge = 1,
		.wr.rdma = { .remote_addr = (uintptr_t)me.memory + MIB, .rkey = me.mr->rkey },
	};

	return ibv_post_send(qp, &wr, &bad);
}

/* Makers return how many of count they made; errno says what stopped them. */

static int make_qps(int count)
{
	begin(count);
	for (; me.count < count; me.count++) {
		me.qps[me.count] = create(1);
		if (!me.qps[me.count])
			break;
	}
	return me.count;
}

static int make_error(int count)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

	make_qps(count);
	for (int i = 0; i < me.count; i++) {
		struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

		if (ibv_modify_qp(me.qps[i], &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
		    ibv_modify_qp(me.qps[i], &a, IBV_QP_STATE))
			return i;
	}
	return me.count;
}

static int make_rnr(int count)
{
	begin(count);
	for (; me.count < count; me.count++) {
		struct ibv_qp *a = create(1), *b = a ? create(1) : NULL;

		if (!b)
			break;
		connect_qp_rnr(a, &me.gid, b->qp_num, 1);
		connect_qp_rnr(b, &me.gid, a->qp_num, 1);
		me.qps[me.count] = a;
	}
	for (int i = 0; i < me.count; i++)
		post(me.qps[i], IBV_WR_SEND, 64);
	return me.count;
}

static int make_connected(int count)
{
	begin(count);
	for (; me.count < count; me.count++) {
		struct ibv_qp *qp = create(31);

		if (!qp)
			break;
		connect_qp(qp, &me.gid, qp->qp_num);
		me.qps[me.count] = qp;
	}
	return me.count;
}

static int make_context(int count)
{
	begin(count);
	return count;
}

static int make_nothing(int count)
{
	return count;
}

static int make_mappings(int count)
{
	enum { WINDOWS = 256 };
	char *space = mmap(NULL, (WINDOWS + 1) * GIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (space == MAP_FAILED)
		fail("mmap");
	begin(count);
	for (int i = 0; i < WINDOWS; i++) {
		space[(size_t)i * GIB] = 1;
		errno = 0;
		if (!ibv_reg_mr(me.pd, space + (size_t)i * GIB, 4096, IBV_ACCESS_LOCAL_WRITE))
			return 0;
	}
	return count;
}

/* A connection to the daemon, or -1 and errno. A full backlog gets ten seconds. */
static int dial(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	const char *path = getenv("VRDMA_SOCKET");
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	snprintf(at.sun_path, sizeof(at.sun_path), "%s", path ? path : "");
	for (int i = 0; connect(fd, (struct sockaddr *)&at, sizeof(at)); i++) {
		if (errno != EAGAIN || i == 1000) {
			int error = errno;

			close(fd);
			errno = error;
			return -1;
		}
		poll(NULL, 0, 10);
	}
	return fd;
}

static int make_connections(int count)
{
	int done = 0;

	while (done < count && dial() >= 0)
		done++;
	return done;
}

/* One request in pieces of 62 KiB, 63 MiB of them, each with "more follows" before it. */
static int unfinished(unsigned int protocol)
{
	struct {
		uint32_t magic, protocol, kind, flags;
		char rest[144];
	} hello = { 0x4d445256, protocol, 4 /* control */, 0, "" };
	static char piece[62 << 10];
	struct pollfd p = { .fd = dial(), .events = POLLIN };
	int32_t welcome[62];

	if (p.fd < 0)
		return -1;
	memset(piece, ' ', sizeof(piece));
	piece[0] = '+';
	if (send(p.fd, &hello, sizeof(hello), MSG_NOSIGNAL) < 0 || poll(&p, 1, 10000) != 1 ||
	    recv(p.fd, welcome, sizeof(welcome), 0) < 12) {
		errno = errno ? errno : ECONNRESET;
		return -1;
	}
	if (welcome[2]) {
		errno = welcome[2];
		return -1;
	}
	p.events = POLLOUT;
	for (int i = 0; i < 1023; i++) {
		errno = ETIMEDOUT;
		if (poll(&p, 1, 10000) != 1 || send(p.fd, piece, sizeof(piece), MSG_NOSIGNAL) < 0)
			return -1;
	}
	return 0;
}

static int make_requests(int count)
{
	int done = 0;

	while (done < count) {
		int error = -1;

		errno = EPROTO;
		/* Builds differ in their protocol; any other refusal is the answer. */
		for (unsigned int protocol = 2; error && errno == EPROTO && protocol < 9; protocol++) {
			errno = 0;
			error = unfinished(protocol);
		}
		if (error)
			break;
		done++;
	}
	return done;
}

/* Attacks that go on until we are killed. */

static void act_rest(void)
{
	for (;;)
		pause();
}

static void act_spin(void)
{
	for (;;)
		;
}

static void act_ring(void)
{
	for (;;) {
		for (int i = 0; i < me.count; i++) {
			/* IB_USER_VERBS_CMD_POST_SEND with nothing in it: how the provider rings. */
			uint32_t command[9] = { 28, 9 | 1 << 16, 0, 0, me.qps[i]->handle, 0, 0, 0, 0 };

			if (write(me.context->cmd_fd, command, sizeof(command)) < 0)
				fail("POST_SEND");
		}
	}
}

static void act_copy(void)
{
	for (;;) {
		for (int i = 0; i < me.count; i++) {
			while (!post(me.qps[i], IBV_WR_RDMA_WRITE, MIB))
				;
		}
		poll(NULL, 0, 2);
	}
}

static void act_commands(void)
{
	struct ibv_device_attr a;

	while (!ibv_query_device(me.context, &a))
		;
	fail("ibv_query_device");
}

static const struct kind {
	const char *name;
	int chunk; /* for each process */
	int (*make)(int count);
	void (*act)(void);
} kinds[] = {
	{ "spin", 1, make_nothing, act_spin },
	{ "rnr", 2000, make_rnr, act_rest },
	{ "error", 15000, make_error, act_rest },
	{ "ring", 2000, make_connected, act_ring },
	{ "copy", 2000, make_connected, act_copy },
	{ "commands", 1, make_context, act_commands },
	{ "connections", 900, make_connections, act_rest },
	{ "qps", 15000, make_qps, act_rest },
	{ "mappings", 1, make_mappings, act_rest },
	{ "requests", 100, make_requests, act_rest },
};

struct outcome {
	int done, error;
};

/* The process of one chunk; its outcome goes to fd. */
static void chunk(const struct kind *k, int count, int fd)
{
	struct outcome o;

	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() == 1)
		exit(1);
	o.done = k->make(count);
	o.error = o.done < count ? errno : 0;
	if (write(fd, &o, sizeof(o)) != sizeof(o))
		exit(1);
	close(fd);
	if (o.done > 0)
		k->act();
	act_rest();
}

/* Starts a process and waits until it has made what it should. */
static struct outcome start(const struct kind *k, int count)
{
	struct outcome o = { 0, ECHILD };
	int fds[2];
	pid_t pid;

	if (pipe(fds) || (pid = fork()) < 0)
		fail("fork");
	if (!pid) {
		close(fds[0]);
		chunk(k, count, fds[1]);
	}
	close(fds[1]);
	if (read(fds[0], &o, sizeof(o)) != sizeof(o))
		o.error = ECHILD; /* it has printed why */
	close(fds[0]);
	return o;
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[2]) : 0, done = 0, error = 0;
	const struct kind *k = NULL;
	struct rlimit files;
	char byte;

	for (size_t i = 0; argc > 1 && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (!strcmp(argv[1], kinds[i].name))
			k = &kinds[i];
	}
	if (!k || count < 1) {
		fprintf(stderr, "usage: hostile KIND COUNT\n");
		return 2;
	}
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files); /* else dial reports it */
	}
	for (int left = count; left > 0 && !error; left -= k->chunk) {
		struct outcome o = start(k, left < k->chunk ? left : k->chunk);

		done += o.done;
		error = o.error;
	}
	printf("ready %d of %d%s%s", done, count, error ? ": " : "", error ? strerror(error) : "");
	say("");
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	return 0; /* the others are killed with us */
}
