package wire

import "encoding/binary"

// IPv4 is an IPv4 header without options, with the fields that RoCEv2 needs. Package roce sends and
// receives through UDP sockets, but captures contain the header and the ICRC covers it.
type IPv4 []byte

const (
	// IPv4Size is the length of an IPv4 header without options.
	IPv4Size = 20
	// ProtocolUDP is the protocol number of UDP in both versions of IP.
	ProtocolUDP = 17
	// DontFragment is the flag that RoCEv2 packets have set.
	DontFragment = 0x4000
	// DefaultTTL is the TTL that rxe and Linux sockets send.
	DefaultTTL = 64
)

const (
	ipv4Version  = 0
	ipv4TOS      = 1
	ipv4Length   = 2
	ipv4ID       = 4
	ipv4Fragment = 6
	ipv4TTL      = 8
	ipv4Protocol = 9
	ipv4Checksum = 10
	ipv4Src      = 12
	ipv4Dst      = 16
)

// IsValid reports whether h is a header without options, followed by its complete packet.
func (h IPv4) IsValid() bool {
	return len(h) >= IPv4Size && h[ipv4Version] == 0x45 && h.TotalLength() >= IPv4Size && h.TotalLength() <= len(h)
}

// Init sets the constant fields and clears the others.
func (h IPv4) Init() {
	clear(h[:IPv4Size])
	h[ipv4Version] = 0x45
	h[ipv4Protocol] = ProtocolUDP
}

// TOS returns the type of service; its lower two bits are ECN.
func (h IPv4) TOS() uint8 { return h[ipv4TOS] }

// SetTOS sets the type of service.
func (h IPv4) SetTOS(v uint8) { h[ipv4TOS] = v }

// TotalLength returns the length of header and payload.
func (h IPv4) TotalLength() int { return int(binary.BigEndian.Uint16(h[ipv4Length:])) }

// SetTotalLength sets the length of header and payload.
func (h IPv4) SetTotalLength(n int) { binary.BigEndian.PutUint16(h[ipv4Length:], uint16(n)) }

// ID returns the identification.
func (h IPv4) ID() uint16 { return binary.BigEndian.Uint16(h[ipv4ID:]) }

// SetID sets the identification.
func (h IPv4) SetID(v uint16) { binary.BigEndian.PutUint16(h[ipv4ID:], v) }

// Fragment returns the flags and the fragment offset.
func (h IPv4) Fragment() uint16 { return binary.BigEndian.Uint16(h[ipv4Fragment:]) }

// SetFragment sets flags and fragment offset.
func (h IPv4) SetFragment(v uint16) { binary.BigEndian.PutUint16(h[ipv4Fragment:], v) }

// TTL returns the time to live.
func (h IPv4) TTL() uint8 { return h[ipv4TTL] }

// SetTTL sets the time to live.
func (h IPv4) SetTTL(v uint8) { h[ipv4TTL] = v }

// Protocol returns the protocol number of the payload.
func (h IPv4) Protocol() uint8 { return h[ipv4Protocol] }

// Checksum returns the header checksum.
func (h IPv4) Checksum() uint16 { return binary.BigEndian.Uint16(h[ipv4Checksum:]) }

// SetChecksum sets the header checksum.
func (h IPv4) SetChecksum(v uint16) { binary.BigEndian.PutUint16(h[ipv4Checksum:], v) }

// Sum computes the header checksum, with the checksum field taken as zero.
func (h IPv4) Sum() uint16 {
	var sum uint32
	for i := 0; i < IPv4Size; i += 2 {
		if i != ipv4Checksum {
			sum += uint32(binary.BigEndian.Uint16(h[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Src returns the source address.
func (h IPv4) Src() [4]byte { return [4]byte(h[ipv4Src:]) }

// SetSrc sets the source address.
func (h IPv4) SetSrc(a [4]byte) { copy(h[ipv4Src:ipv4Dst], a[:]) }

// Dst returns the destination address.
func (h IPv4) Dst() [4]byte { return [4]byte(h[ipv4Dst:]) }

// SetDst sets the destination address.
func (h IPv4) SetDst(a [4]byte) { copy(h[ipv4Dst:IPv4Size], a[:]) }

// Payload returns the bytes after the header. IsValid must hold.
func (h IPv4) Payload() []byte { return h[IPv4Size:h.TotalLength()] }

// IPv6 is an IPv6 header without extensions. A GRH has the same layout (IBA 8.3).
type IPv6 []byte

// IPv6Size is the length of an IPv6 header.
const IPv6Size = 40

const (
	ipv6Class      = 0 // version, traffic class, flow label
	ipv6Length     = 4
	ipv6NextHeader = 6
	ipv6HopLimit   = 7
	ipv6Src        = 8
	ipv6Dst        = 24
)

// IsValid reports whether h is a header followed by its complete packet.
func (h IPv6) IsValid() bool {
	return len(h) >= IPv6Size && h[ipv6Class]>>4 == 6 && IPv6Size+h.PayloadLength() <= len(h)
}

// Init sets the constant fields and clears the others.
func (h IPv6) Init() {
	clear(h[:IPv6Size])
	h[ipv6Class] = 0x60
	h[ipv6NextHeader] = ProtocolUDP
}

// TrafficClass returns the traffic class; its lower two bits are ECN.
func (h IPv6) TrafficClass() uint8 { return uint8(binary.BigEndian.Uint16(h[ipv6Class:]) >> 4) }

// SetTrafficClass sets the traffic class.
func (h IPv6) SetTrafficClass(v uint8) {
	h[0] = h[0]&0xf0 | v>>4
	h[1] = h[1]&0x0f | v<<4
}

// FlowLabel returns the flow label.
func (h IPv6) FlowLabel() uint32 { return uint24(h[1:]) & 0xfffff }

// SetFlowLabel sets the flow label.
func (h IPv6) SetFlowLabel(v uint32) {
	h[1] = h[1]&0xf0 | byte(v>>16)&0x0f
	h[2], h[3] = byte(v>>8), byte(v)
}

// PayloadLength returns the length of the payload.
func (h IPv6) PayloadLength() int { return int(binary.BigEndian.Uint16(h[ipv6Length:])) }

// SetPayloadLength sets the length of the payload.
func (h IPv6) SetPayloadLength(n int) { binary.BigEndian.PutUint16(h[ipv6Length:], uint16(n)) }

// NextHeader returns the protocol number of the payload.
func (h IPv6) NextHeader() uint8 { return h[ipv6NextHeader] }

// SetNextHeader sets the protocol number of the payload.
func (h IPv6) SetNextHeader(v uint8) { h[ipv6NextHeader] = v }

// HopLimit returns the hop limit.
func (h IPv6) HopLimit() uint8 { return h[ipv6HopLimit] }

// SetHopLimit sets the hop limit.
func (h IPv6) SetHopLimit(v uint8) { h[ipv6HopLimit] = v }

// Src returns the source address.
func (h IPv6) Src() [16]byte { return [16]byte(h[ipv6Src:]) }

// SetSrc sets the source address.
func (h IPv6) SetSrc(a [16]byte) { copy(h[ipv6Src:ipv6Dst], a[:]) }

// Dst returns the destination address.
func (h IPv6) Dst() [16]byte { return [16]byte(h[ipv6Dst:]) }

// SetDst sets the destination address.
func (h IPv6) SetDst(a [16]byte) { copy(h[ipv6Dst:IPv6Size], a[:]) }

// Payload returns the bytes after the header. IsValid must hold.
func (h IPv6) Payload() []byte { return h[IPv6Size : IPv6Size+h.PayloadLength()] }
