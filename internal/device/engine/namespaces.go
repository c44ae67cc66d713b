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

// A NIC can reach other hosts through a network namespace that is not the daemon's: the underlay
// is a port whose sockets are there. It has a NetworkID of its own, so that the same address in two
// namespaces is two places. Which hosts are vrdma hosts is known for each namespace by itself,
// because an address there means something else than here.
//
// Namespaces come and go while the loop runs, with the programs that use the NIC.

// AddNamespace opens a NIC's way through a network namespace: a port there, its descriptors, of which
// one is readable when something has arrived, and its number. The Resolver knows the NIC's addresses
// there. window and flight are Options' Window and InFlight, where nothing else has said them. It runs
// on the loop.
func (e *Engine) AddNamespace(n *nic.NIC, number ib.NetworkID, p *roce.Port, wake []int, window, flight uint32) error {
	u := &e.net.underlays
	if u.namespaces[number] != nil || !number.IsNamespace() {
		return fmt.Errorf("engine: %v is there already, or is no namespace", number)
	}
	a, err := e.attach(&portUnderlay{Port: p, e: e}, wake)
	if err != nil {
		return err
	}
	if u.namespaces == nil {
		u.namespaces = make(map[ib.NetworkID]*attached)
	}
	u.namespaces[number] = a
	if e.opts.Window == 0 {
		e.opts.Window, e.opts.InFlight = window, flight
	}
	p.SetNetwork(number)
	p.OnTooLong(e.noteTooLong)
	if e.opts.Recognise {
		a.underlay.(*portUnderlay).peers = e.newPeers(number, p)
	}
	n.Reroute()
	e.readdressNIC(n)
	if err := e.rejoinAt(n, [2]bool{true, true}); err != nil {
		e.opts.Log.Warn("a NIC is not in all its multicast groups", "why", err)
	}
	return nil
}

// ReaddressNamespace is called when the NIC has other addresses, which the Resolver knows. move gives
// the namespace's port the sockets for them and closes the others; it returns all descriptors that the
// port has then. regroup says of IPv4 and IPv6 whether its addresses are at other interfaces now: groups
// are joined there. After an error it is called again, when that may help. It runs on the loop.
func (e *Engine) ReaddressNamespace(n *nic.NIC, number ib.NetworkID, regroup [2]bool, move func() []int) error {
	a := e.net.namespaces[number]
	if a == nil {
		return fmt.Errorf("engine: there is no %v", number)
	}
	if e.net.acks.n > 0 {
		e.pay()
	}
	a.Flush()
	now := move()
	for _, fd := range a.wake {
		if !slices.Contains(now, fd) {
			delete(e.net.fds, int32(fd))
		}
	}
	var err error
	for _, fd := range now {
		if e.net.fds[int32(fd)] != a {
			if werr := e.watch(a, fd); werr != nil {
				err = werr
			}
		}
	}
	a.wake = now
	e.readdressNIC(n)
	return errors.Join(err, e.rejoinAt(n, regroup))
}

// rejoinAt has a NIC join its groups of these families, IPv4 and IPv6, again: at the interfaces that its addresses are at now. The error is the
// first.
func (e *Engine) rejoinAt(n *nic.NIC, families [2]bool) (first error) {
	c := e.cards.of[n]
	if c == nil || families == [2]bool{} {
		return nil
	}
	for gid := range n.Groups() {
		if families[familyOf(&gid)] {
			e.leave(c, gid)
			if err := e.join(c, gid); first == nil && err != nil {
				first = fmt.Errorf("engine: join %v again: %w", gid.Addr(), err)
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

// CountGroups is how many groups of IPv4 and of IPv6 a NIC is a member of. It runs on the loop.
func (e *Engine) CountGroups(n *nic.NIC) (count [2]int) {
	for gid := range n.Groups() {
		count[familyOf(&gid)]++
	}
	return count
}

// RemoveNamespace ends that; the port is closed. The NIC has no sessions any more. It runs on the loop.
func (e *Engine) RemoveNamespace(n *nic.NIC, number ib.NetworkID) {
	u := &e.net.underlays
	a := u.namespaces[number]
	if a == nil {
		return
	}
	if e.net.acks.n > 0 {
		e.pay() // the last message of a program that has ended
	}
	a.Flush()
	delete(u.namespaces, number)
	u.list = slices.DeleteFunc(slices.Clone(u.list), func(o *attached) bool { return o == a })
	for _, fd := range a.wake {
		delete(u.fds, int32(fd))
	}
	u.gone = u.gone.Add(a.Counters())
	p := a.underlay.(*portUnderlay)
	p.Close() // the poller forgets what is closed
	// A route that still leads here loses what it sends.
	a.underlay = closedUnderlay{}
	e.readdressNIC(n)
}

// A closedUnderlay is what routes lead to whose own underlay is closed.
type closedUnderlay struct{ roce.Nowhere }

func (closedUnderlay) features(*route, bool) uint32                     { return 0 }
func (closedUnderlay) maxBurst(uint32, bool) uint32                     { return remoteBurst }
func (closedUnderlay) hello(ib.NetworkID, *card, *transport.Burst) bool { return false }
func (closedUnderlay) join(netip.Addr) (int, error)                     { return -1, nil }
func (closedUnderlay) leave(netip.Addr)                                 {}
func (closedUnderlay) pollGroup(int) bool                               { return false }

// readdressNIC finds out again where packets arrive for a NIC.
func (e *Engine) readdressNIC(n *nic.NIC) {
	c := e.cards.of[n]
	if c == nil {
		return
	}
	for p, o := range e.cards.at {
		if o == c {
			delete(e.cards.at, p)
		}
	}
	e.cards.last = nil
	for _, p := range e.addresses(n) {
		e.cards.at[p] = c
	}
}

// atNamespace is the NIC that has an address in a network namespace; nil: none has.
func (e *Engine) atNamespace(a netip.Addr) *card {
	for number := range e.net.namespaces {
		if c := e.cards.at[place{number, ib.GIDOf(a)}]; c != nil {
			return c
		}
	}
	return nil
}
