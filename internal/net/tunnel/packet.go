package tunnel

import (
	"encoding/binary"
	"net/netip"
)

// Inside the tunnel a datagram is an IPv6 packet (RFC 8200, section 3) with UDP (RFC 768) in it:
//
//	0  6, traffic class, flow label │ 4  payload length │ 6  17 │ 7  hop limit
//	8  source, 16 bytes │ 24 destination, 16 bytes
//	40 source port │ 42 destination port │ 44 length │ 46 checksum │ 48 VXLAN …
const (
	ipHeader = 40
	headers  = ipHeader + 8

	offLength   = 4
	offNext     = 6
	offHop      = 7
	offSrc      = 8
	offDst      = 24
	offSrcPort  = 40
	offDstPort  = 42
	offUDPLen   = 44
	offChecksum = 46

	protocolUDP = 17
	hopLimit    = 64
)

// Overhead of each outer datagram:
const (
	// sealed is WireGuard's: type, receiver and counter before the data, the authenticator after it.
	sealed = 16 + 16
	// padding is the multiple to which the inner packet is padded.
	padding = 16
)

// Head is the maximum number of bytes that the tunnel adds to a datagram: the inner headers, WireGuard's, and its padding.
const Head = headers + sealed + padding - 1

// Room returns the length of the longest datagram that fits into a tunnel over an interface with this MTU. outer6 says
// whether the tunnel itself uses IPv6.
func Room(mtu int, outer6 bool) int {
	outer := 20 + 8
	if outer6 {
		outer = 40 + 8
	}
	return max(0, (mtu-outer-sealed)&^(padding-1)-headers)
}

// putHeaders writes the headers of a packet with n bytes of data. It leaves the checksum out, which is allowed between vrdma
// hosts: WireGuard authenticates the packet (RFC 6936).
func putHeaders(p []byte, from, to netip.AddrPort, n int) {
	binary.BigEndian.PutUint32(p, 6<<28)
	binary.BigEndian.PutUint16(p[offLength:], uint16(8+n))
	p[offNext], p[offHop] = protocolUDP, hopLimit
	src, dst := from.Addr().As16(), to.Addr().As16()
	copy(p[offSrc:], src[:])
	copy(p[offDst:], dst[:])
	binary.BigEndian.PutUint16(p[offSrcPort:], from.Port())
	binary.BigEndian.PutUint16(p[offDstPort:], to.Port())
	binary.BigEndian.PutUint16(p[offUDPLen:], uint16(8+n))
	binary.BigEndian.PutUint16(p[offChecksum:], 0)
}

// putChecksum sets the UDP checksum, which the Linux kernel requires over IPv6.
func putChecksum(p []byte) {
	sum := uint64(protocolUDP) + uint64(binary.BigEndian.Uint16(p[offUDPLen:]))
	b := p[offSrc:] // both addresses, and UDP with its data, are contiguous
	for len(b) >= 4 {
		sum += uint64(binary.BigEndian.Uint32(b))
		b = b[4:]
	}
	var rest [4]byte
	copy(rest[:], b)
	sum += uint64(binary.BigEndian.Uint32(rest[:]))
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	c := ^uint16(sum)
	if c == 0 {
		c = 0xffff // 0 would mean no checksum
	}
	binary.BigEndian.PutUint16(p[offChecksum:], c)
}

// parse decodes a packet; data is the UDP payload. It ignores the checksum, because WireGuard has authenticated the packet.
func parse(p []byte) (from, to netip.AddrPort, data []byte, ok bool) {
	if len(p) < headers || p[0]>>4 != 6 || p[offNext] != protocolUDP {
		return from, to, nil, false
	}
	length := int(binary.BigEndian.Uint16(p[offLength:]))
	udp := int(binary.BigEndian.Uint16(p[offUDPLen:]))
	if udp < 8 || udp > length || ipHeader+length > len(p) {
		return from, to, nil, false
	}
	from = netip.AddrPortFrom(netip.AddrFrom16([16]byte(p[offSrc:])), binary.BigEndian.Uint16(p[offSrcPort:]))
	to = netip.AddrPortFrom(netip.AddrFrom16([16]byte(p[offDst:])), binary.BigEndian.Uint16(p[offDstPort:]))
	return from, to, p[headers : ipHeader+udp], true
}
