package ipc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// Kernel is the connection to the kernel's rxe, whose rings have the daemon's layout. Hardware devices have
// other ring layouts and are not supported.
type Kernel struct {
	file *os.File // /dev/infiniband/uverbsN
	sys  string
}

const (
	devices   = "/dev/infiniband"
	KernelSys = "/sys"
)

// FindKernel finds the kernel's rxe device with a name, or the first one. uverbs is the name of its device file.
func FindKernel(sys, name string) (uverbs, device string, err error) {
	list, err := filepath.Glob(filepath.Join(sys, "class/infiniband_verbs/uverbs*"))
	if err != nil || len(list) == 0 {
		return "", "", ErrNoKernel
	}
	var others []string
	for _, dir := range list {
		device := ReadLine(filepath.Join(dir, "ibdev"))
		if name != "" && device != name {
			others = append(others, device)
			continue
		}
		// Only software devices have a parent network device, and only rxe has this ABI version.
		if _, err := os.Stat(filepath.Join(sys, "class/infiniband", device, "parent")); err == nil &&
			ReadLine(filepath.Join(dir, "abi_version")) == fmt.Sprint(abi.RxeABIVersion) {
			return filepath.Base(dir), device, nil
		}
		others = append(others, device)
	}
	if name != "" {
		return "", "", fmt.Errorf("the kernel has no rxe device %q: it has %s", name, strings.Join(others, ", "))
	}
	return "", "", fmt.Errorf("the kernel has only devices whose queues this package does not know (%s): it speaks to vrdma's daemon and to the kernel's rxe", strings.Join(others, ", "))
}

var ErrNoKernel = errors.New("the kernel has no RDMA device")

func ReadLine(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

func OpenKernel(uverbs string) (*Kernel, error) {
	f, err := os.OpenFile(filepath.Join(devices, uverbs), os.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &Kernel{file: f, sys: KernelSys}, nil
}

func (k *Kernel) Command(cmd []byte, _ []protocol.Extent) ([]Descriptor, error) {
	_, err := k.file.Write(cmd)
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return nil, errno
	}
	return nil, err
}

func (k *Kernel) Ring(at *abi.MMInfo) (Mapped, bool, error) {
	m, err := mapFile(int(k.file.Fd()), int64(at.Offset), uintptr(at.Size))
	return m, true, err
}

func (k *Kernel) RingBell(qp uint32, command []byte) error {
	_, err := k.file.Write(command)
	return err
}

func (k *Kernel) Arm(uint32, bool) bool { return false }

func (k *Kernel) Allocate(n uintptr) (Mapped, error) {
	m, err := MapAnonymous(n)
	if err == nil {
		// A forked child must not cause copy-on-write of pages that the device uses.
		_ = unix.Madvise(m.Mem, unix.MADV_DONTFORK)
	}
	return m, err
}

func (k *Kernel) Free(m *Mapped) { m.Unmap() }

func (k *Kernel) Extents(uint64, uint64, bool, bool) []protocol.Extent { return nil }

func (k *Kernel) Tree() string { return k.sys }

func (k *Kernel) Close() error { return k.file.Close() }

func (k *Kernel) Unmap() {}
