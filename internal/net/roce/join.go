package roce

import (
	"encoding/binary"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// A Joiner combines consecutive packets of a message into one burst without copying: the burst's data refers
// to the payloads in place. Call Begin, then Extend as long as it returns true; Burst returns the result. The
// packets have been checked before.
//
// A packet of a connected service does not contain the sending queue pair: Src of its burst is 0, and the
// receiver fills it in.
type Joiner struct {
	b    transport.Burst
	data memory.Span
	op   wire.Operation
	size int // payload length of the burst's first packet
	last int // payload length of the burst's last packet
}

// Begin starts a burst with p. It returns false if p is not part of a message: a CNP.
func (j *Joiner) Begin(p wire.Packet, sgid, dgid ib.GID) bool {
	h := p.BTH()
	m := meanings[h.Opcode()]
	if m.kind == 0 {
		return false
	}
	f := p.Format()
	j.op = f.Operation
	j.b = transport.Burst{
		Type: m.typ, Kind: m.kind, First: f.Position&wire.First != 0, Last: f.Position&wire.Last != 0,
		AckReq: h.AckReq(), Solicited: h.Solicited(), Migrated: h.Migrated(),
		Dst: h.DestQP(), SGID: sgid, DGID: dgid, PKey: h.PKey(), PSN: h.PSN(), Packets: 1,
	}
	if f.Headers != 0 {
		j.readHeaders(p)
	}
	j.data.Reset()
	j.size, j.last = 0, 0
	if m.kind == transport.KindAtomicWrite {
		j.b.Swap = binary.NativeEndian.Uint64(p.Payload())
	} else {
		payload := p.Payload()
		j.data.Add(payload)
		j.size = len(payload)
		j.last = j.size
	}
	j.b.MTU = uint32(j.size)
	return true
}

// Extend adds p to the burst if p is the next packet of the same message between the same addresses.
func (j *Joiner) Extend(p wire.Packet) bool {
	h := p.BTH()
	m := meanings[h.Opcode()]
	f := p.Format()
	b := &j.b
	if m.kind == 0 || m.typ != b.Type || f.Operation != j.op || !carriesData(m.kind) ||
		b.Last || f.Position&wire.First != 0 ||
		h.PSN() != (b.PSN+b.Packets)&ib.PSNMask || h.DestQP() != b.Dst || h.PKey() != b.PKey || h.Migrated() != b.Migrated ||
		// Only the last packet of a burst can have these flags.
		b.AckReq || b.Solicited {
		return false
	}
	payload := p.Payload()
	final := f.Position&wire.Last != 0
	// All packets of a message are full, except for the last, which is not empty.
	if j.last != j.size || len(payload) == 0 || len(payload) > j.size || !final && len(payload) != j.size {
		return false
	}
	if a := p.AETH(); a != nil {
		if b.First && (a.Syndrome() != b.Syndrome || a.MSN() != b.MSN) {
			return false
		}
	}
	if f.Headers != 0 {
		j.readHeaders(p)
	}
	j.data.Add(payload)
	j.last = len(payload)
	b.Packets++
	b.Last = final
	b.AckReq, b.Solicited = h.AckReq(), h.Solicited()
	if final {
		b.Kind = m.kind
	}
	return true
}

// goesOn reports whether Extend would accept another packet like the last one, with the next PSN.
func (j *Joiner) goesOn() bool {
	return !j.b.Last && !j.b.AckReq && !j.b.Solicited && j.last == j.size && j.size > 0
}

// again is Extend for a packet that differs from the last one only in PSN and payload, if goesOn is true.
func (j *Joiner) again(payload []byte) {
	j.data.Add(payload)
	j.b.Packets++
}

// Burst returns the burst that Begin and Extend built. It is valid until the next Begin, and its data as long as
// the packets are.
func (j *Joiner) Burst() *transport.Burst {
	j.b.Data = &j.data
	return &j.b
}

// readHeaders copies the fields of p's extended headers.
func (j *Joiner) readHeaders(p wire.Packet) {
	b := &j.b
	if h := p.RETH(); h != nil {
		b.VA, b.RKey, b.Length = h.VA(), h.RKey(), h.Length()
	}
	if h := p.AETH(); h != nil {
		b.Syndrome, b.MSN = h.Syndrome(), h.MSN()
	}
	if h := p.ImmDt(); h != nil {
		b.Imm = binary.NativeEndian.Uint32(h)
	}
	if h := p.DETH(); h != nil {
		b.QKey, b.Src = h.QKey(), h.SrcQP()
	}
	if h := p.IETH(); h != nil {
		b.Imm = h.RKey()
	}
	if h := p.AtomicETH(); h != nil {
		b.VA, b.RKey, b.Swap, b.Compare = h.VA(), h.RKey(), h.Swap(), h.Compare()
	}
	if h := p.AtomicAckETH(); h != nil {
		b.Orig = h.Orig()
	}
	if h := p.FETH(); h != nil {
		b.Imm = h.Bits()
	}
}
