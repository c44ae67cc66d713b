package vswitch

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A container gets a NIC as an ordinary interface through a tap: an interface of the kernel whose frames are read and written through a
// file. The frames have the same header as those of virtual machines, and so the same offloads. Package netns creates it.

// A tap is a container at a port.
type tap struct {
	raw syscall.RawConn

	mu    sync.Mutex // guards the fields below
	head  [headerSize]byte
	parts [][]byte
}

// ServeTap forwards the frames of a tap until the file is closed, which is not an error, or Detach closes it.
func (p *Port) ServeTap(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	a := &attachment{receiver: &tap{raw: raw}, close: func() { file.Close() }, interrupt: file.SetReadDeadline}
	done, ok := p.attach(a)
	if !ok {
		return ErrTaken
	}
	defer done()
	w, room := new(worker), make([]byte, headerSize+maxFrame)
	var n int
	var began time.Time // when the frame was read
	read := func(fd uintptr) bool {
		began = time.Now()
		n, err = unix.Read(int(fd), room)
		return err != unix.EAGAIN
	}
	for {
		closed := raw.Read(read)
		switch {
		case errors.Is(closed, os.ErrDeadlineExceeded):
			a.rest()
			continue
		case closed != nil, err == nil && n == 0:
			return nil
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("a container's interface: %w", err)
		case n < headerSize:
			continue
		}
		for {
			pause := p.pause(began)
			if pause == 0 || a.pause.Load() != nil {
				break
			}
			time.Sleep(min(pause, longestPause))
			if raw.Control(func(uintptr) {}) != nil { // the file was closed
				return nil
			}
			began = time.Now()
		}
		w.frame.virtio = parseNetHeader(room)
		if !w.frame.take([][]byte{room[headerSize:n]}) {
			p.Malformed.Add(1)
			continue
		}
		p.charge(w.frame.size, began)
		p.sendContained(w)
		p.spent(time.Since(began))
	}
}

// deliver implements receiver. The kernel handles offloads.
func (t *tap) deliver(f *frame, _ int, _ []byte) (ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.virtio.put(t.head[:])
	t.parts = append(append(t.parts[:0], t.head[:], f.head), f.rest...)
	err := t.raw.Write(func(fd uintptr) bool {
		n, err := unix.Writev(int(fd), t.parts)
		ok = err == nil && n > 0
		return true // the kernel drops frames when its queue is full
	})
	clear(t.parts) // do not keep references to a sender's memory
	return ok && err == nil
}
