package ipc

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory that is shared with the device lies outside of Go's heap. It is mapped, so the collector neither
// moves nor frees it, and access after unmapping is a fault.

// Mapped is a memory mapping.
type Mapped struct {
	Mem []byte
	At  uintptr
}

// mapFile maps n bytes of a file.
func mapFile(fd int, offset int64, n uintptr) (Mapped, error) {
	return newMapping(fd, offset, nil, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
}

// MapAnonymous maps n bytes of anonymous memory.
func MapAnonymous(n uintptr) (Mapped, error) {
	return newMapping(-1, 0, nil, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
}

// mapAtOwnAddress maps n bytes of a file in which the offset equals the address.
func mapAtOwnAddress(fd int, n uintptr) (Mapped, error) {
	// An inaccessible mapping reserves a free address range first.
	m, err := newMapping(-1, 0, nil, n, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return Mapped{}, err
	}
	r, err := newMapping(fd, int64(m.At), unsafe.Pointer(unsafe.SliceData(m.Mem)), n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		m.Unmap()
	}
	return r, err
}

func newMapping(fd int, offset int64, at unsafe.Pointer, n uintptr, prot, flags int) (Mapped, error) {
	p, err := unix.MmapPtr(fd, offset, at, n, prot, flags)
	if err != nil {
		return Mapped{}, err
	}
	return Mapped{Mem: unsafe.Slice((*byte)(p), n), At: uintptr(p)}, nil
}

// Unmap unmaps the memory. The caller guarantees that nothing uses it.
func (m *Mapped) Unmap() {
	if m.Mem != nil {
		_ = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(m.Mem)), uintptr(len(m.Mem)))
		*m = Mapped{}
	}
}

// AddressOf returns the address of a slice.
func AddressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
