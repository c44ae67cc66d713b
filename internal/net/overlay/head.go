package overlay

import (
	"encoding/binary"
	"net/netip"

	"vrdma.dev/vrdma/internal/net/wire"
)

// These headers precede a RoCEv2 packet in the payload of the outer UDP datagram:
//
//	 0  VXLAN     8  flags 08 (there is a VNI), VNI
//	 8  Ethernet 14  destination, source, what follows
//	22  IP       20  or 40
//	42  UDP       8  to port 4791, checksum zero
//	50  BTH …        70 with IPv6 inside
const (
	VXLANSize    = 8
	EthernetSize = 14
	ipStart      = VXLANSize + EthernetSize
	// Head4 and Head6 are the number of bytes before the BTH, by the version of the inner IP header.
	Head4 = ipStart + wire.IPv4Size + wire.UDPSize
	Head6 = ipStart + wire.IPv6Size + wire.UDPSize

	// Outer4 and Outer6 are the bytes that the overlay adds to an inner IP packet, by the version of the outer
	// IP header.
	Outer4 = wire.IPv4Size + wire.UDPSize + VXLANSize + EthernetSize
	Outer6 = wire.IPv6Size + wire.UDPSize + VXLANSize + EthernetSize

	hasVNI = 0x08

	etherStart = VXLANSize
	typeStart  = ipStart - 2

	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherARP  = 0x0806
)

// ECT0 is the ECN code point of both headers: ECN-capable. The kernel drops packets that are marked outside and not
// ECN-capable inside.
const ECT0 = 2

// A Head is the content of the headers before a RoCEv2 packet.
type Head struct {
	VNI      uint32
	To, From MAC
	Src, Dst netip.AddrPort
	// TOS is the type of service or the traffic class; its lower two bits are ECN. TTL is the time to live or the
	// hop limit.
	TOS, TTL uint8
	// ID and Fragment are fields of IPv4.
	ID, Fragment uint16
	// Label is the flow label of IPv6.
	Label uint32
}

// Size returns the size of the headers in bytes.
func (h *Head) Size() int {
	if h.Dst.Addr().Is4() {
		return Head4
	}
	return Head6
}

// Put writes h before a packet of n bytes and returns its size.
func (h *Head) Put(b []byte, n int) int {
	PutVXLAN(b, h.VNI)
	copy(b[etherStart:], h.To[:])
	copy(b[etherStart+6:], h.From[:])
	ip := b[ipStart:]
	size := h.Size()
	u := wire.UDP(b[size-wire.UDPSize : size])
	if size == Head4 {
		binary.BigEndian.PutUint16(b[typeStart:], etherIPv4)
		p := wire.IPv4(ip)
		p.Init()
		p.SetTOS(h.TOS)
		p.SetTotalLength(wire.IPv4Size + wire.UDPSize + n)
		p.SetID(h.ID)
		p.SetFragment(h.Fragment)
		p.SetTTL(h.TTL)
		p.SetSrc(h.Src.Addr().As4())
		p.SetDst(h.Dst.Addr().As4())
		p.SetChecksum(p.Sum())
	} else {
		binary.BigEndian.PutUint16(b[typeStart:], etherIPv6)
		p := wire.IPv6(ip)
		p.Init()
		p.SetTrafficClass(h.TOS)
		p.SetFlowLabel(h.Label)
		p.SetPayloadLength(wire.UDPSize + n)
		p.SetHopLimit(h.TTL)
		p.SetSrc(h.Src.Addr().As16())
		p.SetDst(h.Dst.Addr().As16())
	}
	u.SetSrcPort(h.Src.Port())
	u.SetDstPort(h.Dst.Port())
	u.SetLength(wire.UDPSize + n)
	u.SetChecksum(0)
	return size
}

// PutVXLAN writes the VXLAN header.
func PutVXLAN(b []byte, vni uint32) {
	binary.BigEndian.PutUint32(b, hasVNI<<24)
	binary.BigEndian.PutUint32(b[4:], vni<<8)
}

// A Kind is the kind of a datagram's content.
type Kind uint8

const (
	Bad       Kind = iota // malformed
	RoCE                  // a RoCEv2 packet
	Neighbour             // ARP or neighbour discovery
	Other                 // other traffic of Linux, which is ignored
)

