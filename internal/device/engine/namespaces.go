package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
)

// A NIC can reach other hosts through a network namespace that is not the daemon's. The underlay
// is then a port whose sockets are in that namespace. It has a NetworkID of its own, so that the
// same address in two namespaces is two addresses. Other vrdma hosts are recognised for each
// namespace separately, for the same reason.
//
// Namespaces come and go while the loop runs, with the programs that use the NIC.

// AddPort adds the underlay of a NIC in a network namespace, or of the default NIC in the hosts' own
// network: a port there, its descriptors, of which one is readable when packets have arrived, and the
// network's number. The Resolver knows the NIC's addresses there. window and flight are Options'
// Window and InFlight, unless those are set. It runs on the loop.
func (e *Engine) AddPort(n *nic.NIC, number ib.NetworkID, p *roce.Port, wake []int, window, flight uint32) error {
	return e.first.net.addPort(n, number, p, wake, window, flight)
}

func (n *network) addPort(dev *nic.NIC, number ib.NetworkID, p *roce.Port, wake []int, window, flight uint32) error {
	u := &n.underlays
	if u.of(number) != nil || number.IsVirtual() {
		return fmt.Errorf("engine: %v has a port already, or needs none", number)
	}
	under := &portUnderlay{Port: p, net: n}
	a, err := n.attach(under, wake)
	if err != nil {
		return err
	}
	if u.namespaces == nil {
		u.namespaces = make(map[ib.NetworkID]*attached)
	}
	if number == ib.HostNetwork {
		u.host = a
	} else {
		u.namespaces[number] = a
	}
	if n.opts.Window == 0 {
		n.opts.Window, n.opts.InFlight = window, flight
	}
	p.SetNetwork(number)
	p.OnTooLong(n.noteTooLong)
	if n.opts.Recognise {
		under.peers = n.newPeers(number, p)
	}
	if number == ib.HostNetwork {
		if err := n.loop.loops.openShards(); err != nil {
			return err
		}
	}
	dev.Reroute()
	n.loop.loops.readdress(dev)
	if err := n.rejoinAt(dev, [2]bool{true, true}); err != nil {
		n.opts.Log.Warn("a NIC is not in all its multicast groups", "why", err)
	}
	return nil
}

// Readdress is called when the NIC has other addresses, which the Resolver knows. move opens the
// sockets of the port for them and closes the others. It returns all descriptors that
// the port has then. regroup says for IPv4 and IPv6 whether the addresses are at other interfaces now:
// the NIC joins its groups there. After an error the caller tries again later. It runs on the loop.
func (e *Engine) Readdress(n *nic.NIC, number ib.NetworkID, regroup [2]bool, move func() []int) error {
	return e.first.net.readdress(n, number, regroup, move)
}

func (n *network) readdress(dev *nic.NIC, number ib.NetworkID, regroup [2]bool, move func() []int) error {
	a := n.of(number)
	if a == nil || number.IsVirtual() {
		return fmt.Errorf("engine: %v has no port", number)
	}
	n.acks.flush(n.clock.now)
	a.Flush()
	for _, o := range n.loop.loops.others {
		o.net.acks.flush(o.clock.now)
		o.net.flush(o.clock.now)
	}
	err := n.rewatch(a, move())
	if number == ib.HostNetwork {
		err = errors.Join(err, n.loop.loops.moveShards())
	}
	n.loop.loops.readdress(dev)
	return errors.Join(err, n.rejoinAt(dev, regroup))
}

// rejoinAt makes a NIC join its groups of these families, IPv4 and IPv6, again, at the interfaces
// that its addresses are at now. It returns the first error.
func (n *network) rejoinAt(dev *nic.NIC, families [2]bool) (first error) {
	a := n.adapters.of[dev]
	if a == nil || families == [2]bool{} {
		return nil
	}
	for gid := range dev.Groups() {
		if families[familyOf(&gid)] {
			n.leave(a, gid)
			if err := n.join(a, gid); first == nil && err != nil {
				first = fmt.Errorf("engine: join %v again: %n", gid.Addr(), err)
			}
		}
	}
	return first
}

// familyOf is 0 for IPv4 and 1 for IPv6.
func familyOf(gid *ib.GID) int {
	if gid.Is4() {
		return 0
	}
	return 1
}

// CountGroups returns how many groups of IPv4 and of IPv6 a NIC has joined. It runs on the loop.
func (e *Engine) CountGroups(n *nic.NIC) (count [2]int) {
	for gid := range n.Groups() {
		count[familyOf(&gid)]++
	}
	return count
}

// RemoveNamespace undoes AddPort for a namespace and closes the port. The NIC has no sessions any more. It runs
// on the loop.
func (e *Engine) RemoveNamespace(n *nic.NIC, number ib.NetworkID) {
	e.first.net.removeNamespace(n, number)
}

func (n *network) removeNamespace(dev *nic.NIC, number ib.NetworkID) {
	u := &n.underlays
	a := u.namespaces[number]
	if a == nil {
		return
	}
	n.acks.flush(n.clock.now) // the last messages of a program that has ended
	a.Flush()
	delete(u.namespaces, number)
	u.list = slices.DeleteFunc(slices.Clone(u.list), func(o *attached) bool { return o == a })
	for _, fd := range a.wake {
		delete(u.fds, int32(fd))
	}
	u.gone = u.gone.Add(a.Counters())
	p := a.underlay.(*portUnderlay)
	p.Close() // epoll forgets closed descriptors
	// A route that still leads here loses its packets.
	a.underlay = closedUnderlay{}
	n.loop.loops.readdress(dev)
}

// A closedUnderlay replaces the underlay of routes when it is closed.
type closedUnderlay struct{ roce.Nowhere }

func (closedUnderlay) features(*route, bool) uint32                        { return 0 }
func (closedUnderlay) maxBurst(uint32, bool) uint32                        { return remoteBurst }
func (closedUnderlay) hello(ib.NetworkID, *adapter, *transport.Burst) bool { return false }
func (closedUnderlay) join(netip.Addr) (int, error)                        { return -1, nil }
func (closedUnderlay) leave(netip.Addr)                                    {}
func (closedUnderlay) pollGroup(int) bool                                  { return false }

// atNamespace returns the NIC that has an address in a network namespace; nil: none has.
func (n *network) atNamespace(a netip.Addr) *adapter {
	for number := range n.namespaces {
		if o := n.adapters.at[netAddr{number, ib.GIDOf(a)}]; o != nil {
			return o
		}
	}
	return nil
}
