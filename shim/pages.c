/* SPDX-License-Identifier: Apache-2.0 */
#include "pages.h"

#include <fcntl.h>
#include <unistd.h>

static int memfd(void)
{
	return atomic_load(&process.memory);
}

bool pages_each(uint64_t offset, uint64_t n, bool (*f)(uint64_t offset, uint64_t n, uint64_t arg),
		uint64_t arg)
{
	uint64_t end = offset + n;
	for (uint64_t at = offset; at < end;) {
		long data = sys(SYS_lseek, memfd(), at, SEEK_DATA);
		if (data < 0 || (uint64_t)data >= end)
			return true;
		long hole = sys(SYS_lseek, memfd(), data, SEEK_HOLE);
		at = hole < 0 || (uint64_t)hole > end ? end : (uint64_t)hole;
		if (!f((uint64_t)data, at - (uint64_t)data, arg + ((uint64_t)data - offset)))
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

void pages_punch(uint64_t start, uint64_t end)
{
	sys(SYS_fallocate, memfd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, end - start);
}