// Parse decodes the headers of a datagram and returns the packet: for RoCE from BTH to ICRC, for other kinds from the
// Ethernet header on. VNI and MACs are valid unless the kind is Bad.
func Parse(b []byte) (h Head, packet []byte, k Kind) {
	if len(b) < ipStart || b[0] != hasVNI || b[1]|b[2]|b[3]|b[7] != 0 {
		return h, nil, Bad
	}
	h.VNI = binary.BigEndian.Uint32(b[4:]) >> 8
	h.To, h.From = MAC(b[etherStart:]), MAC(b[etherStart+6:])
	switch binary.BigEndian.Uint16(b[typeStart:]) {
	case etherIPv4:
		return h.parse4(b)
	case etherIPv6:
		return h.parse6(b)
	case etherARP:
		return h, b[etherStart:], Neighbour
	}
	return h, nil, Other
}

func (h Head) parse4(b []byte) (Head, []byte, Kind) {
	p := wire.IPv4(b[ipStart:])
	if len(p) < wire.IPv4Size || p[0]>>4 != 4 {
		return h, nil, Bad
	}
	if p[0] != 0x45 || p.Protocol() != wire.ProtocolUDP {
		return h, nil, Other // IP options, or another protocol
	}
	if !p.IsValid() || p.Checksum() != p.Sum() {
		return h, nil, Bad
	}
	if p.Fragment()&^wire.DontFragment != 0 {
		return h, nil, Other // RoCE packets are never fragmented
	}
	h.TOS, h.TTL, h.ID, h.Fragment = p.TOS(), p.TTL(), p.ID(), p.Fragment()
	return h.parseUDP(p.Payload(), netip.AddrFrom4(p.Src()), netip.AddrFrom4(p.Dst()))
}

func (h Head) parse6(b []byte) (Head, []byte, Kind) {
	p := wire.IPv6(b[ipStart:])
	if !p.IsValid() {
		return h, nil, Bad
	}
	switch p.NextHeader() {
	case wire.ProtocolUDP:
	case icmp6:
		return h, b[etherStart : ipStart+wire.IPv6Size+p.PayloadLength()], Neighbour
	default:
		return h, nil, Other
	}
	h.TOS, h.TTL, h.Label = p.TrafficClass(), p.HopLimit(), p.FlowLabel()
	src, dst := netip.AddrFrom16(p.Src()), netip.AddrFrom16(p.Dst())
	if src.Is4In6() || dst.Is4In6() {
		return h, nil, Bad // an IPv4-mapped address: each address must have one representation
	}
	return h.parseUDP(p.Payload(), src, dst)
}

func (h Head) parseUDP(b []byte, src, dst netip.Addr) (Head, []byte, Kind) {
	u := wire.UDP(b)
	if len(b) < wire.UDPSize || u.Length() != len(b) {
		return h, nil, Bad
	}
	h.Src, h.Dst = netip.AddrPortFrom(src, u.SrcPort()), netip.AddrPortFrom(dst, u.DstPort())
	if u.DstPort() != wire.Port {
		return h, nil, Other
	}
	return h, u.Payload(), RoCE
}

// Inside returns the IP packet in a VXLAN datagram; false if there is none.
func Inside(b []byte) ([]byte, bool) {
	if len(b) <= ipStart {
		return nil, false
	}
	t := binary.BigEndian.Uint16(b[typeStart:])
	return b[ipStart:], t == etherIPv4 || t == etherIPv6
}

// IsGroup reports whether m is a multicast or broadcast address.
func (m MAC) IsGroup() bool { return m[0]&1 != 0 }

// GroupMAC returns the Ethernet address of a multicast group.
func GroupMAC(a netip.Addr) MAC {
	b := a.As16()
	if a.Is4() {
		return MAC{0x01, 0x00, 0x5e, b[13] & 0x7f, b[14], b[15]}
	}
	return MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// A Template writes the headers of packets on one path, most of which are equal.
type Template struct {
	size   int
	length int // packet length for which b is valid
	b      [Head6]byte
	head   Head
}

// Set makes t write h.
func (t *Template) Set(h Head) { t.head, t.size, t.length = h, h.Size(), -1 }

// Size returns the size of the headers.
func (t *Template) Size() int { return t.size }

// Put writes the headers of a packet of n bytes.
func (t *Template) Put(b []byte, n int) {
	if n != t.length {
		t.head.Put(t.b[:], n)
		t.length = n
	}
	copy(b[:t.size], t.b[:])
}
