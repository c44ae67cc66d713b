package tenant

import (
	"fmt"
	"net/netip"
)

// improperSubnet returns why a prefix cannot be a subnet of NICs; empty if it can.
func improperSubnet(p netip.Prefix) string {
	switch {
	case !p.IsValid() || p.Addr().Is4In6():
		return "is not a subnet: write it like 10.1.0.0/24 or fd00::/64"
	case p != p.Masked():
		return fmt.Sprintf("has bits set behind its length: write %s", p.Masked())
	case !ordinary(p.Addr()) && !p.Addr().IsUnspecified(), p.Bits() < 4:
		return "is not for NICs (multicast, loopback, link-local or everything): choose for instance 10.1.0.0/24 or fd00::/64"
	case p.Addr().Is4() && p.Bits() == 0, p.Addr().Is4() && p.Addr().As4()[0] == 0:
		return "is not for NICs: choose for instance 10.1.0.0/24"
	case p.Bits() > p.Addr().BitLen()-2:
		return fmt.Sprintf("is too small: it has no two addresses besides those of the subnet itself; use /%d or larger", p.Addr().BitLen()-2)
	}
	return ""
}

// ordinary reports whether an address is one that a NIC can have in some subnet.
func ordinary(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && !(a.Is6() && a.IsLinkLocalUnicast()) &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// reserved returns the reserved use of an address in a subnet; empty if a NIC can have it. The first address of an IPv6
// subnet is the anycast address of its routers.
func reserved(p netip.Prefix, a netip.Addr) string {
	switch {
	case a == p.Addr():
		return fmt.Sprintf("is the address of subnet %s itself", p)
	case a.Is4() && a == lastOf(p):
		return fmt.Sprintf("is the broadcast address of subnet %s", p)
	}
	return ""
}

// lastOf is the last address of a subnet.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// allocate returns the next free address after the one that was allocated last. So a freed address is used again only
// after all others.
func (s *segment) allocate(p netip.Prefix) (netip.Addr, bool) {
	a, ok := s.last[p]
	if !ok {
		a = p.Addr()
	}
	// Each step but three (the subnet's own address, the broadcast address and the one to start
	// from) meets another NIC's address, or ends the search.
	for range len(s.addresses) + 4 {
		if a = a.Next(); !a.IsValid() || !p.Contains(a) {
			a = p.Addr()
		}
		if _, taken := s.addresses[a]; !taken && reserved(p, a) == "" {
			s.last[p] = a
			return a, true
		}
	}
	return netip.Addr{}, false
}
