/* SPDX-License-Identifier: Apache-2.0 */
#include "pages.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static int memfd(void)
{
	return atomic_load(&process.memory);
}

/*
 * The last run that was found, as far as it was not punched: the kernel looks at every page to
 * find its end, which must not happen for every chunk of it. Under memory_lock.
 */
static struct {
	uint64_t start, end;
} run;

/* Finds the first run of pages in [at, end). What lies behind, of another buffer, is left alone. */
static bool find_run(uint64_t at, uint64_t end)
{
	if (at >= run.start && at < run.end)
		return true;
	long data = sys(SYS_lseek, memfd(), at, SEEK_DATA);
	if (data < 0 || (uint64_t)data >= end)
		return false;
	long hole = sys(SYS_lseek, memfd(), data, SEEK_HOLE);
	run.start = (uint64_t)data;
	run.end = hole < 0 ? ~0ull : (uint64_t)hole;
	return true;
}

bool pages_each(uint64_t offset, uint64_t n, bool (*f)(uint64_t offset, uint64_t n, uint64_t arg),
		uint64_t arg)
{
	uint64_t end = offset + n, to;
	if (n == PAGE) /* to ask costs more than to read zeros */
		return f(offset, n, arg);
	for (uint64_t at = offset; at < end; at = to) {
		if (!find_run(at, end))
			return true;
		if (run.start > at)
			at = run.start;
		to = run.end < end ? run.end : end;
		if (!f(at, to - at, arg + (at - offset)))
			return false;
	}
	return true;
}

bool pages_read(uint64_t offset, uint64_t n, uint64_t to)
{
	while (n) {
		long got = sys(SYS_pread64, memfd(), to, n, offset);
		if (got <= 0)
			return false;
		offset += (uint64_t)got;
		to += (uint64_t)got;
		n -= (uint64_t)got;
	}
	return true;
}

/* Copies through a mapping, if RLIMIT_FSIZE does not allow a write. */
static bool copy_mapped(uint64_t from, uint64_t n, uint64_t offset)
{
	uint64_t skip = offset % PAGE, size = (skip + n + PAGE - 1) & ~(PAGE - 1);
	long r = sys(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memfd(), offset - skip);
	if (r < 0 && r > -4096)
		return false;
	/* A fault of this thread where there is no memory would end it. */
	long e = sys(SYS_madvise, r, size, MADV_POPULATE_WRITE);
	bool ok = e == 0 || e == -EINVAL;
	if (ok)
		memcpy((void *)(r + (long)skip), (const void *)(uintptr_t)from, n);
	sys(SYS_munmap, r, size);
	return ok;
}

/* Consumes the SIGXFSZ that came with EFBIG. All signals are blocked, so no handler has seen it. */
static void swallow(void)
{
	uint64_t set = 1ull << (SIGXFSZ - 1);
	const struct timespec none = {0};
	sys(SYS_rt_sigtimedwait, &set, NULL, &none, sizeof set);
}

bool pages_write(uint64_t from, uint64_t n, uint64_t offset)
{
	while (n) {
		long got = sys(SYS_pwrite64, memfd(), from, n, offset);
		if (got == -EFBIG) {
			swallow();
			return copy_mapped(from, n, offset);
		}
		if (got <= 0)
			return false;
		from += (uint64_t)got;
		offset += (uint64_t)got;
		n -= (uint64_t)got;
	}
	return true;
}

void pages_forget(void)
{
	run.start = run.end = 0;
}

void pages_punch(uint64_t start, uint64_t end)
{
	if (start < run.end && end > run.start) {
		if (start > run.start)
			run.end = start;
		else
			run.start = end < run.end ? end : run.end;
	}
	sys(SYS_fallocate, memfd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, end - start);
}
