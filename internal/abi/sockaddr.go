package abi

import (
	"encoding/binary"
	"net/netip"
	"syscall"
)

// A Sockaddr is an address of the rdma_cm ABI: struct sockaddr_in6, or the sockaddr_in
// that fits into its 28 bytes.
type Sockaddr = [28]uint8

// FromSockaddr reads an address; false if its family is none that we know. A family
// of 0 is no address at all, and valid in the sense that zero is.
func FromSockaddr(b *Sockaddr) (netip.AddrPort, bool) {
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b[:]) {
	case syscall.AF_UNSPEC:
		return netip.AddrPort{}, true
	case syscall.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:])), port), true
	case syscall.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:])).Unmap(), port), true
	}
	return netip.AddrPort{}, false
}

// ToSockaddr writes one; an invalid address is all zeros.
func ToSockaddr(a netip.AddrPort) (b Sockaddr) {
	if !a.IsValid() {
		return b
	}
	binary.BigEndian.PutUint16(b[2:], a.Port())
	if a.Addr().Is4() {
		binary.NativeEndian.PutUint16(b[:], syscall.AF_INET)
		v := a.Addr().As4()
		copy(b[4:], v[:])
		return b
	}
	binary.NativeEndian.PutUint16(b[:], syscall.AF_INET6)
	v := a.Addr().As16()
	copy(b[8:], v[:])
	return b
}
