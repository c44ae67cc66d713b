package engine

import (
	"sync/atomic"
	"unsafe"
)

func shared(mem []byte, off int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&mem[off])) }
