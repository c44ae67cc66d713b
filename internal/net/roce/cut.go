package roce

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

const (
	// MaxMessage is the maximum number of bytes in one send call: the payload of an IPv4 datagram.
	MaxMessage = 65535 - wire.IPv4Size - wire.UDPSize
	// MaxSegments is the maximum number of packets in one send call that every kernel with GSO accepts.
	MaxSegments = 64
)

// A Cutter splits bursts into packets, in runs that one send call can carry: packets of equal length, of
// which the last may be shorter. The first packet of a WRITE is longer than the others by its RETH, so a
// run ends after the second packet. If the peer understands filler, the Cutter makes the others equally
// long instead. If it understands long filler, the last packet of a message is also made that long,
// provided that it has half the length and that another message follows or a run is in progress.
//
// The identification of a run's packets counts from zero, as the kernel sets it.
type Cutter struct {
	way        // the path of bursts
	alone  way // the path of single packets, which may be sent in the middle of a burst
	b      *transport.Burst
	packet uint32 // the next packet to write
	data   source
	filler bool // dst understands filler
	long   bool // dst understands long filler
	// head is written before every packet; nil: nothing. With a head the identification is 0.
	head *overlay.Template
	even int // target length of full packets of b; 0: no filler
	// The run that Next continues: its number of packets and their length.
	begun, segment int
}

// A way is a pair of addresses with the ICRC state for packets between them.
type way struct {
	flow     wire.Flow
	src, dst netip.AddrPort
}

// aim prepares w for packets from src to dst.
func (w *way) aim(src, dst netip.AddrPort) {
	if w.src != src || w.dst != dst {
		w.flow.Set(src, dst)
		w.src, w.dst = src, dst
	}
}

// Start starts with b, which must not change until Next has returned everything.
func (c *Cutter) Start(b *transport.Burst, src, dst netip.AddrPort) error {
	c.b, c.packet = nil, 0
	c.begun, c.segment = 0, 0
	c.aim(src, dst)
	if err := check(b); err != nil {
		return err
	}
	c.b = b
	c.data.start(b.Data)
	c.even = 0
	if c.filler && carriesData(b.Kind) && b.Type != ib.UD {
		c.even = wire.Size(opcodeOf(b.Type, b.Kind, wire.First), int(b.MTU))
		if c.long && b.MTU >= evenMTU && b.Kind != transport.KindReadResp {
			c.even += wire.ImmDtSize // as long as with an immediate value, so that both kinds share a run
		}
	}
	return nil
}

// Seal sets the ICRC of a single packet.
func (c *Cutter) Seal(p wire.Packet, src, dst netip.AddrPort) {
	c.alone.aim(src, dst)
	c.alone.flow.Seal(p, 0)
}

// check rejects malformed bursts. They are bugs of this daemon, not input from the network.
func check(b *transport.Burst) error {
	n := 0
	if b.Data != nil {
		n = b.Data.Len()
	}
	switch {
	case opcodeOf(b.Type, b.Kind, wire.Only) == never:
		return fmt.Errorf("burst of type %d and kind %d has no packets", b.Type, b.Kind)
	case !carriesData(b.Kind) || b.Type == ib.UD:
		if b.Packets != 1 || !b.First || !b.Last {
			return fmt.Errorf("burst of type %d and kind %d with %d packets, first %v, last %v; it takes exactly one", b.Type, b.Kind, b.Packets, b.First, b.Last)
		}
		if b.Type != ib.UD && n != 0 {
			return fmt.Errorf("burst of kind %d with %d bytes of data; it takes none", b.Kind, n)
		}
	case b.Packets > 1 && (b.MTU == 0 || uint64(n) > uint64(b.Packets)*uint64(b.MTU) || uint64(n) <= uint64(b.Packets-1)*uint64(b.MTU)):
		return fmt.Errorf("burst of %d bytes in %d packets at an MTU of %d", n, b.Packets, b.MTU)
	case !b.Last && uint64(n) != uint64(b.Packets)*uint64(b.MTU):
		return fmt.Errorf("burst of %d bytes in %d packets at an MTU of %d, none of them a message's last; all must be full", n, b.Packets, b.MTU)
	case b.Packets == 0:
		return fmt.Errorf("burst of type %d and kind %d without packets", b.Type, b.Kind)
	}
	if b.Packets == 1 && n > wire.MaxPayload || b.Packets > 1 && b.MTU > wire.MaxPayload {
		return fmt.Errorf("burst of %d bytes in %d packets: no packet carries more than %d", n, b.Packets, wire.MaxPayload)
	}
	return nil
}

