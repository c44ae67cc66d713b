package simnet

import (
	"bytes"
	"fmt"
	"net/netip"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/wire"
)

// With Config.Packets bursts travel as on a link: split into RoCEv2 packets with headers and ICRC, each of which may be lost or
// damaged, and combined to bursts at the receiver. Damaged packets must be rejected.

// ownIDs is the range of IP identifications of a vrdma host's packets.
const ownIDs = 128

// A translator converts bursts to packets and back.
type translator struct {
	cut  roce.Cutter
	join roce.Joiner
	flow wire.Flow
	buf  []byte
}

// A datagram is a packet in transit.
type datagram struct {
	data     []byte
	src, dst netip.AddrPort
}

// launchPackets splits b into packets and launches them.
func (n *Net) launchPackets(to *Endpoint, b *transport.Burst) {
	t := &n.cutter
	if t.buf == nil {
		t.buf = make([]byte, roce.MaxMessage)
	}
	src := netip.AddrPortFrom(b.SGID.Addr(), 0xc000+uint16(b.Src&0x3fff))
	dst := netip.AddrPortFrom(b.DGID.Addr(), wire.Port)
	if b.Kind == transport.KindCNP {
		p := wire.MakeCNP(t.buf, b.Dst)
		t.cut.Seal(p, src, dst)
		n.launchPacket(to, p.Bytes(), src, dst)
		return
	}
	if err := t.cut.Start(b, src, dst); err != nil {
		panic(fmt.Sprintf("burst %+v: %v", b, err))
	}
	for {
		size, segment, err := t.cut.Next(t.buf, roce.MaxSegments)
		if err != nil {
			panic(fmt.Sprintf("burst %+v: %v", b, err))
		}
		if size == 0 {
			return
		}
		for at := 0; at < size; at += segment {
			n.launchPacket(to, t.buf[at:min(size, at+segment)], src, dst)
		}
	}
}

func (n *Net) launchPacket(to *Endpoint, data []byte, src, dst netip.AddrPort) {
	d := datagram{bytes.Clone(data), src, dst}
	if n.Rand.Float64() < n.Corrupt {
		for range 1 + n.Rand.IntN(3) {
			d.data[n.Rand.IntN(len(d.data))] ^= 1 << n.Rand.IntN(8)
		}
	}
	n.launch(flight{to: to, packet: &d, b: transport.Burst{Packets: 1}})
}

// arrive delivers what has arrived for a queue pair of l; a packet is converted to a burst first.
func (l *loop) arrive(f *flight) {
	if f.packet == nil {
		l.span.Reset()
		l.span.Add(f.data)
		f.b.Data = &l.span
		l.deliver(f.to, &f.b)
		return
	}
	t, d := &l.joiner, f.packet
	p, err := wire.Parse(d.data)
	if err != nil {
		l.count.Damaged++
		return
	}
	t.flow.Set(d.src, d.dst)
	if id, ok := t.flow.Check(p, 0); !ok || id >= ownIDs {
		l.count.Damaged++
		return
	}
	if !t.join.Begin(p, ib.GIDOf(d.src.Addr()), ib.GIDOf(d.dst.Addr())) {
		if !f.to.down {
			f.to.RcvdCNP++
			f.to.QP.Congested(f.to.now(), ib.GIDOf(d.src.Addr()))
		}
		return
	}
	b := t.join.Burst()
	b.CE = f.b.CE
	if b.Type != ib.UD {
		b.Src = f.to.QP.Snapshot().Attr.DestQPN
	}
	l.deliver(f.to, b)
}
