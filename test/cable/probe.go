package cable

import (
	"os"
	"sync"
	"time"
)

// Probe is an end of a cable that the test itself uses: it sees every frame of the other ends and injects its own
// frames.
type Probe struct {
	seen     func(frame []byte)
	in       chan []byte
	closed   chan struct{}
	once     sync.Once
	deadline time.Time // of the cable's goroutine that reads
}

// NewProbe makes a probe that passes frames to seen, which must not keep them. Frames of several ends come
// concurrently.
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
