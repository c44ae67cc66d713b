package vswitch

import (
	"net/netip"

	"vrdma.dev/vrdma/internal/net/overlay"
)

// This file has the protocols that the switch answers itself: ARP, neighbour discovery, router solicitation, DHCP.

// serverMAC and server are the switch's own addresses as DHCP server. The address is link-local, so no NIC has it.
var (
	serverMAC = overlay.MAC{0x02, 0x56, 0xff, 0xff, 0xff, 0xfe}
	server    = netip.AddrFrom4([4]byte{169, 254, 0, 1})
)

// Types of ICMPv6.
const (
	routerSolicitation    = 133
	routerAdvertisement   = 134
	neighbourSolicitation = 135
	neighbourAdvertising  = 136
	redirect              = 137
	listenerFirst         = 130 // multicast listener query, report, done
	listenerLast          = 132
	listenerReport2       = 143
)

// isControl reports whether an ICMPv6 frame concerns the network itself.
func isControl(f *frame) bool {
	if f.l4 == 0 || f.l4 >= len(f.head) {
		return true
	}
	t := f.head[f.l4]
	return t >= routerSolicitation && t <= redirect || t >= listenerFirst && t <= listenerLast || t == listenerReport2
}

// answered answers a frame that is a request to the switch, and reports whether it was one.
func (p *Port) answered(w *worker, queue int) bool {
	f := &w.frame
	switch {
	case f.ether == etherARP, f.proto == protoICMP6 && f.l4 < len(f.head) && f.head[f.l4] == neighbourSolicitation:
		return p.whoHas(w, queue)
	case f.isDHCP():
		p.tell(w, queue, p.dhcp(w.answer[:], f))
	case f.isDHCP6():
		p.tell(w, queue, p.dhcp6(w.answer[:], f))
	case f.isRouterSolicitation():
		p.tell(w, queue, p.router(w.answer[:], f))
	default:
		return false
	}
	return true
}

// tell sends the first n bytes of the answer to the device at p, if n is positive.
func (p *Port) tell(w *worker, queue, n int) {
	if n > 0 {
		p.reply(w.answer[:n], queue, w.room())
	}
}

// vxlanSize is the size of the VXLAN header that package overlay writes before an answer.
const vxlanSize = overlay.VXLANSize

// whoHas answers a request for the MAC of an address.
func (p *Port) whoHas(w *worker, queue int) bool {
	q, ok := overlay.ParseNeighbour(w.frame.head)
	if !ok || !q.Asks {
		return true // an announcement: the switch does not learn addresses
	}
	mac, ok := p.macOf(q.Target)
	if !ok {
		return true // unknown address: no answer
	}
	n := overlay.PutAnswer(w.answer[:], 0, &q, mac)
	p.reply(w.answer[vxlanSize:n], queue, w.room())
	return true
}

// macOf returns the MAC of an address as the device at p should see it. It does not return p's own: a machine that asks for its own
// address checks for duplicates.
func (p *Port) macOf(a netip.Addr) (overlay.MAC, bool) {
	if a == server || a == serverLinkLocal {
		return serverMAC, true
	}
	if a.IsLinkLocalUnicast() {
		for _, o := range p.net.attached() {
			if o != p && o.linkLocal == a {
				return o.MAC, true
			}
		}
		return overlay.MAC{}, false
	}
	if o := p.net.at(a); o != nil {
		return o.MAC, o != p
	}
	if e := p.net.elsewhere(a); e != nil {
		return e.MAC, true
	}
	return overlay.MAC{}, false
}
