package nic

import (
	"sync/atomic"
	"unsafe"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// shared32 and shared64 are words of memory that is shared with a client.
func shared32(mem []byte, off int) *atomic.Uint32 { return protocol.Shared32(mem, off) }
func shared64(mem []byte, off int) *atomic.Uint64 { return protocol.Shared64(mem, off) }

// words reads a work request's fixed part out of shared memory. Plain loads: the
// client may tear them, which harms only the client, since every word is loaded
// once and checked afterwards. The caller has cut b to at least 8*len(dst) bytes;
// ring elements are 8-aligned.
func words(dst []uint64, b []byte) {
	src := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
	copy(dst, src[:len(dst)])
}

// putWords writes a completion's words to shared memory.
func putWords(b []byte, src []uint64) {
	dst := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
	copy(dst[:len(src)], src)
}
