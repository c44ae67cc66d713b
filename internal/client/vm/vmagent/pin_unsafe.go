package vmagent

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// address returns the address of mapped memory, which does not move.
func address(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// mapHuge maps pages of a memfd as huge pages where the kernel can: in a machine that has run for a while, single pages are
// rarely adjacent. The kernel needs the pages to be populated before. Kernels before 6.1 do not support it.
func mapHuge(memfd int, offset int64, size int) ([]byte, func(), error) {
	room, err := unix.Mmap(-1, 0, size+hugePage, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil, err
	}
	// Addresses and file offsets must be equal modulo the size of a huge page.
	skip := (uint64(offset) - address(room)) % hugePage
	mem := room[skip:][:size:size]
	if _, err := unix.MmapPtr(memfd, offset, unsafe.Pointer(&mem[0]), uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED|unix.MAP_POPULATE); err != nil {
		unix.Munmap(room)
		return nil, nil, err
	}
	unix.Madvise(mem, unix.MADV_COLLAPSE) // on failure the pages stay small
	return mem, func() { unix.Munmap(room) }, nil
}

// mostBuffer is the maximum size of an io_uring buffer.
const mostBuffer = 1 << 30

// pinMemory registers mem with a new io_uring, which pins its pages while it is open. The kernel copies the parameters and the
// list of buffers during the call.
func pinMemory(mem []byte) (ring int, err error) {
	const registerBuffers = 0
	var params [120]byte // struct io_uring_params
	r, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return -1, fmt.Errorf("io_uring, which is needed to pin memory (see sysctl kernel.io_uring_disabled): %w", errno)
	}
	unix.CloseOnExec(int(r))
	var list []unix.Iovec
	for rest := mem; len(rest) > 0; {
		n := min(len(rest), mostBuffer)
		v := unix.Iovec{Base: &rest[0]}
		v.SetLen(n)
		list, rest = append(list, v), rest[n:]
	}
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, r, registerBuffers, uintptr(unsafe.Pointer(&list[0])), uintptr(len(list)), 0, 0); errno != 0 {
		unix.Close(int(r))
		return -1, fmt.Errorf("pin %d bytes: %w", len(mem), errno)
	}
	return int(r), nil
}
