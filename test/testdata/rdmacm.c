/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks librdmacm everything that has an answer, and prints the answers: errnos, events
 * with their status, sizes, order. Nothing is judged here. The same program runs on
 * Linux's rdma_cm with rxe and on vrdma, and both have to print rdmacm.txt.
 *
 *   rdmacm LOCAL ABSENT FOREIGN [CASE]
 *
 * LOCAL is an address of the device, ABSENT one in its network that nobody has, FOREIGN
 * one to which there is no route.
 */
#include "rdmacm/ids.h"
#include "rdmacm/connections.h"
#include "rdmacm/datagrams.h"

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{"spaces", spaces}, {"binding", binding}, {"loopback", loopback}, {"wildcards", wildcards}, {"reuse", reuse}, {"options", options},
	{"disorder", disorder}, {"resolution", resolution}, {"twice", twice}, {"life", life}, {"accepted_twice", accepted_twice}, {"sizes", sizes}, {"refusals", refusals},
	{"refused_reply", refused_reply}, {"backlog", backlog}, {"attributes", attributes}, {"ack_timeout", ack_timeout},
	{"datagrams", datagrams}, {"groups", groups}, {"channels", channels}, {"synchronous", synchronous}, {"several", several},
};

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: %s LOCAL ABSENT FOREIGN [CASE]\n", argv[0]);
		return 2;
	}
	local = argv[1], absent = argv[2], foreign = argv[3];
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (argc > 4 && strcmp(argv[4], cases[i].name))
			continue;
		alarm(300);
		qpn = (uint32_t)(i + 1) << 8;
		printf("%s\n", cases[i].name);
		if (!(ch = rdma_create_event_channel())) {
			perror("rdma_create_event_channel");
			return 1;
		}
		cases[i].run();
		rdma_destroy_event_channel(ch);
	}
	return 0;
}
