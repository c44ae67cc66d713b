package nic

import (
	"sync/atomic"
	"unsafe"
)

// shared32 is the 32-bit word at off of shared memory. The other side changes it at
// any time, so it is only reached atomically. off is a constant of the ring layout,
// a multiple of 4, and mem starts on a page.
func shared32(mem []byte, off int) *atomic.Uint32 {
	_ = mem[off+3]
	return (*atomic.Uint32)(unsafe.Pointer(&mem[off]))
}

// shared64 is the same for 64 bits.
func shared64(mem []byte, off int) *atomic.Uint64 {
	_ = mem[off+7]
	return (*atomic.Uint64)(unsafe.Pointer(&mem[off]))
}

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
