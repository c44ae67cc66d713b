package engine

import (
	"net"
	"net/netip"

	"vrdma.dev/vrdma/internal/ib"
)

// Packets over the path MTU. The port's MTU is that of the interface at the start of the daemon.
// If the interface's MTU is lowered later, or a router on the path has a smaller one, only short
// messages arrive, and programs see status 12 (retry exceeded).

const (
	// tooLongMost bounds the peers that are remembered: programs choose the peers.
	tooLongMost = 256
	// tooLongAgain is the time between two log messages about a peer.
	tooLongAgain = ib.Time(600e9)
)

// tooLong is what is known of a peer.
type tooLong struct {
	size int // of the shortest packet that was refused
	told ib.Time
}

// noteTooLong remembers that a packet was refused, and logs it now and then.
func (n *network) noteTooLong(from, to netip.Addr, size int) {
	now := n.clock.now
	t := n.tooLong[to]
	if t == nil {
		if len(n.tooLong) >= tooLongMost {
			return
		}
		if n.tooLong == nil {
			n.tooLong = make(map[netip.Addr]*tooLong)
		}
		t = &tooLong{size: size, told: now - tooLongAgain}
		n.tooLong[to] = t
	}
	t.size = min(t.size, size)
	if now-t.told < tooLongAgain {
		return
	}
	t.told = now
	dev, mtu := n.netDev(from)
	// Looking up the interface takes too long for the loop.
	go reportTooLong(*n.opts, dev, to, size, mtu)
}

// netDev returns the interface of one of our addresses, and the MTU of the NIC that has it.
func (n *network) netDev(addr netip.Addr) (string, int) {
	a := n.adapters.at[netAddr{ib.HostNetwork, ib.GIDOf(addr)}]
	if a == nil {
		a = n.atNamespace(addr)
	}
	if a == nil {
		return "", 0
	}
	mtu := 128 << a.nic.MTU
	for _, g := range a.nic.GIDs {
		if n.opts.Resolver.Resolve(a.nic, g.GID).To == addr {
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

// shortestTooLong is the size, with the IP header, of the shortest packet to a peer that was
// refused as too long; 0: none was.
func (n *network) shortestTooLong(to netip.Addr) int {
	if t := n.tooLong[to]; t != nil {
		return t.size
	}
	return 0
}
