package routes

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// rocePort is the UDP port of RoCEv2.
const rocePort = 4791

// From returns the source address that the kernel uses for another host. Connecting a datagram socket looks up the route and sends
// nothing. from may be unspecified.
func From(from, to netip.Addr) (netip.Addr, error) {
	family := unix.AF_INET
	if to.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(fd)
	if !from.IsUnspecified() {
		if err := unix.Bind(fd, socketAddress(from, 0)); err != nil {
			return netip.Addr{}, err
		}
	}
	if err := unix.Connect(fd, socketAddress(to, rocePort)); err != nil {
		return netip.Addr{}, err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, err
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr), nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr), nil
	}
	return netip.Addr{}, unix.EAFNOSUPPORT
}

func socketAddress(a netip.Addr, port int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: port}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), Port: port}
}
