package bench

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// In a virtual machine whose hypervisor is told of free memory (virtio-balloon's free page reporting), a page that was
// free for a while is fetched anew when it is used: 1.5 us, for 1 GB more than the copy itself takes. Whether that
// happens depends on who used the memory before, so one and the same cp takes 0.5 or 2.5 s. Reported are only blocks
// of 2 MiB and more. So memory is fetched, and then all of it is freed but a page in each 512 KiB: what is free is
// then in smaller blocks, which nobody reports, and which the kernel takes first.

// backedMemory is memory of which most is free, and there.
type backedMemory []byte

const (
	heldEvery = 512 << 10
	heldPage  = 4096
)

// checkMemory refuses to take n bytes of memory that is not there: this machine would swap, or end somebody.
func checkMemory(meminfo string, n int64) error {
	_, after, found := strings.Cut(meminfo, "\nMemAvailable:")
	var free int64
	if _, err := fmt.Sscan(after, &free); !found || err != nil {
		return nil // a kernel that does not say
	}
	if free *= 1024; free < n {
		return fmt.Errorf("%s of memory are available, and the copies take %s", experiment.Amount(float64(free), "B"), experiment.Amount(float64(n), "B"))
	}
	return nil
}

// newBackedMemory has n bytes fetched.
func newBackedMemory(n int64) (backedMemory, error) {
	n = (n + heldEvery - 1) / heldEvery * heldEvery
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("memory for the copies: %w", err)
	}
	if err := unix.Madvise(b, unix.MADV_NOHUGEPAGE); err != nil && err != unix.EINVAL { // EINVAL: the kernel has none
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
