package vswitch

import (
	"net/netip"
	"slices"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

// IPv6: a router advertisement (RFC 4861) announces the prefixes, the MTU, and that addresses come from DHCPv6 (RFC 8415). It
// announces no router, because the network has no connection to others.

const (
	dhcp6Client = 546
	dhcp6Server = 547

	solicit6     = 1
	advertise6   = 2
	request6     = 3
	confirm6     = 4
	renew6       = 5
	rebind6      = 6
	reply6       = 7
	release6     = 8
	decline6     = 9
	information6 = 11

	optClient6 = 1
	optServer6 = 2
	optIA6     = 3
	optAddr6   = 5
	optRapid6  = 14

	// mostID is the maximum length of a client identifier (RFC 8415, section 11.1).
	mostID = 130

	routerRoom = etherSize + wire.IPv6Size + 16 + 8 + 8 + 4*32
	dhcp6Room  = etherSize + wire.IPv6Size + wire.UDPSize + 4 + 4 + mostID + 4 + 10 + 4 + 12 + 4*28 + 4
)

// serverLinkLocal is the switch's own address.
var (
	serverLinkLocal = linkLocal(serverMAC)
	allNodes        = netip.MustParseAddr("ff02::1")
	// serverID is the server identifier: a DUID-LL of Ethernet.
	serverID = append([]byte{0, 3, 0, 1}, serverMAC[:]...)
)

func (f *frame) isRouterSolicitation() bool {
	return f.ether == etherIPv6 && f.proto == protoICMP6 && f.l4 < len(f.head) && f.head[f.l4] == routerSolicitation
}

func (f *frame) isDHCP6() bool {
	return f.ether == etherIPv6 && f.proto == protoUDP && f.sport == dhcp6Client && f.dport == dhcp6Server
}

// subnets6 returns the network's IPv6 subnets, at most four.
func (p *Port) subnets6() (out []netip.Prefix) {
	for _, s := range p.Subnets {
		if s.Addr().Is6() && len(out) < 4 {
			out = append(out, s)
		}
	}
	return out
}

// putIPv6 writes the headers of a frame from the switch to the device at p, and returns the offset of the payload.
func (p *Port) putIPv6(b []byte, proto uint8, dst netip.Addr, length int) int {
	copy(b, p.MAC[:])
	copy(b[6:], serverMAC[:])
	be.PutUint16(b[12:], etherIPv6)
	ip := wire.IPv6(b[etherSize : etherSize+wire.IPv6Size])
	ip.Init()
	ip.SetNextHeader(proto)
	ip.SetHopLimit(255)
	ip.SetPayloadLength(length)
	ip.SetSrc(serverLinkLocal.As16())
	ip.SetDst(dst.As16())
	return etherSize + wire.IPv6Size
}

// router writes the advertisement that answers a solicitation, and returns its length; 0 if the network has no IPv6.
func (p *Port) router(b []byte, f *frame) int {
	subnets := p.subnets6()
	if len(subnets) == 0 {
		return 0
	}
	const managed = 0x80
	at := etherSize + wire.IPv6Size
	m := append(b[:at], routerAdvertisement, 0, 0, 0, 0, managed, 0, 0) // no hop limit and lifetime 0: not a router
	m = append(m, make([]byte, 8)...)                                   // unspecified timers
	m = append(append(m, 1, 1), serverMAC[:]...)
	m = be.AppendUint32(append(m, 5, 1, 0, 0), uint32(p.MTU))
	for _, s := range subnets {
		const onLink = 0x80 // without autonomous address configuration
		m = append(m, 3, 4, byte(s.Bits()), onLink)
		m = be.AppendUint32(be.AppendUint32(m, lease), lease)
		a := s.Masked().Addr().As16()
		m = append(append(m, 0, 0, 0, 0), a[:]...)
	}
	dst := f.src
	if !dst.IsLinkLocalUnicast() {
		dst = allNodes
	}
	p.putIPv6(b, protoICMP6, dst, len(m)-at)
	be.PutUint16(m[at+2:], ^fold(sum(m[at:], pseudo(m[etherSize:], protoICMP6, len(m)-at))))
	return len(m)
}

// A lookup6 is the request of a DHCPv6 client.
type lookup6 struct {
	kind   byte
	id     [3]byte // transaction ID
	client []byte
	ia     []byte // identity association, 4 bytes; nil: the client wants no addresses
	rapid  bool
	other  bool // the client talks to another server
}

// parseDHCP6 decodes the UDP payload of a client's message.
func parseDHCP6(b []byte) (l lookup6, ok bool) {
	if len(b) < 4 {
		return l, false
	}
	l.kind, l.id = b[0], [3]byte(b[1:])
	for b = b[4:]; len(b) > 0; {
		if len(b) < 4 || len(b) < 4+int(be.Uint16(b[2:])) {
			return l, false
		}
		v := b[4 : 4+int(be.Uint16(b[2:]))]
		switch be.Uint16(b) {
		case optClient6:
			l.client = v
		case optServer6:
			l.other = string(v) != string(serverID)
		case optIA6:
			if len(v) < 12 {
				return l, false
			}
			l.ia = v[:4]
		case optRapid6:
			l.rapid = true
		}
		b = b[4+len(v):]
	}
	return l, len(l.client) <= mostID
}

// dhcp6 writes the reply frame for a client, and returns its length; 0 means no reply.
func (p *Port) dhcp6(b []byte, f *frame) int {
	var message [headRoom + 1500]byte
	n := f.bytes(message[:])
	if n < 0 || f.payload > n {
		return 0
	}
	l, ok := parseDHCP6(message[f.payload:n])
	if !ok || l.other || len(p.subnets6()) == 0 {
		return 0
	}
	kind := byte(reply6)
	switch l.kind {
	case solicit6:
		if !l.rapid {
			kind = advertise6
		}
	case request6, confirm6, renew6, rebind6, information6:
	case release6, decline6: // the port keeps its addresses, but a client without a reply repeats its request
	default:
		return 0
	}
	at := etherSize + wire.IPv6Size + wire.UDPSize
	m := append(b[:at], kind, l.id[0], l.id[1], l.id[2])
	option := func(code uint16, v []byte) {
		m = append(be.AppendUint16(be.AppendUint16(m, code), uint16(len(v))), v...)
	}
	if l.client != nil {
		option(optClient6, l.client)
	}
	option(optServer6, serverID)
	if l.kind == solicit6 && l.rapid {
		option(optRapid6, nil)
	}
	if l.ia != nil && slices.Contains([]byte{solicit6, request6, renew6, rebind6}, l.kind) {
		option(optIA6, p.addresses6(l.ia))
	}
	p.putIPv6(b, protoUDP, f.src, len(m)-at+wire.UDPSize)
	u := wire.UDP(m[at-wire.UDPSize:])
	u.SetSrcPort(dhcp6Server)
	u.SetDstPort(dhcp6Client)
	u.SetLength(len(u))
	complete(m, at-wire.UDPSize, protoUDP, len(u))
	return len(m)
}

// addresses6 returns an identity association with the port's addresses: its ID, the renewal times (infinite), and each address.
func (p *Port) addresses6(name []byte) []byte {
	v := be.AppendUint32(be.AppendUint32(append([]byte(nil), name...), lease), lease)
	n := 0
	for _, a := range p.Addrs {
		if a.Is6() && n < 4 {
			six := a.As16()
			v = append(be.AppendUint16(be.AppendUint16(v, optAddr6), 24), six[:]...)
			v = be.AppendUint32(be.AppendUint32(v, lease), lease)
			n++
		}
	}
	return v
}

// answerRoom is the maximum size of the switch's answers.
const answerRoom = overlay.NeighbourRoom + dhcpRoom + routerRoom + dhcp6Room
