package memory

import (
	"sync/atomic"
	"unsafe"
)

// pageSpan widens mem to whole pages. mem begins base bytes into a page of a
// window, and windows begin and end on page borders, so the pages around mem belong
// to the same mapping.
func pageSpan(mem []byte, base int) []byte {
	n := (base + len(mem) + pageSize - 1) &^ (pageSize - 1)
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(mem)), -base)), n)
}

// pagesOf widens mem to whole pages: what is mapped is mapped in pages.
func pagesOf(mem []byte) []byte {
	return pageSpan(mem, int(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))%pageSize))
}

// word is the 8-byte word that b holds, if b is 8 aligned bytes. Other processes
// change it at any time; it is only reached atomically.
func word(b []byte) *atomic.Uint64 {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) != 8 || uintptr(p)&7 != 0 {
		return nil
	}
	return (*atomic.Uint64)(p)
}

// addressOfWord is the address of a word of mapped memory.
func addressOfWord(w *atomic.Uint64) uint64 { return uint64(uintptr(unsafe.Pointer(w))) }

// Within reports whether addr is an address of mem.
func Within(addr uintptr, mem []byte) bool {
	base := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	return addr >= base && addr-base < uintptr(len(mem))
}
