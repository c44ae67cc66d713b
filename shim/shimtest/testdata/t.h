/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the shim's test programs. The commands are those of fake_test.go. */
#ifndef T_H
#define T_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEVICE "/dev/infiniband/uverbs0"

#define CHECK(cond)                                                                       \
	do {                                                                              \
		if (!(cond)) {                                                            \
			fprintf(stderr, "%s:%d: %s: errno %d (%s)\n", __FILE__, __LINE__, \
				#cond, errno, strerror(errno));                           \
			_exit(1);                                                         \
		}                                                                         \
	} while (0)

struct header {
	uint32_t command;
	uint16_t in_words, out_words;
};

/* Commands 200 and up exist only in the fake daemon. */
enum {
	CMD_GET_CONTEXT = 0,
	CMD_REG_MR = 9,
	CMD_DEREG_MR = 13,
	CMD_CREATE_COMP_CHANNEL = 17,
	CMD_CREATE_CQ = 18,
	CMD_REQ_NOTIFY_CQ = 23,
	CMD_POST_SEND = 28,
	CMD_ECHO = 200,  /* stores arg + 1 */
	CMD_FAIL = 201,  /* errno arg */
	CMD_SLOW = 202,  /* as ECHO, after 50 ms, or arg ms */
	CMD_EVENT = 203, /* an event on the async file, with element arg */
	CMD_DIE = 204,   /* the daemon ends */
	CMD_PEEK = 205,  /* stores the 8 bytes of registered memory at arg */
	CMD_POKE = 206,  /* writes arg2 into registered memory at arg */
	CMD_BELLS = 207, /* stores how often the doorbell's eventfd was written */
	CMD_SYNCS = 208, /* stores the number of SYNC requests */
	CMD_DATA = 209,  /* stores how many bytes the memfd holds */
	CMD_REFUSE = 210, /* the next REG_MR fails with ENOMEM */
	CMD_ADD = 211,    /* adds arg2; arg is a handle: an odd one has EPERM, an even one is sure */
	CMD_SUM = 212,    /* of all that was added */
};

struct command {
	struct header h;
	uint64_t response;
	uint64_t arg, arg2;
};

static inline int call(int fd, uint32_t number, uint64_t arg, uint64_t arg2, void *response)
{
	struct command c = {{number, sizeof c / 4, 0}, (uintptr_t)response, arg, arg2};
	ssize_t n = write(fd, &c, sizeof c);
	if (n < 0)
		return errno;
	CHECK(n == (ssize_t)sizeof c);
	return 0;
}

static inline uint64_t ask(int fd, uint32_t number, uint64_t arg)
{
	uint64_t v = 0;
	int e = call(fd, number, arg, 0, &v);
	if (e) {
		fprintf(stderr, "command %u: errno %d\n", number, e);
		_exit(1);
	}
	return v;
}

struct extent {
	uint64_t start, length;
	uint32_t kind, prot;
};
enum { HOLE, SHARED, FOREIGN };
struct extents {
	uint32_t handle, lkey, rkey, reserved; /* as in the kernel's answer */
	uint64_t n;
	struct extent e[64];
};

static inline int reg_mr(int fd, const volatile void *start, uint64_t length, struct extents *out)
{
	struct {
		struct header h;
		uint64_t response, start, length, hca_va;
		uint32_t pd, access;
	} c = {{CMD_REG_MR, sizeof c / 4, 0}, (uintptr_t)out, (uintptr_t)start, length,
	       (uintptr_t)start, 1, 1};
	memset(out, 0, sizeof *out);
	ssize_t n = write(fd, &c, sizeof c);
	return n < 0 ? errno : 0;
}

static inline int dereg_mr(int fd, uint32_t handle)
{
	struct {
		struct header h;
		uint32_t handle;
	} c = {{CMD_DEREG_MR, sizeof c / 4, 0}, handle};
	return write(fd, &c, sizeof c) < 0 ? errno : 0;
}

/* Registers and insists on one extent of this kind. Returns the handle. */
static inline uint32_t reg_as(int fd, const volatile void *start, uint64_t length, uint32_t kind)
{
	struct extents x;
	int e = reg_mr(fd, start, length, &x);
	if (e || x.n != 1 || x.e[0].kind != kind || x.e[0].start != (uintptr_t)start ||
	    x.e[0].length != length) {
		fprintf(stderr, "register %p+%#lx: errno %d, %lu extents, want one of kind %u\n",
			(const void *)start, (unsigned long)length, e, (unsigned long)x.n, kind);
		for (uint64_t i = 0; i < x.n && i < 64; i++)
			fprintf(stderr, "  %#lx+%#lx kind %u prot %u\n", (unsigned long)x.e[i].start,
				(unsigned long)x.e[i].length, x.e[i].kind, x.e[i].prot);
		_exit(1);
	}
	return x.handle;
}

static inline int open_device(void)
{
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

static inline double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void wait_ok(pid_t pid)
{
	int status = 0;
	CHECK(waitpid(pid, &status, 0) == pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		fprintf(stderr, "child ended with status %#x\n", status);
		_exit(1);
	}
}

#endif
