package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"vrdma/internal/hosts"
	"vrdma/internal/ib"
	"vrdma/internal/link"
	"vrdma/internal/nic"
	"vrdma/internal/transport"
)

// A site is the way of one NIC to others through a network namespace that is not the daemon's: a
// port whose sockets are there. It has a number where virtual networks have their VNI, so that the
// same address in two namespaces is two places. Who is a vrdma host is each site's own knowledge,
// because an address there means something else than here.
//
// Sites come and go while the loop runs: with the programs that use the NIC.
type site struct {
	e      *Engine
	number uint32
	port   *link.Port
	wake   []int
	peers  *hosts.Table // nil: every other host is foreign
	at     ib.Time      // when it was used last
}

// sites are all of them.
type sites struct {
	list []*site
	of   map[uint32]*site // by number
	fds  map[int32]*site
	gone link.Counters // of those that are closed
}

// Receive implements link.Receiver.
func (s *site) Receive(b *transport.Burst, ce bool) { s.e.receive(s.number, b, ce) }

// Congested implements link.Receiver.
func (s *site) Congested(qp uint32, from, to ib.GID) { s.e.congested(s.number, qp, from, to) }

// AddSite opens a NIC's way through a network namespace: a port there, its descriptors, of which one
// is readable when something has arrived, and its number, from nic.FirstSite on. The Resolver knows the
// NIC's addresses there. window and flight are Options' Window and InFlight, where nothing else has said
// them. It runs on the loop.
func (e *Engine) AddSite(n *nic.NIC, number uint32, p *link.Port, wake []int, window, flight uint32) error {
	w := &e.net.outside
	if w.sites.of[number] != nil || number < nic.FirstSite {
		return fmt.Errorf("engine: site %d is there already, or is none", number)
	}
	if w.sites.of == nil {
		w.sites.of, w.sites.fds = make(map[uint32]*site), make(map[int32]*site)
	}
	s := &site{e: e, number: number, port: p, wake: wake, at: e.now}
	for i, fd := range wake {
		if err := e.poller.watchSocket(fd); err != nil {
			for _, fd := range wake[:i] {
				e.forgetSocket(fd)
			}
			return fmt.Errorf("engine: epoll: %w", err)
		}
		e.net.sockets[int32(fd)], w.sites.fds[int32(fd)] = true, s
	}
	if e.opts.Window == 0 {
		e.opts.Window, e.opts.InFlight = window, flight
	}
	p.OnTooLong(e.noteTooLong)
	p.SetTap(e.net.tap)
	if e.opts.Recognise {
		s.peers = e.newPeers(number, p)
	}
	w.sites.of[number], w.sites.list = s, append(w.sites.list, s)
	e.readdressNIC(n)
	if err := e.rejoinAt(n, [2]bool{true, true}); err != nil {
		e.opts.Log.Warn("a NIC is not in all its multicast groups", "why", err)
	}
	return nil
}

// ReaddressSite is called when the NIC has other addresses, which the Resolver knows. move gives the site's port the sockets for them, and
// returns all descriptors that it has then; it closes those that it had for others. regroup says of IPv4 and IPv6 whether its addresses are at
// other interfaces now: groups are joined there. After an error it is called again, when that may help. It runs on the loop.
func (e *Engine) ReaddressSite(n *nic.NIC, number uint32, regroup [2]bool, move func() []int) error {
	w := &e.net.outside.sites
	s := w.of[number]
	if s == nil {
		return fmt.Errorf("engine: there is no site %d", number)
	}
	if e.net.acks.n > 0 {
		e.pay()
	}
	s.port.Flush()
	now := move()
	for _, fd := range s.wake {
		if !slices.Contains(now, fd) {
			e.forgetSocket(fd) // the poller forgets what is closed
		}
	}
	var err error
	for _, fd := range now {
		if w.fds[int32(fd)] == s {
			continue
		}
		if werr := e.poller.watchSocket(fd); werr != nil {
			err = fmt.Errorf("engine: epoll: %w", werr)
			continue
		}
		e.net.sockets[int32(fd)], w.fds[int32(fd)] = true, s
	}
	s.wake = now
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

// RemoveSite ends that; the port is closed. The NIC has no sessions any more. It runs on the loop.
func (e *Engine) RemoveSite(n *nic.NIC, number uint32) {
	w := &e.net.outside.sites
	s := w.of[number]
	if s == nil {
		return
	}
	if e.net.acks.n > 0 {
		e.pay() // the last message of a program that has ended
	}
	s.port.Flush()
	delete(w.of, number)
	w.list = slices.DeleteFunc(slices.Clone(w.list), func(o *site) bool { return o == s })
	for _, fd := range s.wake {
		e.forgetSocket(fd)
	}
	w.gone = w.gone.Add(s.port.Counters())
	s.port.Close() // the poller forgets what is closed
	e.readdressNIC(n)
}

// forgetSocket says that a descriptor is no socket of the network any more.
func (e *Engine) forgetSocket(fd int) {
	delete(e.net.sockets, int32(fd))
	delete(e.net.outside.sites.fds, int32(fd))
}

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

// moved is how many bytes have been sent and received at all sites.
func (w *sites) moved() (n uint64) {
	for _, s := range w.list {
		n += s.port.Moved()
	}
	return n + w.gone.SentBytes + w.gone.RcvdBytes
}

// counters are those of all sites.
func (w *sites) counters() link.Counters {
	c := w.gone
	for _, s := range w.list {
		c = c.Add(s.port.Counters())
	}
	return c
}

// pollSites takes what has arrived at those that have been used lately, or at all.
func (e *Engine) pollSites(all bool) (found bool) {
	for _, s := range e.net.sites.list {
		if (all || e.now-s.at <= quietAfter) && s.port.Poll(s) {
			s.at, found = e.now, true
		}
	}
	return found
}

// portOf is the port of the host, or of a site; nil: there is none.
func (w *outside) portOf(vni uint32) *link.Port {
	if vni == 0 {
		return w.port
	}
	if s := w.sites.of[vni]; s != nil {
		return s.port
	}
	return nil
}

// peersOf is who is known at the host's own addresses, at those of a site, or in a virtual network; nil: nobody is.
func (n *network) peersOf(vni uint32) *hosts.Table {
	if vni == 0 {
		return n.peers
	}
	if s := n.sites.of[vni]; s != nil {
		return s.peers
	}
	return n.met.in(vni)
}

// isSite reports whether a number is not that of the hosts' own network, nor a VNI.
func isSite(vni uint32) bool { return vni >= nic.FirstSite }

// atSite is the NIC that has an address at a site; nil: none has.
func (e *Engine) atSite(a netip.Addr) *card {
	for _, s := range e.net.sites.list {
		if c := e.cards.at[place{s.number, ib.GIDOf(a)}]; c != nil {
			return c
		}
	}
	return nil
}
