package memory

import "unsafe"

// addressOf is where mem begins.
func addressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }
