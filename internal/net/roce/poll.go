package roce

import (
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// Poll implements Underlay.
func (p *Port) Poll(r Receiver) bool {
	n, err := p.bind.Receive(p.in)
	for i := range n {
		m := &p.in[i]
		p.take(m, r)
		m.Data = m.Data[:receiveRoom]
	}
	return n > 0 && err == nil
}

// take checks the packets of a message and converts them to bursts.
func (p *Port) take(m *Message, r Receiver) {
	p.count.RcvdCalls++
	p.count.RcvdBytes += uint64(len(m.Data))
	if m.CE {
		p.count.RcvdMarked++
	}
	p.setFlow(m)
	if p.isSelf {
		p.count.RcvdPackets += uint64(packetsIn(m))
		p.count.FromSelf += uint64(packetsIn(m))
		return
	}
	p.inbound.take(p, m, r, &p.count)
}

// middles implements opener.
func (p *Port) middles(pkt wire.Packet, data []byte, _ int, guess uint16) (k int) {
	size := len(pkt.Bytes())
	if len(data) < size || p.tap != nil || !p.join.goesOn() {
		return 0
	}
	s, ok := p.flow.Series(pkt)
	if !ok {
		return 0
	}
	for ; len(data) >= size && guess < ownIDs; data = data[size:] {
		payload, ok := s.Check(data[:size], guess)
		if !ok {
			break
		}
		p.join.again(payload)
		guess++
		k++
	}
	return k
}

// open implements opener: it parses a packet and checks its ICRC. Packets of one send call have consecutive
// identifications, so the guess is mostly right.
func (p *Port) open(m *Message, data []byte, guess uint16) (wire.Packet, bool) {
	pkt, err := wire.Parse(data)
	if err != nil {
		p.count.Malformed++
		if p.tap != nil {
			p.tap.datagram(m, data, 0)
		}
		return pkt, false
	}
	if p.strange && !isHello(pkt) {
		p.count.WrongPort++
		if p.tap != nil {
			p.tap.datagram(m, data, 0)
		}
		if p.stranger != nil {
			p.stranger(m.Remote.Addr())
		}
		return pkt, false
	}
	id, ok := p.flow.Check(pkt, guess)
	p.id = id
	if p.tap != nil {
		p.tap.datagram(m, data, id)
	}
	if !ok || p.isOwn && id >= ownIDs && !isHello(pkt) {
		p.count.BadICRC++
		if ok && p.doubt != nil {
			p.doubt(m.Remote.Addr())
		}
		return pkt, false
	}
	return pkt, true
}

// isHello reports whether a packet is a hello. It may have any identification: its nonce authenticates it, and it
// may come from a host that is not a vrdma host any more.
func isHello(p wire.Packet) bool {
	return p.BTH().DestQP() == wire.GSIQP && len(p.Payload()) == wire.MADSize && wire.MAD(p.Payload()).Class() == wire.ClassHello
}

// setFlow prepares for packets from m's sender, which is mostly the previous sender.
func (p *Port) setFlow(m *Message) {
	if m.Remote == p.from && m.Local == p.to {
		return
	}
	p.from, p.to = m.Remote, m.Local
	p.flow.Set(m.Remote, m.Local)
	p.sgid, p.dgid = ib.GIDOf(m.Remote.Addr()), ib.GIDOf(m.Local.Addr())
	h := p.own[bare(m.Remote.Addr())]
	p.isOwn = h.shortIDs
	p.strange = !h.ports.Has(m.Remote.Port())
	_, _, p.isSelf = p.bind.Source(m.Remote.Addr(), 0)
}
