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

// feature is an optional feature of the kernel's UDP sockets.
type feature struct {
	name  string
	since string // version of Linux
	test  func(fd int) error
}

// featureGSO lets one call send many datagrams, which are separated as late as possible. A socket may have the
// option although the device cannot do it: then a send fails with EIO.
var featureGSO = feature{"UDP_SEGMENT", "4.18", func(fd int) error {
	_, err := unix.GetsockoptInt(fd, unix.SOL_UDP, udpSegment)
	return err
}}

// featureGRO lets one call receive many datagrams of one sender. The test enables it.
var featureGRO = feature{"UDP_GRO", "5.0", func(fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_UDP, udpGRO, 1)
}}

// probe reports whether a socket has a feature. Any error means that it has not.
func probe(fd int, f feature) bool { return f.test(fd) == nil }

// scopeOf returns the number of the interface in an address's zone.
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
