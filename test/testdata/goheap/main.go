// Goheap registers memory of Go's own heap, which the runtime gives back to the kernel and
// takes again with system calls that no library sees, and insists that fresh memory is zero.
package main

/*
#cgo LDFLAGS: -libverbs
#include <infiniband/verbs.h>

static struct ibv_context *open_first(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *context = list && n ? ibv_open_device(list[0]) : NULL;
	if (list)
		ibv_free_device_list(list);
	return context;
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"
)

const (
	workers = 8
	rounds  = 50
)

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}

// work registers, overwrites and drops buffers, and checks new ones in between.
func work(pd *C.struct_ibv_pd, seed int) {
	for round := range rounds {
		b := make([]byte, 100_000+seed)
		for i := range b {
			b[i] = byte(i + seed)
		}
		var pin runtime.Pinner
		pin.Pin(&b[0])
		mr := C.ibv_reg_mr(pd, unsafe.Pointer(&b[0]), C.size_t(len(b)), C.IBV_ACCESS_LOCAL_WRITE|C.IBV_ACCESS_REMOTE_WRITE)
		if mr == nil {
			fail("ibv_reg_mr failed")
		}
		fresh := make([][]byte, 100)
		for n := range fresh {
			fresh[n] = make([]byte, 10_000)
			for i, x := range fresh[n] {
				if x != 0 {
					fail("worker %d, round %d: byte %d of fresh memory is %#x", seed, round, i, x)
				}
			}
		}
		for i := range b {
			if b[i] != byte(i+seed) {
				fail("worker %d, round %d: byte %d of the registered buffer changed", seed, round, i)
			}
		}
		if C.ibv_dereg_mr(mr) != 0 {
			fail("ibv_dereg_mr failed")
		}
		pin.Unpin()
		if round%10 == 0 {
			runtime.GC()
		}
	}
}

func main() {
	context := C.open_first()
	if context == nil {
		fail("no device")
	}
	pd := C.ibv_alloc_pd(context)
	var all sync.WaitGroup
	for seed := range workers {
		all.Go(func() { work(pd, seed) })
	}
	all.Wait()
	if C.ibv_dealloc_pd(pd) != 0 || C.ibv_close_device(context) != 0 {
		fail("cleaning up failed")
	}
	fmt.Println("ok")
}
