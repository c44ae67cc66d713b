package roce

import (
	"errors"

	"vrdma.dev/vrdma/internal/net/overlay"
)

// A Tunnel carries the datagrams of encrypted networks between hosts: what would be the payload
// of a UDP datagram to the VXLAN port. It belongs to one loop, which makes all calls, and it
// never blocks. What it cannot carry at the moment is lost, as on a wire.
type Tunnel interface {
	// Send takes messages in order and returns how many it was done with; an error is about
	// the next one. Of each, Data, Segment and Host are set: Host is who it is for, of the map
	// given last. The Data is the caller's again when Send returns. Errors: ErrFull (there is
	// no room, try later), ErrNoTunnel (the host has none, the message is lost).
	Send(msgs []Message) (int, error)
	// Receive fills in as many messages as have arrived and fit, and returns how many. It puts
	// the datagrams into Data, which has room for 64 KiB, and sets its length; it sets Segment
	// if there are several of one length, Host (who has sent it: the one whose key it was
	// encrypted with, of the map given last) and CE.
	Receive(msgs []Message) (int, error)
	// FD is a descriptor that is readable while Receive has something.
	FD() int
	// Overhead is how many bytes a datagram is longer than without a tunnel, at most.
	Overhead() int
	// Dropped is what it has dropped so far.
	Dropped() TunnelCounters
	// SetMap says who is there, with which keys and addresses. Hosts that are in no encrypted
	// network need no tunnel.
	SetMap(*overlay.Map)
	// Close gives everything back.
	Close() error
}

// ErrNoTunnel: there is none to that host.
var ErrNoTunnel = errors.New("link: no tunnel leads to that host")
