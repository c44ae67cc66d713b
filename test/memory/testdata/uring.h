/* SPDX-License-Identifier: Apache-2.0 */
/* As much of io_uring and of Linux AIO as the programs need, by system calls. */
#ifndef URING_H
#define URING_H

#include "mem.h"

#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/uio.h>

struct ring {
	int fd;
	unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
};

VT struct ring ring_open(void)
{
	struct io_uring_params p = {.flags = 0};
	struct ring r = {.fd = (int)syscall(SYS_io_uring_setup, 64, &p)};
	char *q;

	CHECK(r.fd >= 0, "io_uring_setup: %s", strerror(errno));
	CHECK(p.features & IORING_FEAT_SINGLE_MMAP, "io_uring of an old kernel");
	q = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, IORING_OFF_SQ_RING);
	r.sqes = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, IORING_OFF_SQES);
	CHECK(q != MAP_FAILED && r.sqes != MAP_FAILED, "mmap of an io_uring: %s", strerror(errno));
	r.sq_tail = (unsigned *)(q + p.sq_off.tail);
	r.sq_mask = (unsigned *)(q + p.sq_off.ring_mask);
	r.sq_array = (unsigned *)(q + p.sq_off.array);
	r.cq_head = (unsigned *)(q + p.cq_off.head);
	r.cq_tail = (unsigned *)(q + p.cq_off.tail);
	r.cq_mask = (unsigned *)(q + p.cq_off.ring_mask);
	r.cqes = (struct io_uring_cqe *)(q + p.cq_off.cqes);
	return r;
}

/* Submits one operation on a file. */
VT void ring_submit(struct ring *r, int op, int flags, int fd, void *p, size_t len, uint64_t offset)
{
	unsigned tail = *r->sq_tail, i = tail & *r->sq_mask;

	r->sqes[i] = (struct io_uring_sqe){.opcode = (uint8_t)op, .flags = (uint8_t)flags, .fd = fd, .addr = (uintptr_t)p, .len = (uint32_t)len, .off = offset};
	r->sq_array[i] = i;
	__atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
	CHECK(syscall(SYS_io_uring_enter, r->fd, 1, 0, 0, NULL, 0) == 1, "io_uring_enter: %s", strerror(errno));
}

/* The result of the next operation that ends. */
VT int ring_wait(struct ring *r)
{
	double until = vt_now() + PATIENCE / 1e3;

	while (*r->cq_head == __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE)) {
		CHECK(vt_now() < until, "an operation of io_uring does not end");
		/* Looks at the ring; the kernel may finish work in our context here. */
		syscall(SYS_io_uring_enter, r->fd, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0);
		usleep(50);
	}
	int result = r->cqes[*r->cq_head & *r->cq_mask].res;
	__atomic_store_n(r->cq_head, *r->cq_head + 1, __ATOMIC_RELEASE);
	return result;
}

VT void ring_pin(struct ring *r, void *p, size_t len)
{
	struct iovec v = {p, len};
	long e;

	/* The kernel frees the pages of a closed ring a little later, so the limit may still be reached. */
	for (int i = 0; i < 2000; i++) {
		e = syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_BUFFERS, &v, 1);
		if (!e || errno != ENOMEM)
			break;
		usleep(5000);
	}
	CHECK(!e, "IORING_REGISTER_BUFFERS of %zu bytes: %s", len, strerror(errno));
}

VT void ring_unpin(struct ring *r)
{
	ZERO((int)syscall(SYS_io_uring_register, r->fd, IORING_UNREGISTER_BUFFERS, NULL, 0));
}

VT void ring_close(struct ring *r)
{
	close(r->fd);
}

VT aio_context_t aio_open(void)
{
	aio_context_t c = 0;

	ZERO((int)syscall(SYS_io_setup, 16, &c));
	return c;
}

VT void aio_read(aio_context_t c, struct iocb *cb, int fd, void *p, size_t len, uint64_t offset)
{
	*cb = (struct iocb){.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (uint32_t)fd, .aio_buf = (uintptr_t)p, .aio_nbytes = len, .aio_offset = (int64_t)offset};
	CHECK(syscall(SYS_io_submit, c, 1, &cb) == 1, "io_submit: %s", strerror(errno));
}

VT long aio_wait(aio_context_t c)
{
	struct timespec limit = {.tv_sec = PATIENCE / 1000};
	struct io_event e;

	CHECK(syscall(SYS_io_getevents, c, 1, 1, &e, &limit) == 1, "io_getevents: no event");
	return (long)e.res;
}

#endif
