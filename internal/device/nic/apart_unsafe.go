package nic

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Apart makes the daemon's writes to the arena private, from now on: the client and another daemon do not see them. The arena is that
// of a client whose next daemon may have it already, with the same memory. Otherwise both daemons would take doorbells. It runs on the
// loop. An arena of a virtual machine stays as it is.
func (a *Arena) Apart() error {
	f, ok := a.pages.(*ringFile)
	if !ok || a.mem == nil {
		return nil
	}
	// The new mapping takes the place of the old one, of the same size, so slices of it stay valid. The kernel replaces it in one step:
	// other loops that look at a doorbell page meanwhile see one or the other, with the same contents.
	_, err := unix.MmapPtr(int(f.file.Fd()), 0, unsafe.Pointer(&f.mem[0]), uintptr(len(f.mem)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_FIXED|unix.MAP_NORESERVE)
	return os.NewSyscallError("mmap", err)
}
