/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that uses its device and then attacks it: rings, indices, work
 * requests, doorbells, memory behind the daemon's back, commands. It may fail,
 * hang in its own queues or be thrown out; the daemon and everybody else must not
 * notice. SECONDS bounds every case (1.5, or what HOSTILE_SECONDS says). It ends
 * with status 0 unless it could not even begin: how it fares is its own business.
 */
#include "vt.h"
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <signal.h>
#include <sys/resource.h>

static struct dev d;
static struct buf mem;
static struct couple c;
static double SECONDS = 1.5;
static uint64_t seed = 88172645463325252ull;

static uint64_t rnd(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

/* A random number, often near the ends of its range. */
static uint64_t nasty(void)
{
	static const uint64_t v[] = {0, 1, 2, 127, 128, 255, 256, 4095, 4096, 65535, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 0x7fffffffffffffff, 0x8000000000000000, UINT64_MAX};

	return rnd() % 3 ? v[rnd() % (sizeof(v) / sizeof(v[0]))] : rnd();
}

static void die_quietly(int sig)
{
	(void)sig;
	_exit(0); /* our own faults are what we asked for */
}

static void start(void)
{
	signal(SIGSEGV, die_quietly);
	signal(SIGBUS, die_quietly);
	signal(SIGABRT, die_quietly);
	signal(SIGPIPE, SIG_IGN);
	seed ^= (uint64_t)getpid() * 0x9e3779b97f4a7c15ull;
	d = dev_open();
	mem = buf_new(&d, 1 << 20, ALL_ACCESS);
	c = couple_new(&d, (struct opt){.depth = 128, .inline_data = 128});
	expect_alive(&c, &mem, "before");
}

static void traffic(void)
{
	struct work w = rdma(rnd() % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, &mem, 0, 1 + rnd() % 65536, 1, (uintptr_t)mem.p + 65536, mem.mr->rkey);
	struct ibv_wc wc[16];

	(void)try_recv(&c.b, &mem, 0, 4096, 2);
	(void)try_send(&c.a, &w);
	w = work_new(IBV_WR_SEND, &mem, 0, rnd() % 4096, 3);
	(void)try_send(&c.a, &w);
	(void)ibv_poll_cq(c.a.cq, 16, wc);
	(void)ibv_poll_cq(c.b.cq, 16, wc);
}

/* ---- what is mapped ---- */

struct area {
	char *p;
	size_t len;
};

/* The mappings of the device's file: doorbells and rings. */
static int areas(struct area *a, int max)
{
	char fd_link[64], file[256], line[512];
	FILE *f = MADE(fopen("/proc/self/maps", "r"));
	int n = 0;

	snprintf(fd_link, sizeof(fd_link), "/proc/self/fd/%d", d.ctx->cmd_fd);
	ssize_t len = readlink(fd_link, file, sizeof(file) - 1);
	CHECK(len > 0, "readlink of the command fd: %s", strerror(errno));
	file[len] = 0;
	while (fgets(line, sizeof(line), f) && n < max) {
		unsigned long lo, hi;
		char prot[8];
		if (sscanf(line, "%lx-%lx %7s", &lo, &hi, prot) == 3 && prot[1] == 'w' && strstr(line, "/memfd:"))
			a[n++] = (struct area){(char *)lo, hi - lo};
	}
	fclose(f);
	CHECK(n > 0, "no shared mapping found");
	return n;
}

static bool is_ours(char *p)
{
	return p >= mem.p - 4096 && p < mem.p + mem.len + 4096;
}

/* ---- the attacks ---- */

/* Indices of every ring: producer at 128, consumer at 256. */
static void indices(void)
{
	struct area a[64];
	int n = areas(a, 64);

	for (double end = vt_now() + SECONDS; vt_now() < end;) {
		struct area *x = &a[rnd() % (unsigned)n];
		if (!is_ours(x->p) && x->len >= 384)
			*(volatile uint32_t *)(x->p + (rnd() % 2 ? 128 : 256)) = (uint32_t)nasty();
		traffic();
	}
}

/* Whole rings and the doorbell page, at random, while they are in use. */
static void scribble(void)
{
	struct area a[64];
	int n = areas(a, 64);

	for (double end = vt_now() + SECONDS; vt_now() < end;) {
		struct area *x = &a[rnd() % (unsigned)n];
		if (is_ours(x->p))
			continue;
		for (int i = 0; i < 32; i++) {
			size_t off = rnd() % 4 ? rnd() % x->len : rnd() % 4096 % x->len;
			off &= ~7ul;
			if (off + 8 <= x->len)
				*(volatile uint64_t *)(x->p + off) = nasty();
		}
		traffic();
	}
}

static volatile int stop;

static void *scribbler(void *arg)
{
	struct area *a = arg;

	while (!stop) {
		size_t off = 384 + rnd() % (a->len - 392);
		*(volatile uint64_t *)(a->p + (off & ~7ul)) = nasty();
	}
	return NULL;
}

/* A thread changes work requests between the moment they are posted and read. */
static void race_work_requests(void)
{
	struct area a[64];
	int n = areas(a, 64);
	pthread_t th;
	struct area *biggest = NULL;

	for (int i = 0; i < n; i++)
		if (!is_ours(a[i].p) && a[i].len > 4096 && (!biggest || a[i].len > biggest->len))
			biggest = &a[i];
	CHECK(biggest, "no ring found");
	ZERO(pthread_create(&th, NULL, scribbler, biggest));
	for (double end = vt_now() + SECONDS; vt_now() < end;)
		traffic();
	stop = 1;
	pthread_join(th, NULL);
}

static void *scribble_everything(void *arg)
{
	struct area *a = arg;

	while (!stop) {
		struct area *x = &a[rnd() % 64];
		if (!x->p)
			continue;
		size_t off = (rnd() % 4 ? rnd() % x->len : rnd() % 4096 % x->len) & ~7ul;
		if (off + 8 <= x->len)
			*(volatile uint64_t *)(x->p + off) = nasty();
	}
	return NULL;
}

/* A thread writes to mailbox, doorbells, arm words, event shelf and rings while commands of every kind run. */
static void scribble_during_commands(void)
{
	static struct area a[64];
	pthread_t th;

	for (int i = 0; i < 500; i++) { /* the mailbox exists after some commands */
		struct ibv_port_attr p;
		(void)ibv_query_port(d.ctx, 1, &p);
	}
	areas(a, 64);
	for (int i = 0; i < 64; i++)
		if (a[i].p && is_ours(a[i].p))
			a[i].p = NULL;
	/*
	 * It may overwrite its own request and then wait for the answer for ever. Replies that it has overwritten
	 * are stored anywhere, so its signal masks mean nothing any more, and only SIGKILL is certain.
	 */
	struct sigevent kill = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
	struct itimerspec enough = {.it_value.tv_sec = (time_t)SECONDS + 2};
	timer_t timer;
	ZERO(timer_create(CLOCK_MONOTONIC, &kill, &timer));
	ZERO(timer_settime(timer, 0, &enough, NULL));
	ZERO(pthread_create(&th, NULL, scribble_everything, a));
	for (double end = vt_now() + SECONDS; vt_now() < end;) {
		struct ibv_port_attr p;
		struct ibv_qp_attr q;
		struct ibv_qp_init_attr init;
		struct ibv_cq *cq = ibv_create_cq(d.ctx, 1 + (int)(rnd() % 100), NULL, NULL, 0);
		struct ibv_mr *mr = ibv_reg_mr(d.pd, mem.p, mem.len, ALL_ACCESS);
		(void)ibv_query_port(d.ctx, 1, &p);
		if (cq) {
			struct ibv_qp_init_attr x = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1}};
			struct ibv_qp *qp = ibv_create_qp(d.pd, &x);
			(void)ibv_resize_cq(cq, 1 + (int)(rnd() % 1000));
			if (qp) {
				(void)ibv_query_qp(qp, &q, IBV_QP_STATE, &init);
				(void)ibv_destroy_qp(qp);
			}
			(void)ibv_destroy_cq(cq);
		}
		if (mr)
			(void)ibv_dereg_mr(mr);
		(void)ibv_query_qp(c.a.qp, &q, IBV_QP_STATE, &init);
		traffic();
	}
	stop = 1;
	pthread_join(th, NULL);
}

