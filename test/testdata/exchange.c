/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange [-t rc|uc|ud] [-g GID-INDEX] [-m PATH-MTU] [-l LONGEST] [-n ROUNDS] [-s SEED] [-u TIMEOUT] [-x] PORT [SERVER]
 *
 * Two processes, on two hosts as a rule, that work on each other's memory and check
 * every byte. In each round both post a batch of random requests at the same time: sends,
 * writes, reads and atomics of random lengths. Both draw the requests of both from the
 * same seed, so each knows what has to have arrived, and that nothing beside it was
 * touched. -x: the network loses packets, so of UC and UD messages some do not arrive;
 * those that do must be whole. Every eighth RC round the receives come late.
 *
 * Prints "exchanged N messages (M missing)" at the end.
 */
#include "vt.h"
#include <netdb.h>

enum { BATCH = 16, GRH = 40, UNTOUCHED = 0xee, READ_FROM = 1 << 20 };

/*
 * On a lossy network, after everything is sent: a message is lost if none arrives for the first
 * number of milliseconds; for the second, duplicates may arrive. A late message, from a side
 * without a processor, uses up a receive of the next round.
 */
enum { LOST = 200, TWICE = 30 };

static struct {
	enum ibv_qp_type type;
	int gid, mtu, timeout;
	uint32_t longest;
	unsigned rounds;
	uint64_t seed;
	bool lossy;
} conf = {.type = IBV_QPT_RC, .mtu = 1024, .longest = 20000, .rounds = 20, .seed = 1};

/* One request of one side; both sides compute it. */
struct op {
	enum ibv_wr_opcode code;
	uint32_t len;
	uint32_t pattern; /* of the data */
	uint32_t from;	  /* READ: offset in the other's readable memory */
	uint64_t add;
};

static uint64_t draw(uint64_t *s)
{
	*s ^= *s >> 12;
	*s ^= *s << 25;
	*s ^= *s >> 27;
	return *s * 2685821657736338717ull;
}

/* Lengths at and beside multiples of the MTU are where segmentation goes wrong. */
static uint32_t draw_len(uint64_t *s, uint32_t longest)
{
	uint64_t r = draw(s) >> 32;
	uint32_t len;

	switch (r % 4) {
	case 0:
		len = (uint32_t)(r / 4 % 9);
		break;
	case 1:
		len = (uint32_t)conf.mtu * (uint32_t)(r / 4 % 5) + (uint32_t)(r / 64 % 3) - 1;
		break;
	default:
		len = (uint32_t)(r / 4 % (longest + 1));
	}
	return len > longest ? longest : len; /* -1 became very long */
}

static void draw_batch(struct op *op, int side, unsigned round)
{
	static const enum ibv_wr_opcode rc[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
						IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP};
	static const enum ibv_wr_opcode uc[] = {IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE};
	uint64_t s = (conf.seed * 2 + (uint64_t)side) * 1000003 + round + 1;

	for (int i = 0; i < 4; i++)
		draw(&s);
	for (int i = 0; i < BATCH; i++) {
		uint32_t r = (uint32_t)(draw(&s) >> 40);
		op[i] = (struct op){.code = IBV_WR_SEND_WITH_IMM, .pattern = (uint32_t)(draw(&s) >> 44), .add = draw(&s)};
		if (conf.type == IBV_QPT_RC)
			op[i].code = rc[r % 7];
		else if (conf.type == IBV_QPT_UC)
			/*
			 * A lost write is unknown; after the last message all others have arrived.
			 */
			op[i].code = uc[i == BATCH - 1 ? 0 : r % (conf.lossy ? 2 : 3)];
		op[i].len = draw_len(&s, conf.longest);
		op[i].from = (uint32_t)(draw(&s) >> 33) % (READ_FROM - conf.longest);
	}
}

static bool atomic_code(enum ibv_wr_opcode c)
{
	return c == IBV_WR_ATOMIC_FETCH_AND_ADD || c == IBV_WR_ATOMIC_CMP_AND_SWP;
}

