/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group [-g GID-INDEX] [-n MESSAGES] [-s | -o] GROUP
 *
 * A member of a multicast group, by ibv_attach_mcast and nothing else, with two queue
 * pairs attached and one that is not; or with -s a sender, which is a member too; with -o
 * one that is not. GROUP is an IP address. Each message has a number and a pattern; a member checks that each of its
 * queue pairs gets every message whole, with the group in the header before it, and none
 * twice. Prints "attached" when it listens, and "received N messages" at the end.
 */
#include "vt.h"

enum { GRH = 40, LENGTH = 200, SLOT = 256, DEPTH = 64, QKEY = 0x11111111, EVERYONE = 0xffffff, MOST = 4096 };

static struct dev d;
static struct buf mem;
static union ibv_gid group;
static bool ipv4;

struct member {
	struct end e;
	size_t at; /* of its receives in mem */
	unsigned got;
	bool seen[MOST];
};

static void parse_group(const char *text)
{
	if (inet_pton(AF_INET6, text, group.raw) == 1)
		return;
	group.raw[10] = group.raw[11] = 0xff;
	CHECK(inet_pton(AF_INET, text, group.raw + 12) == 1, "%s is no IP address", text);
	ipv4 = true;
}

static void attach(struct member *m, size_t at, bool really)
{
	m->e = end_new(&d, (struct opt){.type = IBV_QPT_UD, .depth = DEPTH});
	m->at = at;
	end_connect(&m->e, (struct addr){0});
	for (uint64_t i = 0; i < DEPTH; i++)
		post_recv(&m->e, &mem, at + i * SLOT, SLOT, i);
	if (really)
		ZERO(ibv_attach_mcast(m->e.qp, &group, 0));
}

static void check(struct member *m, struct ibv_wc *wc)
{
	unsigned char *p = (unsigned char *)mem.p + m->at + wc->wr_id * SLOT;
	uint32_t number;

	CHECK(wc->status == IBV_WC_SUCCESS && wc->opcode == IBV_WC_RECV, "receive with status %d, opcode %d", wc->status, wc->opcode);
	CHECK(wc->byte_len == GRH + LENGTH && wc->wc_flags & IBV_WC_GRH, "%u bytes, flags %#x, want %u with a GRH", wc->byte_len, wc->wc_flags, GRH + LENGTH);
	if (ipv4)
		CHECK(!memcmp(p + 36, group.raw + 12, 4), "the header before a message does not name the group");
	else
		CHECK(!memcmp(p + 24, group.raw, 16), "the header before a message does not name the group");
	memcpy(&number, p + GRH, 4);
	CHECK(number < MOST, "message %u was never sent", number);
	CHECK(!m->seen[number], "message %u came twice", number);
	expect_fill(p + GRH + 4, LENGTH - 4, number, "message to a group");
	m->seen[number] = true;
	m->got++;
	post_recv(&m->e, &mem, m->at + wc->wr_id * SLOT, SLOT, wc->wr_id);
}

/* Receives until every member has n messages, for a limited time. */
static void collect(struct member *m, int members, unsigned n, int ms)
{
	double until = vt_now() + ms / 1e3;
	struct ibv_wc wc;

	for (int i = 0; i < members; i++)
		while (m[i].got < n && vt_now() < until)
			if (poll_wc(m[i].e.cq, &wc, 10))
				check(&m[i], &wc);
}

static void listen_(unsigned n)
{
	static struct member m[3];

	for (int i = 0; i < 3; i++)
		attach(&m[i], (size_t)(i + 1) * DEPTH * SLOT, i < 2);
	puts("attached");
	collect(m, 2, n, 150000); /* the sender may be a guest, and slow */
	for (int i = 0; i < 2; i++)
		CHECK(m[i].got >= n, "member %d got %u messages, want %u", i, m[i].got, n);
	expect_no_wc(m[2].e.cq, 1, "not a member");
	printf("received %u messages\n", n);
	for (int i = 0; i < 3; i++) {
		if (i < 2)
			ZERO(ibv_detach_mcast(m[i].e.qp, &group, 0));
		end_free(&m[i].e);
	}
}

static void send_(unsigned n, bool member)
{
	static struct member m;
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = group, .sgid_index = (uint8_t)d.gid_index, .hop_limit = 64}};
	struct ibv_ah *ah = MADE(ibv_create_ah(d.pd, &to));
	struct end e = end_new(&d, (struct opt){.type = IBV_QPT_UD});

	end_connect(&e, (struct addr){0});
	if (member)
		attach(&m, DEPTH * SLOT, true);
	for (uint32_t i = 0; i < n; i++) {
		struct work w = work_new(IBV_WR_SEND, &mem, 0, LENGTH, i);
		memcpy(mem.p, &i, 4);
		fill(mem.p + 4, LENGTH - 4, i);
		w.wr.wr.ud.ah = ah;
		w.wr.wr.ud.remote_qpn = EVERYONE;
		w.wr.wr.ud.remote_qkey = QKEY;
		post_work(&e, w);
		expect_wc(e.cq, i, IBV_WC_SUCCESS, "send to a group");
		if (member)
			collect(&m, 1, i + 1, PATIENCE);
		usleep(2000); /* what is not acknowledged shall not overrun anybody */
	}
	if (member) {
		struct ibv_wc wc;
		if (poll_wc(m.e.cq, &wc, 50))
			check(&m, &wc); /* which it has already */
		CHECK(m.got == n, "the sender's own member got %u messages, want %u", m.got, n);
		ZERO(ibv_detach_mcast(m.e.qp, &group, 0));
		end_free(&m.e);
	}
	printf("sent %u messages\n", n);
	end_free(&e);
	ZERO(ibv_destroy_ah(ah));
}

int main(int argc, char **argv)
{
	unsigned n = 50;
	bool sender = false, member = true;
	const char *gid = "0";

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int c; (c = getopt(argc, argv, "g:n:so")) != -1;) {
		switch (c) {
		case 'g':
			gid = optarg;
			break;
		case 'n':
			n = (unsigned)atoi(optarg);
			break;
		case 's':
			sender = true;
			break;
		case 'o':
			sender = true;
			member = false;
			break;
		default:
			return 2;
		}
	}
	CHECK(optind == argc - 1 && n < MOST, "usage: group [-g GID-INDEX] [-n MESSAGES] [-s | -o] GROUP");
	parse_group(argv[optind]);
	setenv("VT_GID", gid, 1);
	d = dev_open();
	mem = buf_new(&d, 4 * DEPTH * SLOT, ALL_ACCESS);
	if (sender)
		send_(n, member);
	else
		listen_(n);
	buf_free(&mem);
	dev_close(&d);
	return 0;
}
