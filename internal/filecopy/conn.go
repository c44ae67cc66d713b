package filecopy

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"
)

// A conn is a connection. One goroutine owns it and calls everything but send and shut; of a control
// connection any may send while the owner is in recv.
//
// A stream begins like a control connection, with messages. Then the receiving side calls open and the
// sending side attach, and from there on chunks go one way.
type conn interface {
	// send sends a message. It may wait until the peer has taken earlier ones.
	send(message) error
	// recv waits for the next message.
	recv(context.Context) (message, error)

	// open makes a window of so many slots and tells the peer.
	open(slots int) error
	// next waits for a chunk. It is the caller's until release.
	next(context.Context) (*slot, error)
	// release gives a slot back to the peer.
	release(*slot) error

	// attach waits for the peer's window, and makes buffers for at most so many of its slots.
	attach(ctx context.Context, most int) error
	// buffer waits for a slot that may be filled.
	buffer(context.Context) (*slot, error)
	// post sends what was filled in: the header and n bytes.
	post(s *slot, n int) error
	// unused gives a buffer back that was not posted.
	unused(*slot)
	// round is how many slots there are, and the least time that one took lately to come back; 0: the
	// connection has no credits of ours.
	round() (slots int, least time.Duration)

	// shut ends the connection: whatever waits comes back with an error. close frees what it has; the
	// owner calls it, or somebody when the owner has ended.
	shut()
	close() error
	remote() string
}

// A slot holds one chunk: its header, and its data at the start of a page.
type slot struct {
	number int
	whole  []byte // head and data
	head   []byte // headSize
	data   []byte // maxChunk
	length int    // received: of the data
}

// A place is where connections are made and taken: a device, or TCP.
type place interface {
	dial(ctx context.Context, addr string) (conn, error)
	listen(addr string) (listener, error)
	// addresses are those that peers may reach it by.
	addresses() []netip.Addr
	// name is what it is called in messages for people.
	name() string
	close() error
}

type listener interface {
	// accept waits for a connection request, and returns what makes the connection.
	accept(context.Context) (func(context.Context) (conn, error), error)
	addr() string
	close() error
}

const (
	// dialTime is how long a connection may take to be made, with its handshake.
	dialTime = 15 * time.Second
	// aliveEvery is how often either side says that it is there; silent ticks without anything from the
	// peer mean that it is not. They are counted and not timed: a machine that was stopped for a while
	// has missed its ticks, too.
	aliveEvery = 5 * time.Second
	silent     = 6
)

// A BrokenError is a connection that broke: it is worth trying again.
type BrokenError struct{ err error }

func (e *BrokenError) Error() string { return "the connection broke: " + e.err.Error() }
func (e *BrokenError) Unwrap() error { return e.err }

// broken is err as a broken connection, unless it is something else or the end was asked for.
func broken(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var b *BrokenError
	var v *ViolationError
	if errors.As(err, &b) || errors.As(err, &v) {
		return err
	}
	return &BrokenError{err}
}

// newSlot is a slot in memory of slotSize bytes.
func newSlot(number int, b []byte) slot {
	b = b[slotHead-headSize : slotSize : slotSize]
	return slot{number: number, whole: b, head: b[:headSize:headSize], data: b[headSize:]}
}

// here reports whether the peer of a connection is on this machine.
func here(p place, c conn) bool {
	at, err := netip.ParseAddr(c.remote())
	return err == nil && (at.IsLoopback() || slices.Contains(p.addresses(), at))
}
