package uverbs_test

import (
	"sync/atomic"
	"unsafe"
)

// shared32 and shared64 are words that the loop uses at the same time.
func shared32(mem []byte, off uint64) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&mem[off]))
}

func shared64(mem []byte, off uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[off]))
}
