package filecopy

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"
)

// A conn is a connection. One goroutine owns it and calls all methods but send and shut. Any goroutine may send on a control
// connection while the owner is in recv.
//
// A stream begins with messages, like a control connection. Then the receiving side calls open and the sending side attach. From
// then on chunks go in one direction.
type conn interface {
	// send sends a message. It may wait until the peer has received earlier ones.
	send(message) error
	// recv waits for the next message.
	recv(context.Context) (message, error)

	// open makes a window of this many slots and announces it to the peer.
	open(slots int) error
	// next waits for a chunk. The caller owns it until release.
	next(context.Context) (*slot, error)
	// release returns a slot to the peer: a credit.
	release(*slot) error

	// attach waits for the peer's window and makes buffers for at most this many of its slots.
	attach(ctx context.Context, most int) error
	// buffer waits for a free slot to fill.
	buffer(context.Context) (*slot, error)
	// post sends a filled slot: the header and n bytes.
	post(s *slot, n int) error
	// unused returns a buffer that was not posted.
	unused(*slot)
	// round returns the number of slots and the shortest recent time until a slot came back; 0: the connection has no credits.
	round() (slots int, least time.Duration)

	// shut ends the connection: all waiting calls return an error. close releases its resources; the owner calls it, or another
	// goroutine after the owner has ended.
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
	length int    // received bytes of data
}

// A transport makes and accepts connections: an RDMA device, or TCP.
type transport interface {
	dial(ctx context.Context, addr string) (conn, error)
	listen(addr string) (listener, error)
	// addresses returns the addresses for peers.
	addresses() []netip.Addr
	// name is the name for messages to users.
	name() string
	close() error
}

type listener interface {
	// accept waits for a connection request and returns a function that establishes the connection.
	accept(context.Context) (func(context.Context) (conn, error), error)
	addr() string
	close() error
}

const (
	// dialTime is the limit for establishing a connection with its handshake.
	dialTime = 15 * time.Second
	// aliveEvery is the interval of keepalives. After silent intervals without any message the peer counts as lost. Intervals are
	// counted, not timed: a machine that was suspended has missed its intervals, too.
	aliveEvery = 5 * time.Second
	silent     = 6
)

// A BrokenError is a broken connection. Retrying may help.
type BrokenError struct{ err error }

func (e *BrokenError) Error() string { return "the connection broke: " + e.err.Error() }
func (e *BrokenError) Unwrap() error { return e.err }

// broken wraps err as a BrokenError, unless it has another cause or the end was requested.
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

// newSlot returns a slot in memory of slotSize bytes.
func newSlot(number int, b []byte) slot {
	b = b[slotHead-headSize : slotSize : slotSize]
	return slot{number: number, whole: b, head: b[:headSize:headSize], data: b[headSize:]}
}

// here reports whether the peer of a connection is on this machine.
func here(p transport, c conn) bool {
	at, err := netip.ParseAddr(c.remote())
	return err == nil && (at.IsLoopback() || slices.Contains(p.addresses(), at))
}
