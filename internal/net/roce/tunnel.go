package roce

import (
	"errors"

	"vrdma.dev/vrdma/internal/net/overlay"
)

// A Tunnel carries the datagrams of encrypted networks between hosts: each is the payload of a UDP datagram to the
// VXLAN port. It belongs to one loop, which makes all calls, and it never blocks. It drops what it cannot carry at
// the moment.
type Tunnel interface {
	// Send takes messages in order and returns how many it has handled; an error is about the next one. Data,
	// Segment and Host are set; Host is the destination, from the last map. Send does not use Data after it
	// returns. Errors: ErrFull (no space, try later), ErrNoTunnel (no tunnel to the host, the message is lost).
	Send(msgs []Message) (int, error)
	// Receive fills in up to len(msgs) received messages and returns their number. It stores the datagrams in Data,
	// which has 64 KiB, and sets its length. It sets Segment if there are several of one length, CE, and Host: the
	// host of the last map whose key encrypted the message.
	Receive(msgs []Message) (int, error)
	// FD returns a descriptor that is readable while Receive has messages.
	FD() int
	// Overhead returns the maximum number of bytes that the tunnel adds to a datagram.
	Overhead() int
	// Dropped returns the counters of dropped packets.
	Dropped() TunnelCounters
	// SetMap sets the hosts with their keys and addresses. Hosts outside of encrypted networks need no tunnel.
	SetMap(*overlay.Map)
	// Close releases all resources.
	Close() error
}

// ErrNoTunnel means that there is no tunnel to the host.
var ErrNoTunnel = errors.New("link: no tunnel leads to that host")
