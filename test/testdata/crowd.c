/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crowd PROCESSES QPS MESSAGES: many processes, each with many queue pairs, each
 * queue pair connected to another process; everybody sends to everybody connected
 * and checks what comes. With MESSAGES 0 they connect, print "idle" and wait for
 * the end of standard input.
 */
#include "vt.h"

enum { LEN = 600, DEPTH = 16 };

static int processes, qps, messages;

/* Queue pair j of process i meets queue pair partner(j) of process (i ± j/2 ± 1). */
static int partner_process(int i, int j)
{
	int step = j / 2 + 1;

	return j % 2 ? (i + processes - step) % processes : (i + step) % processes;
}

static int partner_qp(int j)
{
	return j % 2 ? j - 1 : j + 1;
}

static void member(int me, int fd)
{
	struct dev d = dev_open();
	struct ibv_cq *cq = MADE(ibv_create_cq(d.ctx, 2 * DEPTH * qps, NULL, NULL, 0));
	struct buf b = buf_new(&d, (size_t)qps * (DEPTH + 1) * LEN, ALL_ACCESS);
	struct end *e = calloc((size_t)qps, sizeof(*e));
	struct addr *a = calloc((size_t)qps, sizeof(*a));
	uint32_t *sent = calloc((size_t)qps, sizeof(*sent)), *got = calloc((size_t)qps, sizeof(*got));
	int open_sends = 0;

	for (int j = 0; j < qps; j++) {
		e[j] = end_new(&d, (struct opt){.depth = DEPTH, .send_cq = cq, .timeout = 18});
		a[j] = end_addr(&e[j], &b);
		for (size_t k = 0; k < DEPTH / 2; k++)
			post_recv(&e[j], &b, ((size_t)j * (DEPTH + 1) + k) * LEN, LEN, (uint64_t)j << 32 | k);
	}
	send_all(fd, a, (size_t)qps * sizeof(*a));
	recv_all(fd, a, (size_t)qps * sizeof(*a)); /* now those of our partners */
	for (int j = 0; j < qps; j++)
		end_connect(&e[j], a[j]);
	barrier(fd);
	if (!messages) {
		char c;
		while (read(fd, &c, 1) > 0)
			;
		exit(0);
	}
	for (int left = qps * messages; left > 0 || open_sends > 0;) {
		for (int j = 0; j < qps; j++) {
			if (sent[j] == (uint32_t)messages || sent[j] > got[j] + 2)
				continue; /* in step with the partner, so that no receive is missing */
			struct work w = work_new(IBV_WR_SEND_WITH_IMM, &b, ((size_t)j * (DEPTH + 1) + DEPTH) * LEN, LEN, 1ull << 63);
			if (sent[j] == 0)
				fill(b.p + ((size_t)j * (DEPTH + 1) + DEPTH) * LEN, LEN, (uint32_t)(me * 1000 + j));
			w.wr.imm_data = htonl(sent[j]++);
			post_work(&e[j], w);
			open_sends++;
		}
		struct ibv_wc wc;
		CHECK(poll_wc(cq, &wc, 60000), "process %d: nothing for a minute, %d messages missing", me, left);
		CHECK(wc.status == IBV_WC_SUCCESS, "process %d: %s", me, ibv_wc_status_str(wc.status));
		if (wc.wr_id >> 63) {
			open_sends--;
			continue;
		}
		int j = (int)(wc.wr_id >> 32);
		size_t off = ((size_t)j * (DEPTH + 1) + (uint32_t)wc.wr_id) * LEN;
		CHECK(ntohl(wc.imm_data) == got[j]++, "process %d, QP %d: message out of order", me, j);
		expect_fill(b.p + off, LEN, (uint32_t)(partner_process(me, j) * 1000 + partner_qp(j)), "message of another process");
		post_recv(&e[j], &b, off, LEN, wc.wr_id);
		left--;
	}
	barrier(fd); /* all have everything: nobody leaves while another retries */
	for (int j = 0; j < qps; j++)
		end_free(&e[j]);
	ZERO(ibv_destroy_cq(cq));
	buf_free(&b);
	dev_close(&d);
	exit(0);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(argc == 4, "usage: crowd PROCESSES QPS MESSAGES");
	processes = atoi(argv[1]);
	qps = atoi(argv[2]);
	messages = atoi(argv[3]);
	CHECK(processes > 0 && qps > 0 && qps % 2 == 0, "an even number of QPs, please");
	int *fd = calloc((size_t)processes, sizeof(int));
	pid_t *pid = calloc((size_t)processes, sizeof(pid_t));
	struct addr *all = calloc((size_t)(processes * qps), sizeof(*all)), *theirs = calloc((size_t)qps, sizeof(*theirs));

	for (int i = 0; i < processes; i++) {
		int sv[2];
		ZERO(socketpair(AF_UNIX, SOCK_STREAM, 0, sv));
		pid[i] = fork();
		CHECK(pid[i] >= 0, "fork: %s", strerror(errno));
		if (pid[i] == 0) {
			for (int k = 0; k < i; k++)
				close(fd[k]);
			close(sv[0]);
			member(i, sv[1]);
		}
		close(sv[1]);
		fd[i] = sv[0];
	}
	for (int i = 0; i < processes; i++)
		recv_all(fd[i], &all[i * qps], (size_t)qps * sizeof(*all));
	for (int i = 0; i < processes; i++) {
		for (int j = 0; j < qps; j++)
			theirs[j] = all[partner_process(i, j) * qps + partner_qp(j)];
		send_all(fd[i], theirs, (size_t)qps * sizeof(*theirs));
	}
	for (int round = 0; round < (messages ? 2 : 1); round++) { /* connected; all received */
		char ch;
		for (int i = 0; i < processes; i++) {
			struct pollfd p = {.fd = fd[i], .events = POLLIN};
			CHECK(poll(&p, 1, 120000) == 1 && read(fd[i], &ch, 1) == 1, "process %d is gone or stuck", i);
		}
		for (int i = 0; i < processes; i++)
			send_all(fd[i], "g", 1);
	}
	if (!messages) {
		char ch;
		printf("idle\n");
		while (read(0, &ch, 1) > 0)
			;
		for (int i = 0; i < processes; i++)
			close(fd[i]);
	}
	for (int i = 0; i < processes; i++)
		reap(pid[i], "member of the crowd");
	printf("ok %d processes, %d queue pairs, %d messages\n", processes, processes * qps, processes * qps * messages);
	return 0;
}
