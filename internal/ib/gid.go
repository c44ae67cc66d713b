package ib

import "net/netip"

// GID is the address of a port: an IPv6 address, or an IPv4-mapped IPv6 address.
type GID [16]byte

// GIDOf returns the GID of an IP address.
func GIDOf(a netip.Addr) GID { return GID(a.As16()) }

// Addr returns the IP address of a GID.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// Is4 reports whether g is an IPv4-mapped address.
func (g *GID) Is4() bool { return [12]byte(g[:12]) == [12]byte{10: 0xff, 11: 0xff} }

// IsMulticast reports whether g is a multicast address, of IPv6 or IPv4-mapped.
func (g *GID) IsMulticast() bool {
	return g[0] == 0xff || g.Is4() && g[12]&0xf0 == 0xe0
}
