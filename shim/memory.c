#include <sys/mman.h>
#include "vrdma.h"
bool memory_retry(void) { return false; }
int memory_madvise(void *a, size_t n, int advice){ return REAL(madvise)(a,n,advice); }
uint32_t memory_prepare(uint64_t start, uint64_t length, struct vrdma_extent *out, uint32_t room)
{
	(void)room;
	if (!length) return 0;
	*out = (struct vrdma_extent){start, length, VRDMA_EXTENT_FOREIGN, 3};
	return 1;
}