// evenMTU is the smallest MTU at which packets without immediate data get the length of packets with it. With
// a smaller MTU, a kernel message would hold one packet less.
const evenMTU = 2048

// Follow makes the next call of Next continue a run of so many packets of this length, if the rest of the
// burst begins with a packet that is not longer. It reports whether it does.
func (c *Cutter) Follow(packets, segment int) bool {
	if c.b == nil {
		return false
	}
	if op, size, filler := c.peek(segment); wire.Size(op, size)+filler+c.before() > segment {
		return false
	}
	c.begun, c.segment = packets, segment
	return true
}

// before returns the number of bytes before every packet.
func (c *Cutter) before() int {
	if c.head == nil {
		return 0
	}
	return c.head.Size()
}

// Next writes the next run, of at most limit packets, to buf, which has MaxMessage bytes or space for one
// packet. n is the run's length, 0 after the last run, and segment the length of its packets. An error means
// that the sender's memory could not be read.
func (c *Cutter) Next(buf []byte, limit int) (n, segment int, err error) {
	id := c.begun
	segment = c.segment
	c.begun, c.segment = 0, 0
	before := c.before()
	for ; c.b != nil && id < limit; id++ {
		op, size, filler := c.peek(segment)
		length := before + wire.Size(op, size) + filler
		if id > 0 && length > segment || n+length > min(len(buf), MaxMessage) {
			break
		}
		p := wire.MakeFilled(buf[n+before:], op, size, filler)
		if err := c.write(p); err != nil {
			c.b = nil
			return 0, 0, err
		}
		if c.head == nil {
			c.flow.Seal(p, uint16(id))
		} else {
			c.head.Put(buf[n:], length-before)
			c.flow.Seal(p, 0)
		}
		if c.b.Damaged {
			p.Bytes()[len(p.Bytes())-1] ^= 0xff // a byte of the ICRC
		}
		n += length
		if c.packet++; c.packet == c.b.Packets {
			c.b = nil
		}
		if id == 0 {
			segment = length
		} else if length < segment {
			break
		}
		if c.b != nil {
			k, err := c.middles(p, buf[n:min(len(buf), MaxMessage)], id+1, limit)
			if err != nil {
				c.b = nil
				return 0, 0, err
			}
			n += k * length
			id += k
		}
	}
	return n, segment, nil
}

// middles writes the packets after p that differ from it only in PSN and payload, as far as there is space,
// and returns their number. The first has identification id.
func (c *Cutter) middles(p wire.Packet, buf []byte, id, limit int) (k int, err error) {
	// The burst's last packet may be shorter, request an acknowledgement, or end the message.
	before := c.before()
	length := before + len(p.Bytes())
	most := min(limit-id, int(c.b.Packets-c.packet)-1, len(buf)/length)
	if most <= 0 {
		return 0, nil
	}
	s, ok := c.flow.Series(p)
	if !ok {
		return 0, nil
	}
	for ; k < most; k++ {
		at := k * length
		q := s.Make(buf[at+before:])
		i := uint16(id + k)
		if c.head != nil {
			c.head.Put(buf[at:], s.Size())
			i = 0
		}
		if b := c.data.whole(len(q.Payload())); b != nil {
			s.Fill(b, i)
			continue
		}
		if err := c.data.read(q.Payload()); err != nil {
			return k, err
		}
		s.Seal(i)
	}
	c.packet += uint32(k)
	return k, nil
}

// peek returns opcode, payload length and filler of the next packet in a run of packets of length segment; 0 starts a run.
func (c *Cutter) peek(segment int) (op wire.Opcode, size, filler int) {
	b := c.b
	position := wire.Middle
	if b.First && c.packet == 0 {
		position |= wire.First
	}
	if b.Last && c.packet == b.Packets-1 {
		position |= wire.Last
	}
	size = c.data.left
	if b.Packets > 1 {
		size = min(size, int(b.MTU))
	}
	if b.Kind == transport.KindAtomicWrite {
		size = 8
	}
	op = opcodeOf(b.Type, b.Kind, position)
	if c.even > 0 {
		if length := wire.Size(op, size); size == int(b.MTU) {
			filler = max(c.even-length, 0)
		} else if c.long && length < c.even && 2*length >= c.even && (segment == c.before()+c.even || segment == 0 && c.more()) {
			filler = c.even - length
		}
	}
	return op, size, filler
}

