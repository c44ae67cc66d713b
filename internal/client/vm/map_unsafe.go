package vm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapAgain maps the pages of from, which are a shared mapping, at to as well: mremap with an old
// size of 0 leaves the old mapping as it is. to is a mapping of ours that nobody uses yet, both are
// page-aligned, and as long as each other.
func mapAgain(to, from []byte) error {
	_, err := unix.MremapPtr(unsafe.Pointer(unsafe.SliceData(from)), 0, unsafe.Pointer(unsafe.SliceData(to)), uintptr(len(to)), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
	return err
}

// mapNothing takes pages away that mapAgain mapped at to, and leaves room.
func mapNothing(to []byte) error {
	if len(to) == 0 {
		return nil
	}
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(to)), uintptr(len(to)), unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return err
}
