package roce

import (
	"errors"
	"net/netip"

	"vrdma.dev/vrdma/internal/net/overlay"
)

// A Message is one or several datagrams that a Bind sends or receives in one call.
type Message struct {
	// Data contains the datagrams, one after the other. In a message to receive into, it is the buffer.
	Data []byte
	// Segment is the length of each datagram except the last, which may be shorter. Zero means that
	// there is only one datagram.
	Segment int
	// Source is the result of Bind.Source for the sender, in messages to be sent.
	Source int
	// Remote is the peer. Its zone is ignored; the zone of Local counts.
	Remote netip.AddrPort
	// Local is the address at which a message arrived.
	Local netip.AddrPort
	// CE is set when a message arrived with the Congestion Experienced mark.
	CE bool
	// Host is the peer of a message in a Tunnel.
	Host *overlay.Host
	// Inside means that the datagrams are VXLAN datagrams that contain packets.
	Inside bool
}

// Reasons why a Bind did not send a message.
var (
	// ErrFull means that the socket's send buffer is full at the moment.
	ErrFull = errors.New("link: the socket's send buffer is full")
	// ErrSegments means that the network device refused several datagrams in one message. Segments
	// returns 1 from then on.
	ErrSegments = errors.New("link: the network device does not segment UDP datagrams")
)

// A Bind sends and receives batches of datagrams at port 4791 of one or more local addresses. It never
// blocks.
type Bind interface {
	// Source returns the sender for datagrams from a local address. Equal hashes give equal source
	// ports; different hashes most likely give different ones. ok is false if the bind does not have
	// the address.
	Source(local netip.Addr, hash uint32) (id int, from netip.AddrPort, ok bool)
	// Segments returns the maximum number of datagrams in one message. It may become 1.
	Segments() int
	// Send sends messages in order and returns how many it has handled. An error is about the next one.
	Send(msgs []Message) (int, error)
	// Receive fills in up to len(msgs) received messages and returns their number.
	Receive(msgs []Message) (int, error)
	// Close closes all sockets.
	Close() error
}
