package vm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapAgain maps the pages of from, a shared mapping, also at to: mremap with an old size of 0 keeps the old mapping. to is an
// unused mapping of this process. Both are page-aligned and equally long.
func mapAgain(to, from []byte) error {
	_, err := unix.MremapPtr(unsafe.Pointer(unsafe.SliceData(from)), 0, unsafe.Pointer(unsafe.SliceData(to)), uintptr(len(to)), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
	return err
}

// mapNothing removes pages that mapAgain mapped at to, and keeps the address range reserved.
func mapNothing(to []byte) error {
	if len(to) == 0 {
		return nil
	}
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(to)), uintptr(len(to)), unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return err
}