/* Work requests with random values in every field: keys, lengths, counts, opcodes. */
static void wild_work_requests(void)
{
	for (double end = vt_now() + SECONDS; vt_now() < end;) {
		struct ibv_sge s[4];
		struct work w = work_new((enum ibv_wr_opcode)(rnd() % 20), NULL, 0, 0, rnd());
		struct ibv_wc wc[16];
		for (int i = 0; i < 4; i++)
			s[i] = (struct ibv_sge){.addr = rnd() % 2 ? (uintptr_t)mem.p + rnd() % mem.len : nasty(), .length = (uint32_t)nasty(), .lkey = rnd() % 2 ? mem.mr->lkey : (uint32_t)nasty()};
		w.wr.sg_list = s;
		w.wr.num_sge = (int)(rnd() % 5);
		w.wr.send_flags = (unsigned)rnd() & (IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
		w.wr.wr.rdma.remote_addr = rnd() % 2 ? (uintptr_t)mem.p : nasty();
		w.wr.wr.rdma.rkey = rnd() % 2 ? mem.mr->rkey : (uint32_t)nasty();
		w.wr.wr.atomic.compare_add = nasty();
		w.wr.bind_mw.mw = NULL;
		if (w.wr.opcode == IBV_WR_BIND_MW)
			continue; /* the provider itself reads through the pointers */
		(void)try_send(&c.a, &w);
		(void)ibv_poll_cq(c.a.cq, 16, wc);
		if (qp_state(&c.a) == IBV_QPS_ERR) {
			couple_free(&c);
			c = couple_new(&d, (struct opt){.depth = 128, .timeout = 8, .retry = 1, .rnr_retry = 1});
		}
	}
}

/* Rings every doorbell, also those of queue pairs that do not exist. */
static void doorbells(void)
{
	char *page = mmap(NULL, 12288, PROT_READ | PROT_WRITE, MAP_SHARED, d.ctx->cmd_fd, 0);

	if (page == MAP_FAILED)
		return; /* refused: as good */
	for (double end = vt_now() + SECONDS; vt_now() < end;) {
		memset(page + 4096, 0xff, 8192);
		memset(page + 128, 0xff, 128);
		*(volatile uint32_t *)(page + 64) = (uint32_t)nasty();
		*(volatile uint32_t *)page = (uint32_t)nasty();
		traffic();
	}
}

/* Arms every completion queue at any moment, with words of any value, and reads no events. */
static void arms(void)
{
	char *page = mmap(NULL, 20480 + 64 * 64, PROT_READ | PROT_WRITE, MAP_SHARED, d.ctx->cmd_fd, 0);
	struct ibv_comp_channel *ch = MADE(ibv_create_comp_channel(d.ctx));
	struct couple k = couple_new(&d, (struct opt){.channel = ch, .depth = 64});
	struct ibv_wc wc[16];

	if (page == MAP_FAILED)
		return; /* refused: as good */
	for (double end = vt_now() + SECONDS; vt_now() < end;) {
		struct work w = rdma(IBV_WR_RDMA_WRITE, &mem, 0, 8, 1, (uintptr_t)mem.p + 4096, mem.mr->rkey);
		for (int i = 0; i < 64; i++)
			*(volatile uint32_t *)(page + 20480 + i * 64) = rnd() % 2 ? ~0u : (uint32_t)nasty();
		*(volatile uint32_t *)(page + 256) = (uint32_t)nasty();
		(void)ibv_req_notify_cq(k.a.cq, rnd() % 2);
		(void)try_send(&k.a, &w);
		(void)ibv_poll_cq(k.a.cq, 16, wc);
		traffic();
	}
}

/* Holes in the files, their size changed, mapped and unmapped everywhere. */
static void memory_under_the_daemon(void)
{
	for (double end = vt_now() + SECONDS; vt_now() < end;) {
		traffic();
		for (int fd = 3; fd < 70000; fd = fd == 1100 ? 60000 : fd + 1) {
			char name[64], to[256];
			snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
			ssize_t len = readlink(name, to, sizeof(to) - 1);
			if (len <= 0 || strncmp(to, "/memfd:", 7))
				continue;
			int again = open(name, O_RDWR);
			for (int i = 0; i < 8; i++) {
				off_t at = rnd() % 2 ? (off_t)(rnd() % 65536) & ~4095 : ((off_t)(uintptr_t)mem.p + (off_t)(rnd() % mem.len)) & ~4095;
				(void)!fallocate(again, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, 4096 * (1 + (off_t)(rnd() % 16)));
			}
			(void)!ftruncate(again, (off_t)(rnd() % 100000));
			(void)!ftruncate(again, 0);
			(void)fcntl(again, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK);
			close(again);
		}
	}
	(void)fallocate(d.ctx->cmd_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 30);
	traffic();
}

/* Unmaps, moves and write-protects buffers under living regions, with work queued. */
static void unmap_regions(void)
{
	for (double end = vt_now() + SECONDS; vt_now() < end;) {
		size_t len = 4096 * (1 + rnd() % 64);
		char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct buf b = {.p = p, .len = len, .mr = ibv_reg_mr(d.pd, p, len, ALL_ACCESS)};
		if (!b.mr)
			break;
		for (int i = 0; i < 4; i++) {
			struct work w = rdma(rnd() % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, &b, 0, len, 1, (uintptr_t)p, b.mr->rkey);
			(void)try_send(&c.a, &w);
		}
		switch (rnd() % 4) {
		case 0:
			munmap(p, len);
			break;
		case 1:
			mprotect(p, len, PROT_NONE);
			break;
		case 2:
			p = mremap(p, len, len * 2, MREMAP_MAYMOVE);
			break;
		case 3: /* somebody else's file in its place, shorter than the region */
			p = mmap(p, len, PROT_READ, MAP_PRIVATE | MAP_FIXED, open("/proc/self/exe", O_RDONLY | O_CLOEXEC), 0);
			break;
		}
		traffic();
		struct ibv_wc wc[16];
		(void)ibv_poll_cq(c.a.cq, 16, wc);
		if (rnd() % 2)
			ibv_dereg_mr(b.mr);
		if (qp_state(&c.a) != IBV_QPS_RTS) {
			couple_free(&c);
			c = couple_new(&d, (struct opt){.depth = 128, .timeout = 8, .retry = 1});
		}
	}
}

/* Commands with every number, every length, and handles of others. */
static void raw_commands(void)
{
	for (double end = vt_now() + SECONDS; vt_now() < end;) {
		union {
			struct ib_uverbs_cmd_hdr h;
			uint32_t w[256];
		} m;
		static char response[4096];
		for (size_t i = 0; i < 256; i++)
			m.w[i] = rnd() % 2 ? (uint32_t)(rnd() % 16) : (uint32_t)nasty();
		m.h.command = rnd() % 8 ? (uint32_t)(rnd() % 64) : (uint32_t)nasty();
		if (m.h.command == 0 || m.h.command == IB_USER_VERBS_CMD_REG_MR)
			continue; /* those the shim rightly reads itself */
		if (rnd() % 2)
			m.h.command |= 0x80000000u;
		size_t len = 8 + 4 * (rnd() % 248);
		m.h.in_words = rnd() % 4 ? (uint16_t)(len / 4) : (uint16_t)nasty();
		m.h.out_words = rnd() % 4 ? 16 : (uint16_t)nasty();
		memcpy(&m.w[2], &(void *){response}, sizeof(void *));
		(void)!write(d.ctx->cmd_fd, &m, rnd() % 8 ? len : rnd() % len);
	}
}

/* As many objects of each kind as the daemon allows. */
static void hoard(void)
{
	int n = 0;

	for (double end = vt_now() + SECONDS; vt_now() < end && n < 20000; n++) {
		switch (n % 5) {
		case 0:
			(void)!ibv_alloc_pd(d.ctx);
			break;
		case 1:
			(void)!ibv_create_cq(d.ctx, 1000, NULL, NULL, 0);
			break;
		case 2:
			(void)!ibv_reg_mr(d.pd, mem.p, mem.len, ALL_ACCESS);
			break;
		case 3: {
			struct ibv_qp_init_attr a = {.send_cq = c.a.cq, .recv_cq = c.a.cq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 1000, .max_recv_wr = 1000, .max_send_sge = 1, .max_recv_sge = 1}};
			(void)!ibv_create_qp(d.pd, &a);
			break;
		}
		case 4:
			(void)!ibv_create_comp_channel(d.ctx);
			break;
		}
	}
	printf("hoarded %d objects\n", n);
}

