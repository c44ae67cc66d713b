package protocol

import (
	"sync/atomic"
	"unsafe"
)

// word is the word at off, which the other side changes at any time. off is a
// multiple of 4, and the page is aligned.
func (m *Mail) word(off int) *atomic.Uint32 {
	_ = m.mem[off+3]
	return (*atomic.Uint32)(unsafe.Pointer(&m.mem[off]))
}

// long is word for 8 bytes; off is a multiple of 8.
func (m *Mail) long(off int) *atomic.Uint64 {
	_ = m.mem[off+7]
	return (*atomic.Uint64)(unsafe.Pointer(&m.mem[off]))
}
