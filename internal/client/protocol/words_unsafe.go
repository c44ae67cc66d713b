package protocol

import (
	"sync/atomic"
	"unsafe"
)

// Shared32 returns the 32-bit word at off of memory that is shared with another process. The other side can change it at any
// time, so it is accessed only atomically. Go's atomics are sequentially consistent on every architecture: on arm64 a Store is a
// STLR and a Load is a LDAR, which keep their order, and plain accesses stay before a Store and behind a Load. off is a constant of a layout and a multiple of 4, and mem starts on a page.
func Shared32(mem []byte, off int) *atomic.Uint32 {
	_ = mem[off+3]
	return (*atomic.Uint32)(unsafe.Pointer(&mem[off]))
}

// Shared64 is Shared32 for 64 bits.
func Shared64(mem []byte, off int) *atomic.Uint64 {
	_ = mem[off+7]
	return (*atomic.Uint64)(unsafe.Pointer(&mem[off]))
}
