/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel does not say which operations of a ring are in flight. But the array of submission
 * queue entries keeps every entry until its slot is used again, and fdinfo has the number of
 * entries that were ever submitted. As long as that number is below the number of slots, the
 * array is the ring's whole history:
 *
 *   slots   [EPOLL_CTL][EPOLL_CTL][POLL_ADD][ 0 ][ 0 ][ 0 ][ 0 ][ 0 ]
 *                                           ^ SqTail = 3, SqMask = 7
 *
 * The ring is harmless if each entry of the history is an operation without a buffer. A slot of
 * the history that is empty means that the program uses the slots in another order: then another slot
 * was used twice, and the history is not complete.
 *
 * Nobody submits an entry between this look and the end of the replacement: the program's threads
 * are halted, and a ring with a kernel thread that submits (SQPOLL) is not harmless. Nor is a ring
 * with registered buffers, or one whose memory the program provides (NO_MMAP), which cannot be mapped here.
 */
#include "uring.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "maps.h"

#define SQES 0x10000000 /* IORING_OFF_SQES */
#define SLOTS_MAX 32768 /* of the kernel */

/* What struct io_uring_sqe begins with; <linux/io_uring.h> may be older than the kernel. */
struct entry {
	uint8_t opcode, flags;
	uint16_t priority;
	int32_t fd;
	uint64_t off, addr;
	uint32_t len, op_flags;
	uint64_t user_data, rest[3];
};
_Static_assert(sizeof(struct entry) == 64, "struct io_uring_sqe has 64 bytes");

/*
 * Operations that access no memory of the program once they are submitted. Their arguments (a
 * struct timespec, epoll_event or sockaddr) are copied at the submission.
 */
static bool without_buffer(const struct entry *e)
{
	static const struct entry unused;
	if (memcmp(e, &unused, sizeof unused) == 0)
		return false;
	switch (e->opcode) {
	case 0:  /* NOP */
	case 3:  /* FSYNC */
	case 6:  /* POLL_ADD */
	case 7:  /* POLL_REMOVE */
	case 8:  /* SYNC_FILE_RANGE */
	case 11: /* TIMEOUT */
	case 14: /* ASYNC_CANCEL */
	case 15: /* LINK_TIMEOUT */
	case 16: /* CONNECT */
	case 17: /* FALLOCATE */
	case 19: /* CLOSE */
	case 29: /* EPOLL_CTL */
	case 34: /* SHUTDOWN */
	case 45: /* SOCKET */
		return true;
	case 13: /* ACCEPT, unless it returns the peer's address */
		return e->addr == 0;
	}
	return false;
}

/* The number behind a name at the beginning of a line of fdinfo, which is "Name:\t0x7f" or "Name:\t12". */
static bool number(const char *info, const char *name, unsigned long *value)
{
	unsigned long n = 0;
	unsigned base = 10;
	const char *at = strstr(info, name);
	if (!at || at == info || at[-1] != '\n')
		return false;
	at += strlen(name);
	if (*at++ != ':' || *at++ != '\t')
		return false;
	if (at[0] == '0' && at[1] == 'x') {
		base = 16;
		at += 2;
	}
	const char *first = at;
	for (;; at++) {
		unsigned digit = *at >= '0' && *at <= '9' ? (unsigned)(*at - '0') :
				 *at >= 'a' && *at <= 'f' ? (unsigned)(*at - 'a' + 10) : 16;
		if (digit >= base)
			break;
		n = n * base + digit;
	}
	*value = n;
	return at > first;
}

static bool history(int fd, unsigned long submitted, unsigned long slots)
{
	long r = sys(SYS_mmap, NULL, slots * sizeof(struct entry), PROT_READ, MAP_SHARED, fd, SQES);
	if (r < 0 && r > -4096)
		return false;
	const struct entry *entries = (const struct entry *)r;
	bool harmless = true;
	for (unsigned long i = 0; harmless && i < submitted; i++)
		harmless = without_buffer(&entries[i]);
	/* Prepared entries that are not submitted yet fill the slots in order. Before they reach the first ones
	 * again they fill the last one. */
	harmless = harmless && entries[slots - 1].opcode == 0 && entries[slots - 1].user_data == 0;
	sys(SYS_munmap, r, slots * sizeof(struct entry));
	return harmless;
}

bool uring_harmless(int fd)
{
	char path[32], info[2048] = {0};
	unsigned long mask, tail, buffers;
	snprintf(path, sizeof path, "fdinfo/%d", fd);
	int f = maps_file(path);
	if (f < 0)
		return false;
	long n = sys(SYS_read, f, info, sizeof info - 1);
	sys(SYS_close, f);
	if (n <= 0 || !strstr(info, "\nSqThread:\t-1\n") || !number(info, "SqMask", &mask) ||
	    !number(info, "SqTail", &tail) || !number(info, "UserBufs", &buffers))
		return false;
	return buffers == 0 && mask < SLOTS_MAX && tail <= mask && history(fd, tail, mask + 1);
}
