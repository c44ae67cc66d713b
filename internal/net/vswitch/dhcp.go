package vswitch

import (
	"net/netip"

	"vrdma.dev/vrdma/internal/net/wire"
)

// This file is the DHCP server (RFC 2131): the address of a NIC is declared, and the switch returns it to the client.

const (
	bootpServer = 67
	bootpClient = 68
	bootpSize   = 236
	dhcpMagic   = 0x63825363
	dhcpRoom    = etherSize + wire.IPv4Size + wire.UDPSize + bootpSize + 4 + 64

	bootRequest = 1
	bootReply   = 2

	dhcpDiscover = 1
	dhcpOffer    = 2
	dhcpRequest  = 3
	dhcpAck      = 5
	dhcpNak      = 6
	dhcpInform   = 8

	optMask      = 1
	optHostname  = 12
	optMTU       = 26
	optRequested = 50
	optLease     = 51
	optType      = 53
	optServer    = 54
	optEnd       = 255

	// lease is infinite: a NIC keeps its address as long as it exists.
	lease = 0xffffffff
)

// isDHCP reports whether a frame is a client's to a DHCP server.
func (f *frame) isDHCP() bool {
	return f.ether == etherIPv4 && f.proto == protoUDP && f.sport == bootpClient && f.dport == bootpServer
}

// A lookup is the request of a client.
type lookup struct {
	kind      byte
	requested netip.Addr // from the option, or the client's current address
	other     bool       // the client talks to another server
	boot      [bootpSize]byte
}

// parseDHCP decodes the UDP payload of a client's message.
func parseDHCP(b []byte) (l lookup, ok bool) {
	if len(b) < bootpSize+4 || b[0] != bootRequest || b[1] != 1 || b[2] != 6 || be.Uint32(b[bootpSize:]) != dhcpMagic {
		return l, false
	}
	copy(l.boot[:], b)
	if a := netip.AddrFrom4([4]byte(b[12:])); !a.IsUnspecified() {
		l.requested = a
	}
	for o := b[bootpSize+4:]; len(o) > 0; {
		if o[0] == 0 {
			o = o[1:]
			continue
		}
		if o[0] == optEnd {
			break
		}
		if len(o) < 2 || len(o) < 2+int(o[1]) {
			return l, false
		}
		v := o[2 : 2+int(o[1])]
		switch {
		case o[0] == optType && len(v) == 1:
			l.kind = v[0]
		case o[0] == optRequested && len(v) == 4:
			l.requested = netip.AddrFrom4([4]byte(v))
		case o[0] == optServer && len(v) == 4:
			l.other = netip.AddrFrom4([4]byte(v)) != server
		}
		o = o[2+int(o[1]):]
	}
	return l, l.kind != 0
}

// dhcp writes the reply frame for a client, and returns its length; 0 means no reply.
func (p *Port) dhcp(b []byte, f *frame) int {
	var message [headRoom + 1500]byte
	n := f.bytes(message[:])
	if n < 0 || f.payload > n {
		return 0
	}
	l, ok := parseDHCP(message[f.payload:n])
	mine, bits, have := p.ipv4()
	if !ok || !have || l.other || [6]byte(l.boot[28:]) != p.MAC {
		return 0
	}
	kind := byte(dhcpAck)
	switch l.kind {
	case dhcpDiscover:
		kind = dhcpOffer
	case dhcpRequest:
		if l.requested.IsValid() && l.requested != mine {
			kind = dhcpNak
		}
	case dhcpInform:
	default:
		return 0
	}
	return p.putDHCP(b, &l, kind, mine, bits)
}

// ipv4 returns the port's first IPv4 address and the prefix length of its subnet.
func (p *Port) ipv4() (netip.Addr, int, bool) {
	for _, a := range p.Addrs {
		if !a.Is4() {
			continue
		}
		for _, s := range p.Subnets {
			if s.Contains(a) {
				return a, s.Bits(), true
			}
		}
		return a, 32, true
	}
	return netip.Addr{}, 0, false
}

func (p *Port) putDHCP(b []byte, l *lookup, kind byte, mine netip.Addr, bits int) int {
	const start = etherSize + wire.IPv4Size + wire.UDPSize
	clear(b[:start])
	boot := b[start : start+bootpSize]
	copy(boot, l.boot[:])
	boot[0] = bootReply
	clear(boot[16:28]) // yiaddr, siaddr, giaddr
	clear(boot[44:])   // names
	four := mine.As4()
	to := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	if kind != dhcpNak {
		copy(boot[16:], four[:])
		if boot[10]&0x80 == 0 { // the client can receive unicast
			to = mine
		}
	}
	o := be.AppendUint32(b[:start+bootpSize], dhcpMagic)
	o = append(o, optType, 1, kind)
	id := server.As4()
	o = append(append(o, optServer, 4), id[:]...)
	if kind != dhcpNak {
		o = be.AppendUint32(append(o, optLease, 4), lease)
		o = be.AppendUint32(append(o, optMask, 4), ^uint32(0)<<(32-bits))
		o = be.AppendUint16(append(o, optMTU, 2), uint16(p.MTU))
	}
	o = append(o, optEnd)
	n := len(o)
	copy(b, p.MAC[:])
	copy(b[6:], serverMAC[:])
	be.PutUint16(b[12:], etherIPv4)
	ip := wire.IPv4(b[etherSize:n])
	ip.Init()
	ip.SetTotalLength(n - etherSize)
	ip.SetTTL(wire.DefaultTTL)
	ip.SetSrc(id)
	ip.SetDst(to.As4())
	ip.SetChecksum(ip.Sum())
	u := wire.UDP(b[etherSize+wire.IPv4Size:])
	u.SetSrcPort(bootpServer)
	u.SetDstPort(bootpClient)
	u.SetLength(n - etherSize - wire.IPv4Size)
	complete(b[:n], etherSize+wire.IPv4Size, protoUDP, n-etherSize-wire.IPv4Size)
	return n
}
