package bench

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// With free page reporting (virtio-balloon) a hypervisor takes back memory that is free for some time. The next use of each page then
// costs 1.5 us, which for 1 GB is more than the copy itself, and depends on earlier use of the memory. Only free blocks of 2 MiB and
// more are reported. So newBackedMemory touches memory and frees all but one page in each 512 KiB: the free memory is then in small
// blocks, which are not reported and which the kernel allocates first.

// backedMemory is address space that keeps free memory of the machine backed by the hypervisor.
type backedMemory []byte

const (
	heldEvery = 512 << 10
	heldPage  = 4096
)

// checkMemory returns an error if n bytes are not available: the machine would swap or kill a process.
func checkMemory(meminfo string, n int64) error {
	_, after, found := strings.Cut(meminfo, "\nMemAvailable:")
	var free int64
	if _, err := fmt.Sscan(after, &free); !found || err != nil {
		return nil // the kernel does not say
	}
	if free *= 1024; free < n {
		return fmt.Errorf("%s of memory are available, and the copies take %s", experiment.Amount(float64(free), "B"), experiment.Amount(float64(n), "B"))
	}
	return nil
}

// newBackedMemory touches n bytes and frees most of them.
func newBackedMemory(n int64) (backedMemory, error) {
	n = (n + heldEvery - 1) / heldEvery * heldEvery
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("memory for the copies: %w", err)
	}
	if err := unix.Madvise(b, unix.MADV_NOHUGEPAGE); err != nil && err != unix.EINVAL { // EINVAL: the kernel has no huge pages
		unix.Munmap(b)
		return nil, fmt.Errorf("memory for the copies in small pages: %w", err)
	}
	for at := 0; at < len(b); at += heldPage {
		b[at] = 1
	}
	for at := 0; at < len(b); at += heldEvery {
		if err := unix.Madvise(b[at+heldPage:at+heldEvery], unix.MADV_DONTNEED); err != nil {
			unix.Munmap(b)
			return nil, fmt.Errorf("memory for the copies, to be free again: %w", err)
		}
	}
	return b, nil
}

func (b backedMemory) close() error { return unix.Munmap(b) }
