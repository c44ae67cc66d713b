package engine

import (
	"net"
	"net/netip"

	"vrdma/internal/link"
	"vrdma/internal/transport"
)

// Packets that are too long for the way. The port's MTU is that of the interface when the
// daemon was started. If the interface's is lowered later, or a router on the way takes less,
// nothing but short messages gets through, and programs see status 12 (retry exceeded).

const (
	// tooLongMost is how many peers are remembered; programs choose whom they send to.
	tooLongMost = 256
	// tooLongAgain is when the log says it again.
	tooLongAgain = transport.Time(600e9)
)

// tooLong is what is known of a peer.
type tooLong struct {
	size int // of the shortest packet that was refused
	told transport.Time
}

// noteTooLong remembers that a packet was refused and tells the operator, now and then.
func (e *Engine) noteTooLong(from, to netip.Addr, size int) {
	gid := link.GIDOf(to)
	t := e.tooLong[gid]
	if t == nil {
		if len(e.tooLong) >= tooLongMost {
			return
		}
		if e.tooLong == nil {
			e.tooLong = make(map[transport.GID]*tooLong)
		}
		t = &tooLong{size: size, told: e.now - tooLongAgain}
		e.tooLong[gid] = t
	}
	t.size = min(t.size, size)
	if e.now-t.told < tooLongAgain {
		return
	}
	t.told = e.now
	// To ask for the interface takes a while: not on the loop.
	go reportTooLong(e.opts, e.netDev(link.GIDOf(from)), to, size, 128<<e.nic.MTU)
}

// netDev is the interface of one of our addresses.
func (e *Engine) netDev(gid transport.GID) string {
	for i := range e.nic.GIDs {
		if e.nic.GIDs[i].GID == gid {
			return e.nic.GIDs[i].NetDev
		}
	}
	return ""
}

func reportTooLong(o Options, dev string, to netip.Addr, size, mtu int) {
	args := []any{"peer", to, "bytes", size, "port_mtu", mtu, "interface", dev}
	do := "raise the MTU of the way there, or connect with a smaller path MTU"
	if i, err := net.InterfaceByName(dev); err == nil {
		args = append(args, "interface_mtu", i.MTU)
		if i.MTU < size {
			do = "raise the interface's MTU, or start the daemon again, which then takes a smaller one"
		}
	}
	o.Log.Warn("packets are too long for the way to a peer, and long messages to it fail with status 12", append(args, "do", do)...)
}

// shortestTooLong is how many bytes, with the headers from IP's on, the shortest packet had
// that was too long for the way to a peer; 0: none was.
func (e *Engine) shortestTooLong(gid transport.GID) int {
	if t := e.tooLong[gid]; t != nil {
		return t.size
	}
	return 0
}
