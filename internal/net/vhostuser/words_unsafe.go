package vhostuser

import (
	"sync/atomic"
	"unsafe"
)

// Words that the guest may change concurrently are read and written atomically. Go has atomic operations of at least 32 bits, and ring
// words have 16, so a word is accessed as part of an aligned pair. setRing has checked that the parts of a ring are aligned and contain
// every pair.

// pair returns the aligned 32 bits at b, which has at least four bytes.
func pair(b []byte) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer((*[4]byte)(b)))
}

// aligned reports whether b begins at a multiple of 4.
func aligned(b []byte) bool { return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%4 == 0 }

// address returns the address of b.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// load16 reads the word at b[at:], which is the first of its pair or the second.
func load16(b []byte, at int) uint16 {
	return uint16(pair(b[at&^3:]).Load() >> (at & 2 * 8))
}

// store16 writes the first word of a pair and keeps the second, which the driver may own. No load16 behind it is
// made before it, on arm64 too: the exchange is a release, a Load an acquire, and these keep their order.
func store16(b []byte, at int, v uint16) {
	p := pair(b[at:])
	for {
		old := p.Load()
		if p.CompareAndSwap(old, old&^0xffff|uint32(v)) {
			return
		}
	}
}
