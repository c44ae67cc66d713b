package engine

import (
	"fmt"
	"net/netip"

	"vrdma/internal/ib"
	"vrdma/internal/link"
	"vrdma/internal/overlay"
	"vrdma/internal/transport"
	"vrdma/internal/wire"
)

// outside is how bursts leave for other hosts: between the hosts' own addresses through the port,
// between those of a virtual network through the overlay. A VNI says which.
type outside struct {
	port *link.Port    // nil: there are no other hosts
	over *link.Overlay // nil: no virtual network is between hosts
	// When each was used last, where there are both: one that is silent is not read in every
	// pass, its sockets wake the loop.
	portAt, overAt ib.Time
	overFDs        map[int32]bool
	sites          sites // network namespaces, each the way of one NIC
}

// any reports whether there is a way to other hosts.
func (w *outside) any() bool { return w.port != nil || w.over != nil || len(w.sites.list) > 0 }

// lead reports whether r leads to another host, and there is a way.
func (w *outside) lead(r *route) bool {
	if !r.remote() {
		return false
	}
	if r.vni != 0 && !isSite(r.vni) {
		return w.over != nil
	}
	return w.portOf(r.vni) != nil
}

// send sends b between addresses, of a network if vni is not 0. What cannot be sent is lost, as on
// a wire.
func (w *outside) send(vni uint32, from, to netip.Addr, b *transport.Burst) {
	if vni == 0 {
		w.port.Send(from, to, b)
		return
	}
	if !isSite(vni) {
		w.over.Send(vni, from, to, b)
	} else if s := w.sites.of[vni]; s != nil {
		s.port.Send(from, to, b)
	}
}

func (w *outside) sendCNP(r *route, b *transport.Burst) {
	if r.vni != 0 && !isSite(r.vni) {
		w.over.SendCNP(r.vni, r.from, r.to, b.Src, b.Dst)
		return
	}
	if p := w.portOf(r.vni); p != nil {
		p.SendCNP(r.from, r.to, b.Src, b.Dst)
	}
}

// ready reports whether a task may send.
func (w *outside) ready(r *route) bool {
	if r.vni != 0 && !isSite(r.vni) {
		return w.over == nil || w.over.Ready()
	}
	p := w.portOf(r.vni)
	return p == nil || p.Ready()
}

// pending reports whether packets wait for a flush.
func (w *outside) pending() bool {
	if w.port != nil && w.port.Pending() || w.over != nil && w.over.Pending() {
		return true
	}
	for _, s := range w.sites.list {
		if s.port.Pending() {
			return true
		}
	}
	return false
}

// flush sends what waits, as far as the sockets take it.
func (w *outside) flush(now ib.Time) {
	if w.port != nil && w.port.Pending() {
		w.port.Flush()
		w.portAt = now
	}
	if w.over != nil && w.over.Pending() {
		w.over.Flush()
		w.overAt = now
	}
	for _, s := range w.sites.list {
		if s.port.Pending() {
			s.port.Flush()
			s.at = now
		}
	}
}

// moved is how many bytes have been sent and received.
func (w *outside) moved() (n uint64) {
	if w.port != nil {
		n = w.port.Moved()
	}
	if w.over != nil {
		n += w.over.Moved()
	}
	return n + w.sites.moved()
}

// woken notes that a socket is readable.
func (w *outside) woken(fd int32, now ib.Time) {
	if w.overFDs[fd] {
		w.overAt = now
	} else if s := w.sites.fds[fd]; s != nil {
		s.at = now
	} else {
		w.portAt = now
	}
}

// poll takes what has arrived at those that have been used lately, or at all.
func (e *Engine) poll(all bool) bool {
	w := &e.net.outside
	if w.over == nil && len(w.sites.list) == 0 {
		return w.port.Poll(e)
	}
	found := e.pollSites(all)
	if w.port != nil && (all || e.now-w.portAt <= quietAfter) && w.port.Poll(e) {
		w.portAt, found = e.now, true
	}
	if w.over != nil && (all || e.now-w.overAt <= quietAfter) && w.over.Poll(e) {
		w.overAt, found = e.now, true
	}
	return found
}

// AddOverlay has the engine serve virtual networks that are between hosts; wake are its descriptors,
// of which one is readable when something has arrived. window and flight are Options' Window and
// InFlight, where there is no port that has them already. It runs on the loop, once.
func (e *Engine) AddOverlay(o *link.Overlay, wake []int, window, flight uint32) error {
	n := &e.net
	if n.port == nil {
		e.opts.Window, e.opts.InFlight = window, flight
	}
	n.overFDs = make(map[int32]bool)
	for _, fd := range wake {
		if err := e.poller.watchSocket(fd); err != nil {
			return fmt.Errorf("engine: epoll: %w", err)
		}
		n.sockets[int32(fd)], n.overFDs[int32(fd)] = true, true
	}
	o.OnTooLong(e.noteTooLong)
	o.OnQuestion(func(vni uint32, a netip.Addr) bool { return e.cards.at[place{vni, ib.GIDOf(a)}] != nil })
	o.SetTap(n.tap)
	n.over = o
	return nil
}

// AddTunnel gives the overlay the tunnel that encrypted networks need. It runs on the loop, before the
// map that needs it.
func (e *Engine) AddTunnel(t link.Tunnel) error {
	n := &e.net
	if err := e.poller.watchSocket(t.FD()); err != nil {
		return fmt.Errorf("engine: epoll: %w", err)
	}
	n.sockets[int32(t.FD())], n.overFDs[int32(t.FD())] = true, true
	n.over.SetTunnel(t)
	return nil
}

// SetMap says who is where in virtual networks, after the Resolver knows. It runs on the loop.
func (e *Engine) SetMap(m *overlay.Map) {
	if o := e.net.over; o != nil {
		old := o.Members()
		o.SetMap(m)
		e.net.met.keep(old, m)
	}
	e.readdress()
	e.rejoin()
	e.eachRemote(func(t *task) {
		if t.route.vni != 0 {
			t.q.Transport().SetPath(e.path(t, &t.route, false))
		}
	})
}

// Features are those that this host has, for others to know.
func (e *Engine) Features() uint32 {
	f := uint32(features)
	if e.opts.NoFiller {
		f &^= wire.FeatureFiller | wire.FeatureLongFiller
	}
	return f
}

// overlayBurst is remoteBurst where every packet has a head before it: as many packets as one
// message of the kernel's holds, of this MTU.
func overlayBurst(mtu uint32, v4 bool) uint32 {
	head := uint32(overlay.Head6)
	if v4 {
		head = overlay.Head4
	}
	const roce = wire.BTHSize + wire.RETHSize + wire.ICRCSize
	return max(min(link.MaxMessage/(mtu+roce+head), link.MaxSegments), 1) * mtu
}

// ReceiveIn implements link.NetworkReceiver.
func (e *Engine) ReceiveIn(vni uint32, b *transport.Burst, ce bool) {
	if b.DGID.IsMulticast() {
		e.receiveGroup(vni, b)
		return
	}
	e.receive(vni, b, ce)
}

// CongestedIn implements link.NetworkReceiver.
func (e *Engine) CongestedIn(vni uint32, qp uint32, from, to ib.GID) { e.congested(vni, qp, from, to) }

var _ link.NetworkReceiver = (*Engine)(nil)
