package engine

import (
	"net"
	"net/netip"

	"vrdma.dev/vrdma/internal/ib"
)

// Packets that are too long for the way. The port's MTU is that of the interface when the
// daemon was started. If the interface's is lowered later, or a router on the way takes less,
// nothing but short messages gets through, and programs see status 12 (retry exceeded).

const (
	// tooLongMost is how many peers are remembered; programs choose whom they send to.
	tooLongMost = 256
	// tooLongAgain is when the log says it again.
	tooLongAgain = ib.Time(600e9)
)

// tooLong is what is known of a peer.
type tooLong struct {
	size int // of the shortest packet that was refused
	told ib.Time
}

// noteTooLong remembers that a packet was refused and tells the operator, now and then.
func (e *Engine) noteTooLong(from, to netip.Addr, size int) {
	n := &e.net
	t := n.tooLong[to]
	if t == nil {
		if len(n.tooLong) >= tooLongMost {
			return
		}
		if n.tooLong == nil {
			n.tooLong = make(map[netip.Addr]*tooLong)
		}
		t = &tooLong{size: size, told: e.now - tooLongAgain}
		n.tooLong[to] = t
	}
	t.size = min(t.size, size)
	if e.now-t.told < tooLongAgain {
		return
	}
	t.told = e.now
	dev, mtu := e.netDev(from)
	// To ask for the interface takes a while: not on the loop.
	go reportTooLong(e.opts, dev, to, size, mtu)
}

// netDev is the interface of one of our addresses, and the MTU of the NIC that has it.
func (e *Engine) netDev(a netip.Addr) (string, int) {
	gid := ib.GIDOf(a)
	c := e.cards.at[place{ib.HostNetwork, gid}]
	if c == nil {
		c = e.atNamespace(a)
	}
	if c == nil {
		return "", 0
	}
	mtu := 128 << c.nic.MTU
	for _, g := range c.nic.GIDs {
		if e.opts.Resolver.Resolve(c.nic, g.GID).To == a {
			return g.NetDev, mtu
		}
	}
	return "", mtu
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
func (n *network) shortestTooLong(to netip.Addr) int {
	if t := n.tooLong[to]; t != nil {
		return t.size
	}
	return 0
}
