package engine

import (
	"sync/atomic"
	"unsafe"
)

func shared(mem []byte, off int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&mem[off])) }

// addressOf is where b lies.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
