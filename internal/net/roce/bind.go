package roce

import (
	"errors"
	"net/netip"

	"vrdma.dev/vrdma/internal/net/overlay"
)

// A Message is one or several datagrams that a Bind moves at once.
type Message struct {
	// Data is the datagrams, one behind the other. Of a message to be filled in, it
	// is the room for them.
	Data []byte
	// Segment is the length of each datagram but the last, which may be shorter.
	// Zero means that there is only one.
	Segment int
	// Source is what Bind.Source gave for the sender, in messages to be sent.
	Source int
	// Remote is the peer. Its zone is of no account: that of Local counts.
	Remote netip.AddrPort
	// Local is where a message arrived.
	Local netip.AddrPort
	// CE is set when a message arrived with the mark Congestion Experienced.
	CE bool
	// Host is the peer of a message that a Tunnel moves.
	Host *overlay.Host
	// Inside: the datagrams are VXLAN's, and packets are inside.
	Inside bool
}

// Why a Bind did not send a message.
var (
	// ErrFull: the socket's buffer has no room at the moment.
	ErrFull = errors.New("link: the socket's send buffer is full")
	// ErrSegments: the network device refused several datagrams in one message, and
	// from now on none will be taken: Segments has become 1.
	ErrSegments = errors.New("link: the network device does not segment UDP datagrams")
)

// A Bind moves datagrams in batches to and from port 4791 of one or more local
// addresses. It never blocks.
type Bind interface {
	// Source finds what datagrams from a local address leave through. The same hash
	// gives the same source port, others most likely another one. ok is false when
	// the address is not one of the bind's.
	Source(local netip.Addr, hash uint32) (id int, from netip.AddrPort, ok bool)
	// Segments is how many datagrams one message may hold. It may become 1.
	Segments() int
	// Send sends messages in order and returns how many it was done with. An error is
	// about the next one.
	Send(msgs []Message) (int, error)
	// Receive fills in as many messages as have arrived and fit, and returns how many.
	Receive(msgs []Message) (int, error)
	// Close gives everything back.
	Close() error
}
