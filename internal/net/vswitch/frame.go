package vswitch

import (
	"encoding/binary"
	"net/netip"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

var be = binary.BigEndian

const (
	etherSize = overlay.EthernetSize
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherARP  = 0x0806

	protoICMP  = 1
	protoTCP   = 6
	protoUDP   = wire.ProtocolUDP
	protoICMP6 = 58

	// IPv6 extension headers.
	protoHop         = 0
	protoRouting     = 43
	protoFragment    = 44
	protoAH          = 51
	protoDestination = 60

	// headRoom is how much of a frame is copied before it is parsed: Ethernet, IP with options, TCP with options.
	headRoom = 192

	// maxFrame is the longest frame: a large segment.
	maxFrame = etherSize + 65535
)

// A frame is a frame being forwarded. Its head is a checked copy; the rest stays in the sender's memory.
type frame struct {
	virtio header
	head   []byte   // part of room
	rest   [][]byte // the sender may change it at any time
	size   int      // size of head and rest

	room [headRoom]byte

	// Fields parsed from the head.
	to, from overlay.MAC
	ether    uint16
	src, dst netip.Addr // of IP
	proto    uint8
	l4       int    // offset of the header after IP; 0: none, or not in the head
	sport    uint16 // of TCP and UDP
	dport    uint16
	payload  int // offset of the TCP or UDP payload; 0: unknown
	fragment bool
}

// take sets f to the frame in any number of buffers. The first bytes become its head.
func (f *frame) take(buffers [][]byte) bool {
	f.size, f.rest = 0, f.rest[:0]
	n := 0
	for _, b := range buffers {
		f.size += len(b)
		if n < headRoom {
			k := copy(f.room[n:], b)
			n, b = n+k, b[k:]
		}
		if len(b) > 0 {
			f.rest = append(f.rest, b)
		}
	}
	f.head = f.room[:n]
	return f.size >= etherSize && f.size <= maxFrame && f.parse()
}

// parse parses the head. It returns false if the data cannot be a frame.
func (f *frame) parse() bool {
	h := f.head
	f.to, f.from, f.ether = overlay.MAC(h), overlay.MAC(h[6:]), be.Uint16(h[12:])
	f.src, f.dst, f.proto, f.l4, f.sport, f.dport, f.payload, f.fragment = netip.Addr{}, netip.Addr{}, 0, 0, 0, 0, 0, false
	switch f.ether {
	case etherIPv4:
		return f.parse4(h[etherSize:])
	case etherIPv6:
		return f.parse6(h[etherSize:])
	}
	return true
}

func (f *frame) parse4(b []byte) bool {
	if len(b) < wire.IPv4Size || b[0]>>4 != 4 {
		return false
	}
	n := int(b[0]&15) * 4
	p := wire.IPv4(b)
	if length := int(be.Uint16(b[2:])); n < wire.IPv4Size || length < n || length > f.size-etherSize {
		return false
	}
	f.src, f.dst, f.proto = netip.AddrFrom4(p.Src()), netip.AddrFrom4(p.Dst()), p.Protocol()
	f.fragment = p.Fragment()&0x3fff != 0
	if p.Fragment()&0x1fff != 0 {
		return true // later fragments have no ports
	}
	return f.parsePorts(etherSize + n)
}

func (f *frame) parse6(b []byte) bool {
	if len(b) < wire.IPv6Size || b[0]>>4 != 6 || int(be.Uint16(b[4:]))+wire.IPv6Size > f.size-etherSize {
		return false
	}
	p := wire.IPv6(b)
	f.src, f.dst, f.proto = netip.AddrFrom16(p.Src()), netip.AddrFrom16(p.Dst()), p.NextHeader()
	if f.src.Is4In6() || f.dst.Is4In6() {
		return false // an IPv4-mapped address: each address must have one representation
	}
	at, end := etherSize+wire.IPv6Size, min(ipEnd(f.head), len(f.head))
	for {
		switch f.proto {
		case protoHop, protoRouting, protoDestination, protoFragment, protoAH:
		default:
			return f.parsePorts(at)
		}
		if at+8 > end {
			return false // the transport header lies outside of the head
		}
		h := f.head[at:]
		n := 8 // a fragment header has no length field
		switch f.proto {
		case protoAH:
			n = (int(h[1]) + 2) * 4
		case protoFragment:
			place := be.Uint16(h[2:])
			if place&^7 != 0 {
				f.fragment = true
				return true // later fragments have no ports; the protocol is known
			}
			f.fragment = f.fragment || place&1 != 0
		default:
			n = (int(h[1]) + 1) * 8
		}
		f.proto, at = h[0], at+n
		if at > end {
			return false
		}
	}
}

// parsePorts parses the header after IP, if its protocol is known. Padding after the packet does not count.
func (f *frame) parsePorts(at int) bool {
	f.l4 = at
	end := min(ipEnd(f.head), len(f.head))
	b := f.head[min(at, end):end]
	switch f.proto {
	case protoTCP:
		if len(b) < 20 {
			return false
		}
		n := int(b[12]>>4) * 4
		if n < 20 || at+n > end {
			return false
		}
		f.sport, f.dport, f.payload = be.Uint16(b), be.Uint16(b[2:]), at+n
	case protoUDP:
		if len(b) < wire.UDPSize {
			return false
		}
		f.sport, f.dport, f.payload = be.Uint16(b), be.Uint16(b[2:]), at+wire.UDPSize
	case protoICMP6:
		return len(b) > 0 // the ICMP type
	}
	return true
}

// bytes writes the whole frame to b and returns its length; -1 if b is too short.
func (f *frame) bytes(b []byte) int {
	if f.size > len(b) {
		return -1
	}
	n := copy(b, f.head)
	for _, r := range f.rest {
		n += copy(b[n:], r)
	}
	return n
}
