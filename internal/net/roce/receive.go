package roce

import (
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// inbound converts the packets that arrive at an underlay to bursts:
//
//	message of the kernel's ──▶ datagrams ──▶ opener: packet, checked ──▶ Joiner ──▶ Receiver
//
// Port and Overlay differ in their opener, which extracts a packet from a datagram.
type inbound struct {
	in   []Message
	join Joiner
	flow wire.Flow
	// Properties of the packet that the opener opened last.
	network    ib.NetworkID
	sgid, dgid ib.GID
	pair       uint64 // changes with source and destination address
	marked     bool   // the packet itself has the Congestion Experienced mark, not only its message
	id         uint16 // its IP identification, as far as the opener knows it
	// longID means that the burst passed to Receive began with an identification that no vrdma host uses.
	longID bool
}

// An opener extracts packets from datagrams.
type opener interface {
	// open extracts and checks the packet in a datagram of m. guess is the identification of the packet if all
	// of m was sent in one call. If ok is false, it has counted the reason.
	open(m *Message, data []byte, guess uint16) (pkt wire.Packet, ok bool)
	// middles joins the packets of the datagrams after pkt, the packet joined last, that differ from it only in
	// PSN and payload. It returns their number at the beginning of data.
	middles(pkt wire.Packet, data []byte, segment int, guess uint16) int
}

// take converts the datagrams of a message to bursts and passes them to r.
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
			count.RcvdCNP++ // the only opcode that is not part of a message
			r.Congested(network, pkt.BTH().DestQP(), in.sgid, in.dgid)
		}
	}
	if open {
		count.RcvdBursts++
		r.Receive(network, in.join.Burst(), ce)
	}
}
