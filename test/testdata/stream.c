/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream server PORT | stream client PORT MESSAGES: a pair of processes that the
 * test can kill and stop. The client sends numbered messages, the server checks
 * each byte and answers every 64th. MESSAGES 0: until killed. With "careful"
 * at the end nobody has to send anything again, however slow the other is: there is a
 * receive for every message, and the time-out is four seconds. The client prints
 * "running" when data flows, and how it ended:
 *
 *   done N                  all N messages arrived
 *   failed STATUS N         a work request ended with ibv_wc_status STATUS
 */
#include "vt.h"

enum { LEN = 4096, DEPTH = 64 };

static int tcp(bool server, int port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int s = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	if (!server) {
		CHECK(connect(s, (struct sockaddr *)&a, sizeof(a)) == 0, "connect to port %d: %s", port, strerror(errno));
		return s;
	}
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	CHECK(bind(s, (struct sockaddr *)&a, sizeof(a)) == 0, "bind to port %d: %s", port, strerror(errno));
	CHECK(listen(s, 1) == 0, "listen: %s", strerror(errno));
	int c = accept(s, NULL, NULL);
	CHECK(c >= 0, "accept: %s", strerror(errno));
	close(s);
	return c;
}

static void ended(struct ibv_wc *wc, unsigned long n)
{
	printf("failed %d %lu\n", wc->status, n);
	exit(0);
}

static void serve(int fd, bool careful)
{
	struct dev d = dev_open();
	struct buf b = buf_new(&d, (DEPTH + 1) * LEN, ALL_ACCESS);
	struct end e = end_new(&d, (struct opt){.depth = 2 * DEPTH, .timeout = careful ? 20 : 12, .retry = 3});

	for (size_t i = 0; i < DEPTH; i++)
		post_recv(&e, &b, i * LEN, LEN, i);
	end_connect(&e, swap_addr(fd, end_addr(&e, &b)));
	barrier(fd);
	for (uint32_t n = 0;;) {
		struct ibv_wc wc;
		if (!poll_wc(e.cq, &wc, 500)) {
			char c; /* the client says goodbye on the socket */
			ssize_t r = recv(fd, &c, 1, MSG_DONTWAIT);
			if (r == 1 || r == 0)
				break;
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS)
			ended(&wc, n);
		if (wc.opcode != IBV_WC_RECV)
			continue;
		CHECK(ntohl(wc.imm_data) == n, "message %u came, want %u", ntohl(wc.imm_data), n);
		expect_fill(b.p + wc.wr_id * LEN, LEN, n % 251, "message");
		post_recv(&e, &b, wc.wr_id * LEN, LEN, wc.wr_id);
		if (++n % 64 == 0)
			post_send(&e, &b, DEPTH * LEN, 8, 1000);
	}
	end_free(&e);
	buf_free(&b);
	dev_close(&d);
}

static void send_stream(int fd, unsigned long messages, bool careful)
{
	struct dev d = dev_open();
	struct buf b = buf_new(&d, (DEPTH + 1) * LEN, ALL_ACCESS);
	struct end e = end_new(&d, (struct opt){.depth = 2 * DEPTH, .timeout = careful ? 20 : 12, .retry = 3});
	unsigned long acked = 0, n = 0, sent = 0;

	for (uint64_t i = 0; i < 16; i++)
		post_recv(&e, &b, DEPTH * LEN, 64, 1000);
	end_connect(&e, swap_addr(fd, end_addr(&e, &b)));
	barrier(fd);
	while (!messages || acked < messages) {
		while (n - sent < 32 && n - acked < (careful ? DEPTH : 512) && (!messages || n < messages)) {
			struct work w = work_new(IBV_WR_SEND_WITH_IMM, &b, (n % DEPTH) * LEN, LEN, n);
			fill(b.p + (n % DEPTH) * LEN, LEN, (uint32_t)(n % 251));
			w.wr.imm_data = htonl((uint32_t)n);
			post_work(&e, w);
			n++;
		}
		struct ibv_wc wc = wait_wc(e.cq, "stream");
		if (wc.status != IBV_WC_SUCCESS)
			ended(&wc, sent);
		if (wc.opcode == IBV_WC_RECV) {
			post_recv(&e, &b, DEPTH * LEN, 64, 1000);
			acked += 64;
			if (acked == 64)
				printf("running\n");
		} else {
			sent++;
		}
	}
	printf("done %lu\n", acked);
	send_all(fd, "x", 1);
	end_free(&e);
	buf_free(&b);
	dev_close(&d);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(argc >= 3, "usage: stream server PORT | stream client PORT MESSAGES");
	bool server = !strcmp(argv[1], "server");
	int fd = tcp(server, atoi(argv[2]));
	bool careful = !strcmp(argv[argc - 1], "careful");
	if (server)
		serve(fd, careful);
	else
		send_stream(fd, argc > 3 ? strtoul(argv[3], NULL, 10) / 64 * 64 : 0, careful);
	return 0;
}
