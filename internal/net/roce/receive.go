package roce

import (
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// inbound makes bursts of the packets that arrive at an underlay:
//
//	message of the kernel's ──▶ datagrams ──▶ opener: packet, checked ──▶ Joiner ──▶ Receiver
//
// Port and Overlay differ in how a datagram becomes a packet, which is their opener.
type inbound struct {
	in   []Message
	join Joiner
	flow wire.Flow
	// What the opener says of the packet that it opened last.
	network    ib.NetworkID
	sgid, dgid ib.GID
	pair       uint64 // changes with the two addresses that packets travel between
	marked     bool   // the packet itself bears Congestion Experienced, not only its message
	id         uint16 // its IP identification, as far as the opener knows it
	// longID says whether the burst that Receive is called with began with an identification
	// that no vrdma host sends.
	longID bool
}

// An opener turns datagrams into packets.
type opener interface {
	// open finds the packet in a datagram of m and checks it. guess is the identification
	// that the packet has if all of m left in one call. It reports whether the packet is
	// good; else it has counted why not.
	open(m *Message, data []byte, guess uint16) (pkt wire.Packet, ok bool)
	// middles joins the packets of datagrams that follow that of pkt, the last that was
	// joined, and differ from it in nothing but PSN and payload. It returns how many
	// there are at the beginning of data.
	middles(pkt wire.Packet, data []byte, segment int, guess uint16) int
}

// take turns the datagrams of a message into bursts, which it hands to r.
func (in *inbound) take(o opener, m *Message, r Receiver, count *Counters) {
	segment := m.Segment
	if segment <= 0 || segment > len(m.Data) {
		segment = len(m.Data)
	}
	open, ce := false, false // a burst is being joined; it is marked
	var pair uint64
	var network ib.NetworkID
	guess := uint16(0)
	for at := 0; at < len(m.Data); at += segment {
		count.RcvdPackets++
		pkt, ok := o.open(m, m.Data[at:min(len(m.Data), at+segment)], guess)
		guess++
		if !ok {
			continue
		}
		if open && pair == in.pair && in.join.Extend(pkt) {
			ce = ce || in.marked
			if rest := m.Data[min(len(m.Data), at+segment):]; len(rest) > 0 {
				k := o.middles(pkt, rest, segment, guess)
				count.RcvdPackets += uint64(k)
				at += k * segment
				guess += uint16(k)
			}
			continue
		}
		if open {
			count.RcvdBursts++
			r.Receive(network, in.join.Burst(), ce)
		}
		ce, pair, network, in.longID = m.CE || in.marked, in.pair, in.network, in.id >= ownIDs
		if open = in.join.Begin(pkt, in.sgid, in.dgid); !open {
			count.RcvdCNP++ // the only opcode that is no message's
			r.Congested(network, pkt.BTH().DestQP(), in.sgid, in.dgid)
		}
	}
	if open {
		count.RcvdBursts++
		r.Receive(network, in.join.Burst(), ce)
	}
}
