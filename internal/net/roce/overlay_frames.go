package roce

import (
	"net/netip"

	"vrdma.dev/vrdma/internal/net/overlay"
)

// Frames receives the frames of virtual networks that are not for NICs of programs. The switch implements it.
type Frames interface {
	// Wants reports whether RoCEv2 packets for an address of a network are for a port of the switch.
	Wants(vni uint32, to netip.Addr) bool
	// Receive takes an Ethernet frame from a host that has members of the network, and copies it. It does not
	// block.
	Receive(vni uint32, from *overlay.Host, frame []byte)
}

// SetFrames sets the receiver of such frames.
func (o *Overlay) SetFrames(f Frames) { o.frames = f }

// SendFrame queues an Ethernet frame of a network for a host that has members of it, through the tunnel if the
// network is encrypted. A frame without a path or without space in the queue is dropped and counted.
func (o *Overlay) SendFrame(vni uint32, to *overlay.Host, frame []byte) {
	n := overlay.VXLANSize + len(frame)
	net, host := o.members.Network(vni), o.member(vni, to)
	if net == nil || host == nil || host.Self || n > MaxMessage || len(frame) < overlay.EthernetSize {
		o.plain.count.NoSource++
		return
	}
	out, m, limit := &o.plain, Message{Host: host, Inside: true}, o.bind.Segments()
	if net.Encrypted {
		if o.tunnel == nil {
			o.plain.count.NoSource++
			return
		}
		out, limit = &o.sealed, MaxSegments
	}
	var ok bool
	if m.Source, m.Local, m.Remote, ok = o.wayTo(host, pairHash(frame)); !ok {
		o.plain.count.NoSource++
		return
	}
	if !out.makeRoom() {
		out.count.SendFull++
		return
	}
	room := out.room[out.used : out.used+n]
	overlay.PutVXLAN(room, vni)
	copy(room[overlay.VXLANSize:], frame)
	if out.fits(&m, n, limit) {
		out.extend(n)
		return
	}
	m.Segment = n
	out.push(m, n)
}

// member returns a host of a network from the current map; nil if it is not in that network any more. The
// switch's map may be slightly newer or older.
func (o *Overlay) member(vni uint32, h *overlay.Host) *overlay.Host {
	for _, now := range o.members.Hosts(vni) {
		if now == h || now.Name == h.Name {
			return now
		}
	}
	return nil
}

// wayTo returns the addresses of the underlay that lead to a host: the first address of the host for which this
// host has one of the same family.
func (o *Overlay) wayTo(h *overlay.Host, hash uint32) (source int, local, remote netip.AddrPort, ok bool) {
	for _, to := range h.Addrs {
		if source, local, ok = o.sourceFor(to, hash); ok {
			return source, local, remoteAt(h, to), true
		}
	}
	return 0, netip.AddrPort{}, netip.AddrPort{}, false
}

// pairHash distributes the pairs of members over source ports and keeps the frames of a pair in order.
func pairHash(frame []byte) uint32 {
	h := uint32(2166136261)
	for _, b := range frame[:2*len(overlay.MAC{})] {
		h = (h ^ uint32(b)) * 16777619
	}
	return h >> 8
}

// fits reports whether a datagram of n bytes may leave in the same call as the message queued last. All datagrams
// of a message except the last have the same length.
func (o *outbox) fits(m *Message, n, limit int) bool {
	if len(o.queue) == 0 {
		return false
	}
	last := &o.queue[len(o.queue)-1]
	return last.Source == m.Source && last.Local == m.Local && last.Remote == m.Remote && last.Host == m.Host && last.Inside &&
		last.Segment > 0 && n <= last.Segment && len(last.Data)%last.Segment == 0 &&
		len(last.Data)/last.Segment < limit && len(last.Data)+n <= MaxMessage
}
