package cable

import (
	"os"
	"sync"
	"time"
)

// Probe is the end of a cable that is in the test's own hands: it sees every frame that
// the others send, and puts frames of its own making on the cable.
type Probe struct {
	seen     func(frame []byte)
	in       chan []byte
	closed   chan struct{}
	once     sync.Once
	deadline time.Time // of the cable's goroutine that reads
}

// NewProbe makes a probe whose frames go to seen, which must not keep them. Frames from
// several ends come at the same time.
func NewProbe(seen func(frame []byte)) *Probe {
	return &Probe{seen: seen, in: make(chan []byte), closed: make(chan struct{})}
}

// Inject puts a frame on the cable.
func (p *Probe) Inject(frame []byte) {
	select {
	case p.in <- frame:
	case <-p.closed:
	}
}

// Read implements End.
func (p *Probe) Read(frame []byte) (int, error) {
	var late <-chan time.Time
	if !p.deadline.IsZero() {
		timer := time.NewTimer(time.Until(p.deadline))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case f := <-p.in:
		return copy(frame, f), nil
	case <-p.closed:
		return 0, os.ErrClosed
	case <-late:
		return 0, os.ErrDeadlineExceeded
	}
}

// Write implements End.
func (p *Probe) Write(frame []byte) (int, error) {
	p.seen(frame)
	return len(frame), nil
}

// SetReadDeadline implements End.
func (p *Probe) SetReadDeadline(t time.Time) error {
	p.deadline = t
	return nil
}

// Close implements End.
func (p *Probe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}
