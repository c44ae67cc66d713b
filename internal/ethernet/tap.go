package ethernet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A container has a NIC as an ordinary interface by a tap: an interface of the kernel whose cable ends in a file.
// Frames there have the same header as those of virtual machines, and so the same offloads. Package netns makes it.

// A tap is a container behind a port.
type tap struct {
	raw syscall.RawConn

	mu    sync.Mutex // guards what is below
	head  [headerSize]byte
	parts [][]byte
}

// ServeTap is the other end of a tap's cable, until the file is closed, which is no error, or Detach closes it.
func (p *Port) ServeTap(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	done, ok := p.attach(&attachment{receiver: &tap{raw: raw}, close: func() { file.Close() }})
	if !ok {
		return ErrTaken
	}
	defer done()
	w, room := new(worker), make([]byte, headerSize+maxFrame)
	for {
		n, err := file.Read(room)
		switch {
		case errors.Is(err, os.ErrClosed), errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("a container's interface: %w", err)
		case n < headerSize:
			continue
		}
		for {
			pause := p.limits[out].wait(time.Now())
			if pause == 0 {
				break
			}
			time.Sleep(min(pause, longestPause))
			if raw.Control(func(uintptr) {}) != nil { // it was closed
				return nil
			}
		}
		w.frame.virtio = parseNetHeader(room)
		if !w.frame.take([][]byte{room[headerSize:n]}) {
			p.Malformed.Add(1)
			continue
		}
		p.limits[out].take(w.frame.size, time.Now())
		p.sendContained(w)
	}
}

// deliver implements receiver. The kernel does what offloads need.
func (t *tap) deliver(f *frame, _ int, _ []byte) (ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.virtio.put(t.head[:])
	t.parts = append(append(t.parts[:0], t.head[:], f.head), f.rest...)
	err := t.raw.Write(func(fd uintptr) bool {
		n, err := unix.Writev(int(fd), t.parts)
		ok = err == nil && n > 0
		return true // a full queue loses it, as on a wire
	})
	clear(t.parts) // the memory is somebody's
	return ok && err == nil
}