// more reports whether another message follows b. A request that ends a message without an ACK request implies that.
func (c *Cutter) more() bool {
	return c.b.Type == ib.RC && !c.b.AckReq && c.b.Kind != transport.KindReadResp
}

// write fills in p.
func (c *Cutter) write(p wire.Packet) error {
	b := c.b
	final := c.packet == b.Packets-1
	h := p.BTH()
	h.SetSolicited(b.Solicited && final)
	h.SetMigrated(b.Migrated)
	h.SetPKey(b.PKey)
	h.SetDestQP(b.Dst)
	h.SetAckReq(b.AckReq && final)
	h.SetPSN(b.PSN + c.packet)
	if p.Format().Headers != 0 {
		writeHeaders(p, b)
	}
	if b.Kind == transport.KindAtomicWrite {
		binary.NativeEndian.PutUint64(p.Payload(), b.Swap)
		return nil
	}
	return c.data.read(p.Payload())
}

// writeHeaders fills in the extended headers of p.
func writeHeaders(p wire.Packet, b *transport.Burst) {
	if h := p.RETH(); h != nil {
		h.SetVA(b.VA)
		h.SetRKey(b.RKey)
		h.SetLength(b.Length)
	}
	if h := p.AETH(); h != nil {
		h.SetSyndrome(b.Syndrome)
		h.SetMSN(b.MSN)
	}
	if h := p.ImmDt(); h != nil {
		binary.NativeEndian.PutUint32(h, b.Imm)
	}
	if h := p.DETH(); h != nil {
		h.SetQKey(b.QKey)
		h.SetSrcQP(b.Src)
	}
	if h := p.IETH(); h != nil {
		h.SetRKey(b.Imm)
	}
	if h := p.AtomicETH(); h != nil {
		h.SetVA(b.VA)
		h.SetRKey(b.RKey)
		h.SetSwap(b.Swap)
		h.SetCompare(b.Compare)
	}
	if h := p.AtomicAckETH(); h != nil {
		h.SetOrig(b.Orig)
	}
	if h := p.FETH(); h != nil {
		h.SetBits(b.Imm)
	}
}

// source reads a span sequentially.
type source struct {
	pieces   []memory.Piece
	off      int // offset in the first piece
	left     int
	copier   memory.Copier
	from, to memory.Span // for pieces that only copy calls can reach
}

func (s *source) start(span *memory.Span) {
	s.pieces, s.off, s.left = nil, 0, 0
	if span != nil {
		s.pieces, s.left = span.Pieces(), span.Len()
	}
}

// read fills b.
func (s *source) read(b []byte) error {
	for len(b) > 0 {
		p := &s.pieces[0]
		n := min(len(b), p.Len-s.off)
		if p.Mem != nil {
			copy(b[:n], p.Mem[s.off:])
		} else if err := s.foreign(b[:n], p); err != nil {
			return err
		}
		b = b[n:]
		s.left -= n
		if s.off += n; s.off == p.Len {
			s.pieces, s.off = s.pieces[1:], 0
		}
	}
	return nil
}

// whole returns the next n bytes without copying if they lie in one mapped piece. Otherwise it returns nil and reads nothing.
func (s *source) whole(n int) []byte {
	p := &s.pieces[0]
	if p.Mem == nil || p.Len-s.off < n {
		return nil
	}
	b := p.Mem[s.off : s.off+n]
	s.left -= n
	if s.off += n; s.off == p.Len {
		s.pieces, s.off = s.pieces[1:], 0
	}
	return b
}

func (s *source) foreign(b []byte, p *memory.Piece) error {
	s.from.Reset()
	s.from.AddForeign(p.Space, p.Addr+uint64(s.off), len(b))
	s.to.Reset()
	s.to.Add(b)
	_, err := s.copier.Copy(&s.to, &s.from)
	return err
}