/* Opens devices as fast as possible and never closes them. */
static void open_flood(void)
{
	int n;
	struct ibv_device **list = MADE(ibv_get_device_list(&n));

	for (double end = vt_now() + SECONDS; vt_now() < end;)
		if (!ibv_open_device(list[0]))
			break;
}

/* Floods a victim's queue pairs: guesses numbers and keys. */
static void guess_keys(void)
{
	struct couple k = couple_new(&d, (struct opt){.depth = 128, .timeout = 1, .retry = -1});

	for (double end = vt_now() + SECONDS; vt_now() < end;) {
		struct end e = end_new(&d, (struct opt){.timeout = 1, .retry = -1});
		struct addr to = end_addr(&k.a, NULL);
		to.qpn = (uint32_t)rnd() & 0xffffff;
		end_connect(&e, to);
		struct work w = rdma(IBV_WR_RDMA_WRITE, &mem, 0, 4096, 1, (uintptr_t)mem.p, (uint32_t)rnd());
		(void)try_send(&e, &w);
		struct ibv_wc wc;
		(void)poll_wc(e.cq, &wc, 10);
		end_free(&e);
	}
}

/* Events that nobody ever reads. */
static void unread_events(void)
{
	struct ibv_comp_channel *ch = MADE(ibv_create_comp_channel(d.ctx));
	struct couple k = couple_new(&d, (struct opt){.channel = ch, .depth = 64});
	struct ibv_wc wc[16];

	for (double end = vt_now() + SECONDS; vt_now() < end;) {
		struct work w = rdma(IBV_WR_RDMA_WRITE, &mem, 0, 8, 1, (uintptr_t)mem.p + 4096, mem.mr->rkey);
		(void)ibv_req_notify_cq(k.a.cq, 0);
		(void)try_send(&k.a, &w);
		(void)ibv_poll_cq(k.a.cq, 16, wc);
		struct ibv_qp_attr a = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
		(void)ibv_modify_qp(k.b.qp, &a, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
		a.qp_state = IBV_QPS_RTS;
		(void)ibv_modify_qp(k.b.qp, &a, IBV_QP_STATE);
	}
}

/* Registers address space without memory behind it, and keeps it. */
static void claim_everything(void)
{
	for (double end = vt_now() + SECONDS; vt_now() < end;) {
		size_t len = 1ul << (30 + rnd() % 14);
		char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED)
			continue;
		struct ibv_mr *mr = ibv_reg_mr(d.pd, p, len, ALL_ACCESS);
		if (!mr)
			munmap(p, len);
	}
}

