/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes use librpma, the library for remote persistent memory: the client writes, flushes, writes atomically, reads everything back and
 * compares; the server compares what it has, and both exchange messages with immediate data.
 *
 *	rpma listen|connect ADDRESS PORT
 */
#include <arpa/inet.h>
#include <librpma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 1 << 20, PIECE = 48 << 10, MESSAGE = 64, ROUNDS = 20 };

static void check(int failed, const char *what)
{
	if (failed) {
		fprintf(stderr, "%s: %s\n", what, failed < 0 ? rpma_err_2str(failed) : "wrong");
		exit(1);
	}
}
#define CHECK(call) check(call, #call)

static unsigned char byte_of(size_t i, int round) { return (unsigned char)(i * 13 + i / 251 + (size_t)round * 31); }

/* The next completion of a connection, which must be good. */
static struct ibv_wc completed(struct rpma_conn *conn)
{
	struct rpma_cq *cq;
	struct ibv_wc wc;
	CHECK(rpma_conn_get_cq(conn, &cq));
	for (int r; (r = rpma_cq_get_wc(cq, 1, &wc, NULL)) != 0;) {
		check(r != RPMA_E_NO_COMPLETION ? r : 0, "rpma_cq_get_wc");
		r = rpma_cq_wait(cq);
		check(r != RPMA_E_NO_COMPLETION ? r : 0, "rpma_cq_wait");
	}
	check(wc.status != IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
	return wc;
}

static void expect(struct rpma_conn *conn, enum rpma_conn_event want)
{
	enum rpma_conn_event got;
	CHECK(rpma_conn_next_event(conn, &got));
	check(got != want, rpma_utils_conn_event_2str(got));
}

static void serve(struct rpma_peer *peer, const char *address, const char *port, unsigned char *memory)
{
	struct rpma_ep *ep;
	struct rpma_mr_local *mr;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	char description[64];
	size_t length;

	CHECK(rpma_ep_listen(peer, address, port, &ep));
	printf("listening\n");
	fflush(stdout);
	CHECK(rpma_mr_reg(peer, memory, SIZE, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &mr));
	CHECK(rpma_mr_get_descriptor_size(mr, &length));
	check(length > sizeof description, "rpma_mr_get_descriptor_size");
	CHECK(rpma_mr_get_descriptor(mr, description));
	struct rpma_conn_private_data data = {.ptr = description, .len = (uint8_t)length};
	CHECK(rpma_ep_next_conn_req(ep, NULL, &req));
	CHECK(rpma_conn_req_recv(req, mr, SIZE - MESSAGE, MESSAGE, NULL));
	CHECK(rpma_conn_req_connect(&req, &data, &conn));
	expect(conn, RPMA_CONN_ESTABLISHED);

	struct ibv_wc wc = completed(conn);
	check(wc.opcode != IBV_WC_RECV || wc.imm_data != htonl(ROUNDS) || strcmp((char *)memory + SIZE - MESSAGE, "written"), "the message");
	for (size_t i = 0; i < PIECE; i++)
		check(memory[i] != byte_of(i, ROUNDS - 1), "the memory");
	check(memcmp(memory + PIECE, "atomic!", 8) != 0, "the atomic write");
	strcpy((char *)memory + SIZE - MESSAGE, "compared");
	CHECK(rpma_send_with_imm(conn, mr, SIZE - MESSAGE, MESSAGE, RPMA_F_COMPLETION_ALWAYS, ROUNDS, NULL));
	completed(conn);
	expect(conn, RPMA_CONN_CLOSED);
	CHECK(rpma_conn_disconnect(conn));
	CHECK(rpma_conn_delete(&conn));
	CHECK(rpma_mr_dereg(&mr));
	CHECK(rpma_ep_shutdown(&ep));
}

static void ask(struct rpma_peer *peer, const char *address, const char *port, unsigned char *memory)
{
	struct rpma_mr_local *mr;
	struct rpma_mr_remote *remote;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	struct rpma_conn_private_data data;
	size_t size;

	CHECK(rpma_mr_reg(peer, memory, SIZE, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &mr));
	CHECK(rpma_conn_req_new(peer, address, port, NULL, &req));
	CHECK(rpma_conn_req_recv(req, mr, SIZE - MESSAGE, MESSAGE, NULL));
	CHECK(rpma_conn_req_connect(&req, NULL, &conn));
	expect(conn, RPMA_CONN_ESTABLISHED);
	CHECK(rpma_conn_get_private_data(conn, &data));
	CHECK(rpma_mr_remote_from_descriptor(data.ptr, data.len, &remote));
	CHECK(rpma_mr_remote_get_size(remote, &size));
	check(size != SIZE, "rpma_mr_remote_get_size");

	unsigned char *back = memory + SIZE / 2;
	for (int round = 0; round < ROUNDS; round++) {
		for (size_t i = 0; i < PIECE; i++)
			memory[i] = byte_of(i, round);
		CHECK(rpma_write(conn, remote, 0, mr, 0, PIECE, RPMA_F_COMPLETION_ON_ERROR, NULL));
		CHECK(rpma_flush(conn, remote, 0, PIECE, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, NULL));
		completed(conn);
		CHECK(rpma_atomic_write(conn, remote, PIECE, "atomic!", RPMA_F_COMPLETION_ALWAYS, NULL));
		completed(conn);
		CHECK(rpma_read(conn, mr, SIZE / 2, remote, 0, PIECE + 8, RPMA_F_COMPLETION_ALWAYS, NULL));
		completed(conn);
		check(memcmp(back, memory, PIECE) != 0 || memcmp(back + PIECE, "atomic!", 8) != 0, "what is read back");
		memset(back, 0, PIECE + 8);
	}
	strcpy((char *)memory, "written");
	CHECK(rpma_send_with_imm(conn, mr, 0, MESSAGE, RPMA_F_COMPLETION_ON_ERROR, ROUNDS, NULL));
	struct ibv_wc wc = completed(conn);
	check(wc.opcode != IBV_WC_RECV || wc.imm_data != htonl(ROUNDS) || strcmp((char *)memory + SIZE - MESSAGE, "compared"), "the answer");
	CHECK(rpma_conn_disconnect(conn));
	expect(conn, RPMA_CONN_CLOSED);
	CHECK(rpma_conn_delete(&conn));
	CHECK(rpma_mr_remote_delete(&remote));
	CHECK(rpma_mr_dereg(&mr));
}

int main(int argc, char **argv)
{
	struct ibv_context *context;
	struct rpma_peer *peer;
	void *memory = NULL;

	if (argc != 4)
		return 2;
	int listens = !strcmp(argv[1], "listen");
	CHECK(rpma_utils_get_ibv_context(argv[2], listens ? RPMA_UTIL_IBV_CONTEXT_LOCAL : RPMA_UTIL_IBV_CONTEXT_REMOTE, &context));
	CHECK(rpma_peer_new(context, &peer));
	check(posix_memalign(&memory, 4096, SIZE), "posix_memalign");
	memset(memory, 0, SIZE);
	(listens ? serve : ask)(peer, argv[2], argv[3], memory);
	CHECK(rpma_peer_delete(&peer));
	printf("ok\n");
	return 0;
}
