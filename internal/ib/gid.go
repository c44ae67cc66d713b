package ib

import "net/netip"

// GID is an address: an IPv6 address, or an IPv4 one mapped into it.
type GID [16]byte

// GIDOf is the GID that stands for an IP address.
func GIDOf(a netip.Addr) GID { return GID(a.As16()) }

// Addr is the IP address that a GID stands for.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// Is4 reports whether g is an IPv4 address.
func (g *GID) Is4() bool { return [12]byte(g[:12]) == [12]byte{10: 0xff, 11: 0xff} }

// IsMulticast reports whether g names a group: an IPv6 multicast address, or an IPv4 one
// mapped into IPv6.
func (g *GID) IsMulticast() bool {
	return g[0] == 0xff || g.Is4() && g[12]&0xf0 == 0xe0
}