static bool immediate(enum ibv_wr_opcode c)
{
	return c == IBV_WR_SEND_WITH_IMM || c == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static bool receives(enum ibv_wr_opcode c)
{
	return c == IBV_WR_SEND || immediate(c);
}

static bool writes(enum ibv_wr_opcode c)
{
	return c == IBV_WR_RDMA_WRITE || c == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static struct {
	int side, fd;
	struct dev d;
	size_t slot;
	struct buf out, in, got, readable, counter; /* sources; targets of writes; of receives; of reads; of atomics */
	struct ibv_cq *rcq;
	struct end e;
	struct addr to;
	uint64_t readable_va, counter_va;
	uint32_t readable_key, counter_key;
	struct ibv_ah *ah;
	uint64_t model; /* of the other side's counter, which only we change */
	unsigned long messages, missing;
} me;

static void connect_both(void)
{
	uint64_t mine[4], theirs[4];

	me.d = dev_open();
	me.d.gid_index = conf.gid;
	ZERO(ibv_query_gid(me.d.ctx, 1, conf.gid, &me.d.gid));
	me.slot = (conf.longest + GRH + 63) / 64 * 64 + 64;
	me.out = buf_new(&me.d, BATCH * me.slot, ALL_ACCESS);
	me.in = buf_new(&me.d, BATCH * me.slot, ALL_ACCESS);
	me.got = buf_new(&me.d, BATCH * me.slot, ALL_ACCESS);
	me.readable = buf_new(&me.d, READ_FROM, ALL_ACCESS);
	me.counter = buf_new(&me.d, 64, ALL_ACCESS);
	me.rcq = MADE(ibv_create_cq(me.d.ctx, 4 * BATCH, NULL, NULL, 0));
	me.e = end_new(&me.d, (struct opt){.type = conf.type, .recv_cq = me.rcq, .depth = 2 * BATCH, .mtu = conf.mtu, .timeout = conf.timeout});
	me.to = swap_addr(me.fd, end_addr(&me.e, &me.in));
	mine[0] = (uintptr_t)me.readable.p, mine[1] = me.readable.mr->rkey;
	mine[2] = (uintptr_t)me.counter.p, mine[3] = me.counter.mr->rkey;
	send_all(me.fd, mine, sizeof(mine));
	recv_all(me.fd, theirs, sizeof(theirs));
	me.readable_va = theirs[0], me.readable_key = (uint32_t)theirs[1];
	me.counter_va = theirs[2], me.counter_key = (uint32_t)theirs[3];
	for (size_t i = 0; i < READ_FROM; i++) /* any part of it can be checked */
		me.readable.p[i] = (char)((i * 2654435761u) >> 11);
	end_connect(&me.e, me.to);
	if (conf.type == IBV_QPT_UD) {
		struct ibv_ah_attr a = {.is_global = 1, .port_num = 1, .grh = {.dgid = me.to.gid, .sgid_index = (uint8_t)conf.gid, .hop_limit = 64}};
		me.ah = MADE(ibv_create_ah(me.d.pd, &a));
	}
}

static void post(const struct op *op, int i, unsigned round)
{
	size_t at = (size_t)i * me.slot;
	struct work w = work_new(op->code, &me.out, at, op->len, (uint64_t)i);

	if (atomic_code(op->code)) {
		bool add = op->code == IBV_WR_ATOMIC_FETCH_AND_ADD;
		/* Half of the swaps compare with what is there, by the low bit of add. */
		w = atomic_op(op->code, &me.out, at, (uint64_t)i, me.counter_va, me.counter_key, add ? op->add : me.model ^ (op->add & 1),
			      add ? 0 : op->add);
		memcpy(me.out.p + at + 16, &me.model, 8); /* what has to come back */
		if (add)
			me.model += op->add;
		else if (!(op->add & 1))
			me.model = op->add;
	} else if (op->code == IBV_WR_RDMA_READ) {
		w.wr.wr.rdma.remote_addr = me.readable_va + op->from;
		w.wr.wr.rdma.rkey = me.readable_key;
	} else {
		fill(me.out.p + at, op->len, op->pattern);
		if (writes(op->code)) {
			w.wr.wr.rdma.remote_addr = me.to.va + at;
			w.wr.wr.rdma.rkey = me.to.rkey;
		}
		if (conf.type == IBV_QPT_UD) {
			w.wr.wr.ud.ah = me.ah;
			w.wr.wr.ud.remote_qpn = me.to.qpn;
			w.wr.wr.ud.remote_qkey = 0x11111111;
		}
		w.wr.imm_data = htonl(round * BATCH + (uint32_t)i);
	}
	post_work(&me.e, w);
}

/* For our own requests: the data that came back into our memory. */
static void check_back(const struct op *op, int i)
{
	char *p = me.out.p + (size_t)i * me.slot;

	if (atomic_code(op->code)) {
		CHECK(!memcmp(p, p + 16, 8), "atomic %d brought %#llx, want %#llx", i, *(unsigned long long *)p, *(unsigned long long *)(p + 16));
	} else if (op->code == IBV_WR_RDMA_READ) {
		for (uint32_t k = 0; k < op->len; k++) {
			unsigned char want = (unsigned char)(((size_t)(op->from + k) * 2654435761u) >> 11);
			CHECK((unsigned char)p[k] == want, "read %d of %u: byte %u is %#x, want %#x", i, op->len, k, (unsigned char)p[k], want);
		}
		expect_bytes(p + op->len, 16, UNTOUCHED, "behind a read");
	}
}

/* A message from the other side, in our receive number n. */
static void check_message(const struct op *theirs, struct ibv_wc *wc, int i)
{
	const struct op *op = &theirs[i];
	char *p = me.got.p + wc->wr_id * me.slot;
	size_t grh = conf.type == IBV_QPT_UD ? GRH : 0;
	bool write = op->code == IBV_WR_RDMA_WRITE_WITH_IMM;
	/* A receive with an incomplete message is used again. */
	bool fresh = !(conf.lossy && conf.type == IBV_QPT_UC);

	CHECK(wc->opcode == (write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV), "message %d: opcode %d", i, wc->opcode);
	CHECK(!!(wc->wc_flags & IBV_WC_WITH_IMM) == immediate(op->code), "message %d: flags %#x", i, wc->wc_flags);
	CHECK(wc->byte_len == op->len + grh, "message %d: %u bytes, want %zu", i, wc->byte_len, op->len + grh);
	if (write) {
		expect_fill(me.in.p + (size_t)i * me.slot, op->len, op->pattern, "write with immediate");
		if (fresh)
			expect_bytes(p, 64, UNTOUCHED, "the receive of a write");
		return;
	}
	if (grh)
		CHECK((wc->wc_flags & IBV_WC_GRH) && wc->src_qp == me.to.qpn, "message %d: flags %#x, from QP %#x, want %#x", i, wc->wc_flags, wc->src_qp,
		      me.to.qpn);
	expect_fill(p + grh, op->len, op->pattern, "message");
	if (fresh)
		expect_bytes(p + grh + op->len, 16, UNTOUCHED, "behind a message");
}

/* The index of the request of which wc tells; -1: one of an earlier round. A lossy network
 * that also reorders and doubles may bring UD messages in any order and number, and those
 * of UC that fit one packet: their receiver knows no duplicates. */
static int which(const struct op *theirs, struct ibv_wc *wc, int next, unsigned round)
{
	bool any = conf.lossy && conf.type != IBV_QPT_RC;

	while (next < BATCH && !receives(theirs[next].code))
		next++;
	if (wc->wc_flags & IBV_WC_WITH_IMM) {
		uint32_t imm = ntohl(wc->imm_data), i = imm % BATCH;
		if (any && imm / BATCH < round)
			return -1;
		CHECK(imm / BATCH == round && receives(theirs[i].code), "immediate data %u in round %u, which nobody sent", imm, round);
		CHECK((int)i == next || any, "message %u came, want %d", i, next);
		return (int)i;
	}
	CHECK(next < BATCH, "a message more than was sent");
	return next;
}

static int wanted(const struct op *theirs)
{
	int n = 0;

	for (int i = 0; i < BATCH; i++)
		n += receives(theirs[i].code);
	return n;
}

/* The posted receives: slots tail-waiting to tail-1 of a ring. */
static unsigned waiting, tail;

static void post_receives(const struct op *theirs)
{
	for (; waiting < (unsigned)wanted(theirs); waiting++, tail++)
		post_recv(&me.e, &me.got, tail % BATCH * me.slot, conf.longest + GRH, tail % BATCH);
}

static void take_messages(const struct op *theirs, unsigned round)
{
	bool complete = !conf.lossy || conf.type == IBV_QPT_RC, seen[BATCH] = {false};
	int want = wanted(theirs), got = 0, next = 0;
	struct ibv_wc wc;

	while ((got < want || !complete) && poll_wc(me.rcq, &wc, complete ? PATIENCE : got < want ? LOST : TWICE)) {
		CHECK(wc.status == IBV_WC_SUCCESS, "receive: %s", ibv_wc_status_str(wc.status));
		CHECK(wc.wr_id == (tail - waiting) % BATCH, "receive %llu is done, want %u", (unsigned long long)wc.wr_id, (tail - waiting) % BATCH);
		waiting--;
		int i = which(theirs, &wc, next, round);
		if (i < 0)
			continue;
		check_message(theirs, &wc, i);
		next = i + 1;
		got += !seen[i];
		seen[i] = true;
	}
	CHECK(got == want || !complete, "%d messages arrived, want %d", got, want);
	me.messages += (unsigned long)want;
	me.missing += (unsigned long)(want - got);
}

static void check_writes(const struct op *theirs)
{
	for (int i = 0; i < BATCH; i++) {
		char *p = me.in.p + (size_t)i * me.slot;
		if (!writes(theirs[i].code)) {
			expect_bytes(p, me.slot, UNTOUCHED, "memory that nobody wrote");
			continue;
		}
		expect_fill(p, theirs[i].len, theirs[i].pattern, "write");
		expect_bytes(p + theirs[i].len, me.slot - theirs[i].len, UNTOUCHED, "behind a write");
	}
}

static void run_round(unsigned round)
{
	struct op mine[BATCH], theirs[BATCH];
	bool late = conf.type == IBV_QPT_RC && round % 8 == 7;

	draw_batch(mine, me.side, round);
	draw_batch(theirs, !me.side, round);
	memset(me.out.p, UNTOUCHED, me.out.len);
	memset(me.in.p, UNTOUCHED, me.in.len);
	memset(me.got.p, UNTOUCHED, me.got.len);
	if (!late)
		post_receives(theirs);
	barrier(me.fd);
	for (int i = 0; i < BATCH; i++)
		post(&mine[i], i, round);
	if (late) {
		usleep(2000);
		post_receives(theirs);
	}
	for (int i = 0; i < BATCH; i++)
		expect_wc(me.e.cq, (uint64_t)i, IBV_WC_SUCCESS, "request");
	for (int i = 0; i < BATCH; i++)
		check_back(&mine[i], i);
	if (conf.lossy)
		barrier(me.fd); /* now everything is on its way */
	take_messages(theirs, round);
	barrier(me.fd); /* now the other's writes are here too */
	if (conf.type == IBV_QPT_RC || !conf.lossy)
		check_writes(theirs);
	barrier(me.fd);
}

static int tcp(const char *port, const char *server)
{
	struct addrinfo *a, hints = {.ai_family = server ? AF_UNSPEC : AF_INET6, .ai_socktype = SOCK_STREAM, .ai_flags = server ? 0 : AI_PASSIVE};
	int on = 1, r = getaddrinfo(server, port, &hints, &a);

	CHECK(r == 0, "%s: %s", server ? server : "any address", gai_strerror(r));
	int s = socket(a->ai_family, SOCK_STREAM, 0);
	CHECK(s >= 0, "socket: %s", strerror(errno));
	if (server) {
		CHECK(connect(s, a->ai_addr, a->ai_addrlen) == 0, "connect to %s port %s: %s", server, port, strerror(errno));
		return s;
	}
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	CHECK(bind(s, a->ai_addr, a->ai_addrlen) == 0, "bind to port %s: %s", port, strerror(errno));
	CHECK(listen(s, 1) == 0, "listen: %s", strerror(errno));
	int c = accept(s, NULL, NULL);
	CHECK(c >= 0, "accept: %s", strerror(errno));
	return c;
}

static enum ibv_qp_type type_of(const char *s)
{
	return !strcmp(s, "uc") ? IBV_QPT_UC : !strcmp(s, "ud") ? IBV_QPT_UD : IBV_QPT_RC;
}

int main(int argc, char **argv)
{
	for (int c; (c = getopt(argc, argv, "t:g:m:l:n:s:u:x")) != -1;) {
		switch (c) {
		case 't': conf.type = type_of(optarg); break;
		case 'g': conf.gid = atoi(optarg); break;
		case 'm': conf.mtu = atoi(optarg); break;
		case 'l': conf.longest = (uint32_t)atoi(optarg); break;
		case 'n': conf.rounds = (unsigned)atoi(optarg); break;
		case 's': conf.seed = strtoull(optarg, NULL, 10); break;
		case 'u': conf.timeout = atoi(optarg); break;
		case 'x': conf.lossy = true; break;
		default: return 2;
		}
	}
	CHECK(optind < argc, "usage: exchange [-t rc|uc|ud] [-g GID-INDEX] [-m PATH-MTU] [-l LONGEST] [-n ROUNDS] [-s SEED] [-u TIMEOUT] [-x] PORT [SERVER]");
	if (conf.type == IBV_QPT_UD && conf.longest > (uint32_t)conf.mtu)
		conf.longest = (uint32_t)conf.mtu;
	me.side = argc > optind + 1;
	me.fd = tcp(argv[optind], me.side ? argv[optind + 1] : NULL);
	connect_both();
	barrier(me.fd);
	for (unsigned r = 0; r < conf.rounds; r++)
		run_round(r);
	printf("exchanged %lu messages (%lu missing)\n", me.messages, me.missing);
	return 0;
}
