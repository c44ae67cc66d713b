package wire

// GRH is the global routing header (IBA 8.3): the 40 bytes before a message in a UD receive buffer. For
// an IPv6 packet it is the IPv6 header, which has the same layout. For an IPv4 packet the last 20 bytes
// are the IPv4 header, after zeros (annex A17.4.5.2).
type GRH []byte

// GRHSize is the length of a GRH.
const GRHSize = 40

// IsValid reports whether g can be read.
func (g GRH) IsValid() bool { return len(g) >= GRHSize }

// IsIPv4 reports whether g contains an IPv4 header.
func (g GRH) IsIPv4() bool { return g[0]>>4 != 6 && g[GRHSize-IPv4Size] == 0x45 }

// IPv6 returns g as an IPv6 header.
func (g GRH) IPv6() IPv6 { return IPv6(g[:GRHSize]) }

// IPv4 returns the IPv4 header in g.
func (g GRH) IPv4() IPv4 { return IPv4(g[GRHSize-IPv4Size : GRHSize]) }

// SGID returns the source address; an IPv4 address is mapped into IPv6.
func (g GRH) SGID() [16]byte {
	if g.IsIPv4() {
		return mapped(g.IPv4().Src())
	}
	return g.IPv6().Src()
}

// DGID returns the destination address; an IPv4 address is mapped into IPv6.
func (g GRH) DGID() [16]byte {
	if g.IsIPv4() {
		return mapped(g.IPv4().Dst())
	}
	return g.IPv6().Dst()
}

func mapped(a [4]byte) [16]byte {
	return [16]byte{10: 0xff, 11: 0xff, 12: a[0], 13: a[1], 14: a[2], 15: a[3]}
}
