package vmagent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// Names of the machine's virtio-serial ports.
const (
	LinePort = "vrdma.0"    // commands and events
	BellPort = "vrdma.bell" // programs write to it
)

// findPort returns the device of the virtio-serial port with a name.
func findPort(name string) (string, error) {
	files, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return "", err
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == name {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(f))), nil
		}
	}
	return "", fmt.Errorf("this machine has no virtio-serial port %s (%w): is it a virtual machine, whose QEMU has the arguments that vrdma guest args prints on its host?", name, os.ErrNotExist)
}

// HasPort returns an error if there can be no agent in this machine.
func HasPort() error {
	_, err := findPort(LinePort)
	return err
}

// openPort opens the port with a name. It does not use Go's poller, which would add a system call and a wake-up to every message.
func openPort(name string, flags int) (int, error) {
	path, err := findPort(name)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|flags, 0)
	// Only one process can have a port open: an earlier agent may be about to end.
	for end := time.Now().Add(patience); errors.Is(err, unix.EBUSY) && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
		fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|flags, 0)
	}
	if err != nil {
		return -1, fmt.Errorf("%s (port %s): %w", path, name, err)
	}
	return fd, nil
}

// An agentPort is the virtio-serial port for commands and events.
type agentPort struct {
	fd int

	mu  sync.Mutex
	out []byte
}

// Read implements io.Reader. The end of the daemon's connection is not the end of the stream: another connection may follow.
func (l *agentPort) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(l.fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// send sends a frame. It blocks while QEMU or the daemon is slow.
func (l *agentPort) send(k vmproto.Kind, id uint32, body ...[]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out = vmproto.Append(l.out[:0], k, id, body...)
	return l.write(l.out)
}

// raw sends bytes.
func (l *agentPort) raw(b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.write(b)
}

func (l *agentPort) write(b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(l.fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
