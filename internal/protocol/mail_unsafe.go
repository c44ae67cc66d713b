package protocol

import (
	"sync/atomic"
	"unsafe"
)

// word is the word at off, which the other side changes at any time. off is a constant, a
// multiple of 4, and the page is aligned.
func (m *Mail) word(off int) *atomic.Uint32 {
	_ = m.mem[off+3]
	return (*atomic.Uint32)(unsafe.Pointer(&m.mem[off]))
}
