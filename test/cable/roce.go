package cable

import (
	"encoding/binary"
	"net/netip"
)

const (
	etherHeader = 14
	ip6Header   = 40
	udp         = 17
	rocePort    = 4791
)

// isRoCE reports whether an Ethernet frame holds a RoCEv2 packet.
func isRoCE(frame []byte) bool {
	if len(frame) < etherHeader+20+8 {
		return false
	}
	ip := frame[etherHeader:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		n := int(ip[0]&15) * 4
		return ip[9] == udp && len(ip) >= n+8 && binary.BigEndian.Uint16(ip[n+2:]) == rocePort
	case 0x86dd:
		return len(ip) >= ip6Header+8 && ip[6] == udp && binary.BigEndian.Uint16(ip[ip6Header+2:]) == rocePort
	}
	return false
}

// clearChecksum removes the UDP checksum of a RoCEv2 packet, as rxe does, so that the ICRC and not the kernel detects
// damage.
func clearChecksum(frame []byte) {
	ip := frame[etherHeader:]
	n := ip6Header
	if ip[0]>>4 == 4 {
		n = int(ip[0]&15) * 4
	}
	ip[n+6], ip[n+7] = 0, 0
}

// source returns the source address of an IP packet.
func source(frame []byte) string {
	ip := frame[etherHeader:]
	if ip[0]>>4 == 6 {
		return netip.AddrFrom16([16]byte(ip[8:24])).String()
	}
	return netip.AddrFrom4([4]byte(ip[12:16])).String()
}