/* Sends more than any receiver reads: to itself, to full queues, for ever. */
static void stuck_queues(void)
{
	struct couple k[16];

	for (int i = 0; i < 16; i++)
		k[i] = couple_new(&d, (struct opt){.depth = 64, .rnr_retry = 7, .min_rnr = 1});
	for (double end = vt_now() + SECONDS; vt_now() < end;)
		for (int i = 0; i < 16; i++) {
			struct work w = work_new(IBV_WR_SEND, &mem, 0, 65536, 1); /* no receive will come */
			(void)try_send(&k[i].a, &w);
			w = rdma(IBV_WR_RDMA_WRITE, &mem, 0, 1 << 19, 1, (uintptr_t)mem.p + (1 << 19), mem.mr->rkey); /* nobody polls */
			(void)try_send(&k[i].b, &w);
		}
}

static const struct vt_case attacks[] = {
	{"indices", indices},
	{"scribble", scribble},
	{"race_work_requests", race_work_requests},
	{"scribble_during_commands", scribble_during_commands},
	{"wild_work_requests", wild_work_requests},
	{"doorbells", doorbells},
	{"arms", arms},
	{"memory_under_the_daemon", memory_under_the_daemon},
	{"unmap_regions", unmap_regions},
	{"raw_commands", raw_commands},
	{"hoard", hoard},
	{"open_flood", open_flood},
	{"guess_keys", guess_keys},
	{"unread_events", unread_events},
	{"claim_everything", claim_everything},
	{"stuck_queues", stuck_queues},
};

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(argc >= 2, "usage: %s list|ATTACK", argv[0]);
	if (getenv("HOSTILE_SECONDS"))
		SECONDS = atof(getenv("HOSTILE_SECONDS"));
	for (size_t i = 0; i < sizeof(attacks) / sizeof(attacks[0]); i++) {
		if (!strcmp(argv[1], "list")) {
			puts(attacks[i].name);
		} else if (!strcmp(argv[1], attacks[i].name)) {
			start();
			printf("begun\n");
			attacks[i].run();
			_exit(0); /* no tidy end */
		}
	}
	return !!strcmp(argv[1], "list");
}
