package engine

import (
	"sync/atomic"
	"unsafe"
)

// Offsets of the doorbell page, VRDMA_DB_* of shim/protocol.h.
const (
	pageArmed   = 0
	pageAny     = 64
	pageSummary = 128
	pageBitmap  = 4096
	pageSize    = 20480
)

// A page is a doorbell page through atomic words only: the client is another
// process. The pointers stay valid while the session's arena is mapped, which ends
// after Detach.
type page struct {
	armed   *atomic.Uint32
	any     *atomic.Uint32
	summary *[16]atomic.Uint64
	bitmap  *[1024]atomic.Uint64
}

func newPage(mem []byte) page {
	_ = mem[pageSize-1]
	return page{
		armed:   (*atomic.Uint32)(unsafe.Pointer(&mem[pageArmed])),
		any:     (*atomic.Uint32)(unsafe.Pointer(&mem[pageAny])),
		summary: (*[16]atomic.Uint64)(unsafe.Pointer(&mem[pageSummary])),
		bitmap:  (*[1024]atomic.Uint64)(unsafe.Pointer(&mem[pageBitmap])),
	}
}
