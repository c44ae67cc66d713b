package overlay

import (
	"encoding/binary"
	"net/netip"

	"vrdma.dev/vrdma/internal/net/wire"
)

// This file handles ARP and neighbour discovery. A Linux member requests the MAC of every address that it sends to. It
// repeats the request, because no RDMA traffic tells its kernel that a neighbour is alive.

const (
	arpSize      = 28
	arpRequest   = 1
	arpReply     = 2
	icmp6        = 58
	solicitation = 135
	advertising  = 136
	ndSize       = 24
	optTarget    = 2
	hopLimit     = 255
	// Flags of an advertisement.
	ndSolicited = 0x40
	ndOverride  = 0x20

	// NeighbourRoom is the maximum number of bytes that PutAnswer and PutNews write.
	NeighbourRoom = ipStart + wire.IPv6Size + ndSize + 8
)

var (
	broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	// allNodes is the group of all hosts.
	allNodes = netip.MustParseAddr("ff02::1")
)

// A Question is a request for the MAC of an address, or an announcement of it.
type Question struct {
	Asks   bool       // false: an answer or an announcement
	Target netip.Addr // the address in question
	Sender netip.Addr // the sender's address; with IPv6 possibly link-local or unspecified
	MAC    MAC        // the sender's MAC as it claims
}

// ParseNeighbour decodes an Ethernet frame of kind Neighbour. ok is false if it is neither ARP nor neighbour discovery.
func ParseNeighbour(frame []byte) (q Question, ok bool) {
	if len(frame) < EthernetSize {
		return q, false
	}
	q.MAC = MAC(frame[6:])
	if b := frame[EthernetSize:]; binary.BigEndian.Uint16(frame[12:]) == etherARP {
		return q, q.arp(b)
	} else {
		return q, q.discovery(b)
	}
}

func (q *Question) arp(b []byte) bool {
	// Ethernet, IPv4, address lengths 6 and 4.
	if len(b) < arpSize || binary.BigEndian.Uint64(b)>>16 != 0x000108000604 {
		return false
	}
	switch binary.BigEndian.Uint16(b[6:]) {
	case arpRequest:
		q.Asks = true
	case arpReply:
	default:
		return false
	}
	if MAC(b[8:]) != q.MAC {
		return false // the frame's source is not the MAC in the message
	}
	q.Sender, q.Target = netip.AddrFrom4([4]byte(b[14:])), netip.AddrFrom4([4]byte(b[24:]))
	return true
}

func (q *Question) discovery(b []byte) bool {
	p := wire.IPv6(b)
	if !p.IsValid() || p.NextHeader() != icmp6 || p.HopLimit() != hopLimit {
		return false // forwarded by a router, or not neighbour discovery
	}
	m := p.Payload()
	if len(m) < ndSize || m[1] != 0 || icmpSum(p) != 0 {
		return false
	}
	switch m[0] {
	case solicitation:
		q.Asks = true
	case advertising:
	default:
		return false
	}
	q.Sender, q.Target = netip.AddrFrom16(p.Src()), netip.AddrFrom16([16]byte(m[8:]))
	return !q.Target.IsMulticast()
}

// PutAnswer writes the datagram that answers q with this MAC, and returns its length.
func PutAnswer(b []byte, vni uint32, q *Question, mac MAC) int {
	if q.Target.Is4() {
		return putARP(b, vni, q.MAC, arpReply, mac, q.Target, q.MAC, q.Sender)
	}
	if q.Sender.IsUnspecified() {
		// The sender checks for a duplicate address: announce to all nodes that it is in use.
		return putAdvertisement(b, vni, GroupMAC(allNodes), mac, q.Target, allNodes, ndOverride)
	}
	return putAdvertisement(b, vni, q.MAC, mac, q.Target, q.Sender, ndSolicited|ndOverride)
}

// PutNews writes the datagram that announces the MAC of an address to all nodes of a network, after the address has moved
// to another host. It returns its length.
func PutNews(b []byte, vni uint32, a netip.Addr, mac MAC) int {
	if a.Is4() {
		return putARP(b, vni, broadcast, arpReply, mac, a, broadcast, a)
	}
	return putAdvertisement(b, vni, GroupMAC(allNodes), mac, a, allNodes, ndOverride)
}

func putARP(b []byte, vni uint32, to MAC, op uint16, mac MAC, sender netip.Addr, target MAC, asked netip.Addr) int {
	PutVXLAN(b, vni)
	e := b[etherStart:]
	copy(e, to[:])
	copy(e[6:], mac[:])
	binary.BigEndian.PutUint16(e[12:], etherARP)
	e = e[EthernetSize:]
	binary.BigEndian.PutUint64(e, 0x000108000604<<16|uint64(op))
	copy(e[8:], mac[:])
	s, t := sender.As4(), asked.As4()
	copy(e[14:], s[:])
	copy(e[18:], target[:])
	copy(e[24:], t[:])
	return ipStart + arpSize
}

func putAdvertisement(b []byte, vni uint32, to, mac MAC, target, dst netip.Addr, flags byte) int {
	PutVXLAN(b, vni)
	e := b[etherStart:]
	copy(e, to[:])
	copy(e[6:], mac[:])
	binary.BigEndian.PutUint16(e[12:], etherIPv6)
	const length = ndSize + 8
	p := wire.IPv6(e[EthernetSize : EthernetSize+wire.IPv6Size+length])
	p.Init()
	p.SetNextHeader(icmp6)
	p.SetHopLimit(hopLimit)
	p.SetPayloadLength(length)
	p.SetSrc(target.As16())
	p.SetDst(dst.As16())
	m := p.Payload()
	clear(m)
	m[0], m[4] = advertising, flags
	a := target.As16()
	copy(m[8:], a[:])
	m[ndSize], m[ndSize+1] = optTarget, 1
	copy(m[ndSize+2:], mac[:])
	binary.BigEndian.PutUint16(m[2:], icmpSum(p))
	return ipStart + wire.IPv6Size + length
}

// icmpSum returns the checksum over p's ICMP message: zero if the one in it is correct.
func icmpSum(p wire.IPv6) uint16 {
	m := p.Payload()
	sum := uint32(len(m)) + icmp6
	add := func(b []byte) {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(b[0])<<8 | uint32(b[1])
		}
		if len(b) > 0 {
			sum += uint32(b[0]) << 8
		}
	}
	add(p[8:wire.IPv6Size]) // both addresses
	add(m)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
