package roce

import (
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// Options of SOL_UDP, as in linux/udp.h.
const (
	udpNoCheck6RX = 102
	udpSegment    = 103
	udpGRO        = 104
)

// feature is something that the kernel may or may not do for UDP sockets.
type feature struct {
	name  string
	since string // version of Linux
	test  func(fd int) error
}

// featureGSO: one call sends many datagrams, cut apart as late as possible. That a socket
// knows the option does not mean that the device in the end can do it: a send that fails
// with EIO says that.
var featureGSO = feature{"UDP_SEGMENT", "4.18", func(fd int) error {
	_, err := unix.GetsockoptInt(fd, unix.SOL_UDP, udpSegment)
	return err
}}

// featureGRO: one call receives many datagrams of one sender. The test switches it on.
var featureGRO = feature{"UDP_GRO", "5.0", func(fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_UDP, udpGRO, 1)
}}

// probe reports whether a socket has a feature. Whatever the error is, the answer is to
// do without.
func probe(fd int, f feature) bool { return f.test(fd) == nil }

// scopeOf is the number of the interface in an address's zone.
func scopeOf(a netip.Addr) (uint32, error) {
	if a.Zone() == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(a.Zone(), 10, 32); err == nil {
		return uint32(n), nil
	}
	i, err := net.InterfaceByName(a.Zone())
	if err != nil {
		return 0, err
	}
	return uint32(i.Index), nil
}
