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
	// MaxPacket is the length of the longest packet: the largest payload with the longest headers that
	// can occur with it.
	MaxPacket = BTHSize + RETHSize + ImmDtSize + MaxPayload + ICRCSize
)

// Reasons why a datagram is not a RoCEv2 packet.
var (
	// ErrShort means that the datagram is shorter than its headers and the ICRC.
	ErrShort = errors.New("wire: packet is shorter than its headers")
	// ErrVersion means a transport header version other than 0.
	ErrVersion = errors.New("wire: unknown transport header version")
	// ErrOpcode means an opcode that vrdma does not know.
	ErrOpcode = errors.New("wire: unknown opcode")
	// ErrLength means that the length is not a multiple of four, or does not fit the opcode: more padding
	// than payload, more than 4096 bytes of payload, too much filler, or a payload where none is allowed.
	ErrLength = errors.New("wire: packet length does not fit its opcode")
)

// Packet is a view of one packet, from BTH to ICRC. Parse or Make guarantees that it has every header
// that its opcode requires.
type Packet struct {
	data   []byte
	format *Format
	tail   int // bytes between payload and ICRC: padding and filler
}

// Parse checks the payload of a UDP datagram. It does not check the ICRC; Flow.Check does.
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
	room := len(data) - f.size - ICRCSize // payload, pad and filler
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

// pad returns the number of bytes that extend n to a multiple of four.
func pad(n int) int { return -n & 3 }

// Size returns the length of a packet of opcode o with n bytes of payload. o must be a known opcode.
func Size(o Opcode, n int) int { return byOpcode[o].size + n + pad(n) + ICRCSize }

// Make creates a packet of opcode o with n bytes of payload at the beginning of buf. It sets opcode and
// pad count and clears the other header fields; payload and ICRC keep the previous content of buf. o must
// be a known opcode and buf long enough: both come from the caller, not from the network.
func Make(buf []byte, o Opcode, n int) Packet { return MakeFilled(buf, o, n, 0) }

// MakeFilled is Make for a packet with filler bytes of filler, a multiple of four.
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

// MakeCNP creates a congestion notification packet for queue pair qp at the beginning of buf.
func MakeCNP(buf []byte, qp uint32) Packet {
	p := Make(buf, CNP, cnpReserved)
	b := p.BTH()
	b.SetPKey(0xffff)
	b.SetBECN(true)
	b.SetDestQP(qp)
	return p
}

// Bytes returns the whole packet.
func (p Packet) Bytes() []byte { return p.data }

// Format returns the format of the opcode.
func (p Packet) Format() *Format { return p.format }

// BTH returns the base transport header.
func (p Packet) BTH() BTH { return BTH(p.data[:BTHSize]) }

// Payload returns the data, without padding and filler.
func (p Packet) Payload() []byte { return p.data[p.format.size : len(p.data)-ICRCSize-p.tail] }

// Filler returns the number of filler bytes.
func (p Packet) Filler() int { return p.tail - BTH(p.data).Pad() }

// ICRC returns the invariant CRC as a number. On the wire its least significant byte comes first.
func (p Packet) ICRC() uint32 { return binary.LittleEndian.Uint32(p.data[len(p.data)-ICRCSize:]) }

// SetICRC sets the invariant CRC.
func (p Packet) SetICRC(v uint32) { binary.LittleEndian.PutUint32(p.data[len(p.data)-ICRCSize:], v) }

// Bit numbers of the headers.
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

// header returns the header with the given bit number, or nil if the opcode has none.
func (p Packet) header(n int) []byte {
	at := int(p.format.offset[n])
	if at == 0 {
		return nil
	}
	return p.data[at : at+int(headerSize[n])]
}

// DETH returns the datagram header, nil if the opcode has none.
func (p Packet) DETH() DETH { return p.header(numDETH) }

// FETH returns the flush header, nil if the opcode has none.
func (p Packet) FETH() FETH { return p.header(numFETH) }

// RETH returns the RDMA header, nil if the opcode has none.
func (p Packet) RETH() RETH { return p.header(numRETH) }

// AtomicETH returns the atomic header, nil if the opcode has none.
func (p Packet) AtomicETH() AtomicETH { return p.header(numAtomicETH) }

// AETH returns the acknowledge header, nil if the opcode has none.
func (p Packet) AETH() AETH { return p.header(numAETH) }

// AtomicAckETH returns the header with the former value, nil if the opcode has none.
func (p Packet) AtomicAckETH() AtomicAckETH { return p.header(numAtomicAckETH) }

// ImmDt returns the immediate data, nil if the opcode has none.
func (p Packet) ImmDt() ImmDt { return p.header(numImmDt) }

// IETH returns the invalidate header, nil if the opcode has none.
func (p Packet) IETH() IETH { return p.header(numIETH) }
