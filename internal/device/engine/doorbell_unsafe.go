package engine

import (
	"sync/atomic"
	"unsafe"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// A page is a doorbell page. All access is atomic, because the client is another process. The
// pointers are valid while the session's arena is mapped, which ends after Detach.
//
// Go's atomics are sequentially consistent, on arm64 too. The client writes bitmap, summary and any in this order, each with a
// release; the loop clears them in the opposite order, so a bit that it misses leaves any set. Before it sleeps the loop stores armed and
// then loads any, and the client stores any and then loads armed: at least one sees the other.
// TestDoorbell of package armcheck checks it.
type page struct {
	armed   *atomic.Uint32
	any     *atomic.Uint32
	cpu     *atomic.Uint32
	summary *[summaryWords]atomic.Uint64
	bitmap  *[protocol.DoorbellBits / 64]atomic.Uint64
}

func newPage(mem []byte) page {
	_ = mem[protocol.DoorbellSize-1]
	return page{
		armed:   (*atomic.Uint32)(unsafe.Pointer(&mem[protocol.DoorbellArmed])),
		any:     (*atomic.Uint32)(unsafe.Pointer(&mem[protocol.DoorbellAny])),
		cpu:     (*atomic.Uint32)(unsafe.Pointer(&mem[protocol.DoorbellCPU])),
		summary: (*[summaryWords]atomic.Uint64)(unsafe.Pointer(&mem[protocol.DoorbellSummary])),
		bitmap:  (*[protocol.DoorbellBits / 64]atomic.Uint64)(unsafe.Pointer(&mem[protocol.DoorbellBitmap])),
	}
}
