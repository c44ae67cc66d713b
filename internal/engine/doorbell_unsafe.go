package engine

import (
	"sync/atomic"
	"unsafe"

	"vrdma/internal/channel"
)

// A page is a doorbell page through atomic words only: the client is another
// process. The pointers stay valid while the session's arena is mapped, which ends
// after Detach.
type page struct {
	armed   *atomic.Uint32
	any     *atomic.Uint32
	summary *[summaryWords]atomic.Uint64
	bitmap  *[channel.DoorbellBits / 64]atomic.Uint64
}

func newPage(mem []byte) page {
	_ = mem[channel.DoorbellSize-1]
	return page{
		armed:   (*atomic.Uint32)(unsafe.Pointer(&mem[channel.DoorbellArmed])),
		any:     (*atomic.Uint32)(unsafe.Pointer(&mem[channel.DoorbellAny])),
		summary: (*[summaryWords]atomic.Uint64)(unsafe.Pointer(&mem[channel.DoorbellSummary])),
		bitmap:  (*[channel.DoorbellBits / 64]atomic.Uint64)(unsafe.Pointer(&mem[channel.DoorbellBitmap])),
	}
}
