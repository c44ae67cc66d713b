package wire

import (
	"encoding/binary"
	"errors"
)

const (
	// ICRCSize is the length of the invariant CRC at the end of every packet.
	ICRCSize = 4
	// MaxPayload is the largest path MTU.
	MaxPayload = 4096
	// MaxPacket is the length of the longest packet: the payload and the longest
	// headers that go with one.
	MaxPacket = BTHSize + RETHSize + ImmDtSize + MaxPayload + ICRCSize
)

// Why a datagram is no RoCEv2 packet.
var (
	// ErrShort: shorter than its headers and the ICRC.
	ErrShort = errors.New("wire: packet is shorter than its headers")
	// ErrVersion: a transport header version other than 0.
	ErrVersion = errors.New("wire: unknown transport header version")
	// ErrOpcode: an opcode that vrdma does not know.
	ErrOpcode = errors.New("wire: unknown opcode")
	// ErrLength: not a multiple of four, more padding than payload, more payload than
	// 4096 bytes or filler than the longest packet has room for, or a payload where none
	// belongs.
	ErrLength = errors.New("wire: packet length does not fit its opcode")
)

// Packet is a view of one packet, from BTH to ICRC. It has been checked: every header
// that its opcode calls for is there.
type Packet struct {
	data   []byte
	format *Format
	tail   int // between payload and ICRC: padding and filler
}

// Parse checks the payload of a UDP datagram. The ICRC is Flow's business.
func Parse(data []byte) (Packet, error) {
	if len(data) < BTHSize+ICRCSize {
		return Packet{}, ErrShort
	}
	b := BTH(data)
	if !b.IsValid() {
		return Packet{}, ErrVersion
	}
	f := byOpcode[b.Opcode()]
	if f == nil {
		return Packet{}, ErrOpcode
	}
	room := len(data) - f.size - ICRCSize // payload and pad
	if room < 0 {
		return Packet{}, ErrShort
	}
	tail := b.Pad()
	if k := b.Filler(); k > MaxFiller {
		tail += longFiller(data[:len(data)-ICRCSize], room-tail)
	} else if k != 0 && isFilled(data[:len(data)-ICRCSize], k, room-tail) {
		tail += k
	}
	n := room - tail
	if room%4 != 0 || n < 0 || n > MaxPayload || len(data) > MaxPacket || f.payload != anyPayload && (n != f.payload || tail != 0) {
		return Packet{}, ErrLength
	}
	return Packet{data, f, tail}, nil
}

// pad is how many bytes bring n up to a multiple of four.
func pad(n int) int { return -n & 3 }

// Size is the length of a packet of opcode o with n bytes of payload. The opcode has to
// be a known one.
func Size(o Opcode, n int) int { return byOpcode[o].size + n + pad(n) + ICRCSize }

// Make lays a packet of opcode o with n bytes of payload out at the beginning of buf.
// Opcode and pad count are set, all else in the headers is zero; payload and ICRC
// are whatever stood there. The opcode has to be a known one and buf long enough: both
// are the caller's own.
func Make(buf []byte, o Opcode, n int) Packet { return MakeFilled(buf, o, n, 0) }

// MakeFilled is Make for a packet that is longer by so many bytes of filler, a multiple of four.
func MakeFilled(buf []byte, o Opcode, n, filler int) Packet {
	f := byOpcode[o]
	k := pad(n)
	data := buf[:f.size+n+k+filler+ICRCSize]
	clear(data[:f.size])
	clear(data[f.size+n : f.size+n+k])
	if f.payload == cnpReserved {
		clear(data[f.size : f.size+n])
	}
	b := BTH(data)
	b.SetOpcode(o)
	b.SetPad(k)
	switch fill := data[f.size+n+k : len(data)-ICRCSize]; {
	case filler > MaxFiller:
		b.SetFiller(bthFillerMask * fillerWord)
		putLongFiller(fill)
	case filler != 0:
		b.SetFiller(filler)
		putFiller(fill)
	}
	return Packet{data, f, k + filler}
}

// MakeCNP lays a congestion notification for queue pair qp out at the beginning of buf.
func MakeCNP(buf []byte, qp uint32) Packet {
	p := Make(buf, CNP, cnpReserved)
	b := p.BTH()
	b.SetPKey(0xffff)
	b.SetBECN(true)
	b.SetDestQP(qp)
	return p
}

// Bytes is the whole packet.
func (p Packet) Bytes() []byte { return p.data }

// Format is what the opcode stands for.
func (p Packet) Format() *Format { return p.format }

// BTH is the base transport header.
func (p Packet) BTH() BTH { return BTH(p.data[:BTHSize]) }

// Payload is the data, without padding and filler.
func (p Packet) Payload() []byte { return p.data[p.format.size : len(p.data)-ICRCSize-p.tail] }

// Filler is how many bytes of filler there are.
func (p Packet) Filler() int { return p.tail - BTH(p.data).Pad() }

// ICRC is the invariant CRC as a number. It stands on the wire least significant byte
// first.
func (p Packet) ICRC() uint32 { return binary.LittleEndian.Uint32(p.data[len(p.data)-ICRCSize:]) }

// SetICRC sets the invariant CRC.
func (p Packet) SetICRC(v uint32) { binary.LittleEndian.PutUint32(p.data[len(p.data)-ICRCSize:], v) }

// The numbers of the headers' bits.
const (
	numDETH = iota
	numFETH
	numRETH
	numAtomicETH
	numAETH
	numAtomicAckETH
	numImmDt
	numIETH
)

// header is the header with the given bit number, nil if the opcode has none.
func (p Packet) header(n int) []byte {
	at := int(p.format.offset[n])
	if at == 0 {
		return nil
	}
	return p.data[at : at+int(headerSize[n])]
}

// DETH is the datagram header, nil if the opcode has none.
func (p Packet) DETH() DETH { return p.header(numDETH) }

// FETH is the flush header, nil if the opcode has none.
func (p Packet) FETH() FETH { return p.header(numFETH) }

// RETH is the RDMA header, nil if the opcode has none.
func (p Packet) RETH() RETH { return p.header(numRETH) }

// AtomicETH is the atomic header, nil if the opcode has none.
func (p Packet) AtomicETH() AtomicETH { return p.header(numAtomicETH) }

// AETH is the acknowledge header, nil if the opcode has none.
func (p Packet) AETH() AETH { return p.header(numAETH) }

// AtomicAckETH is the former value, nil if the opcode has none.
func (p Packet) AtomicAckETH() AtomicAckETH { return p.header(numAtomicAckETH) }

// ImmDt is the immediate data, nil if the opcode has none.
func (p Packet) ImmDt() ImmDt { return p.header(numImmDt) }

// IETH is the invalidate header, nil if the opcode has none.
func (p Packet) IETH() IETH { return p.header(numIETH) }
