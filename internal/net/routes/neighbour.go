package routes

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// This file checks whether the next hop to a host is reachable, as the kernel's resolver does for an address. It reads the
// kernel's neighbour table with netlink, which needs no privileges, and creates an entry by sending a datagram.

// A hop is the next hop to a host.
type hop struct {
	link int // interface
	addr netip.Addr
}

// probePeriod is the polling interval for a neighbour that is being resolved.
const probePeriod = 20 * time.Millisecond

// Reach waits until the next hop to a host is resolved, at most timeout. It also returns nil if that cannot be determined: the
// connection will fail then.
func Reach(from, to netip.Addr, timeout time.Duration) error {
	return reach(ask, func() { provoke(from, to) }, from, to, timeout)
}

// An asker sends one netlink request and returns its answer.
type asker func(kind uint16, body []byte) (*syscall.NetlinkMessage, error)

// reach is Reach with the functions ask and provoke; provoke makes the kernel resolve the neighbour.
func reach(ask asker, provoke func(), from, to netip.Addr, timeout time.Duration) error {
	h, err := nextHop(ask, from, to)
	if err != nil {
		return nil
	}
	for start := time.Now(); ; time.Sleep(probePeriod) {
		state, err := neighbour(ask, h)
		if err != nil && !errors.Is(err, syscall.ENOENT) {
			return nil
		}
		const valid = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY
		if state&valid != 0 {
			return nil
		}
		if time.Since(start) >= timeout {
			return syscall.ETIMEDOUT
		}
		if state == 0 || state&unix.NUD_FAILED != 0 {
			provoke()
		}
	}
}

// provoke sends an empty datagram, so that the kernel resolves the neighbour. The receiver drops it, because it is not a RoCEv2
// packet.
func provoke(from, to netip.Addr) {
	family := unix.AF_INET
	if to.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if unix.Bind(fd, socketAddress(from, 0)) == nil {
		unix.Sendto(fd, nil, 0, socketAddress(to, rocePort)) // the neighbour's state shows a failure
	}
}

// nextHop looks up the next hop in the routing table.
func nextHop(ask asker, from, to netip.Addr) (hop, error) {
	m, err := ask(unix.RTM_GETROUTE, routeRequest(from, to))
	if err != nil {
		return hop{}, err
	}
	h := hop{addr: to}
	for _, a := range attributes(m, unix.SizeofRtMsg) {
		switch a.Attr.Type {
		case unix.RTA_OIF:
			if len(a.Value) >= 4 {
				h.link = int(binary.NativeEndian.Uint32(a.Value))
			}
		case unix.RTA_GATEWAY:
			if g, ok := netip.AddrFromSlice(a.Value); ok {
				h.addr = g
			}
		}
	}
	return h, nil
}

// routeRequest returns the request for the route between two addresses; from may be unspecified.
func routeRequest(from, to netip.Addr) []byte {
	body := make([]byte, unix.SizeofRtMsg)
	body[0], body[1] = family(to), uint8(to.BitLen())
	body = attribute(body, unix.RTA_DST, to.AsSlice())
	if !from.IsUnspecified() {
		body[2] = uint8(from.BitLen())
		body = attribute(body, unix.RTA_SRC, from.AsSlice())
	}
	return body
}

// neighbour returns the state of a neighbour (NUD_…), or ENOENT if there is no entry.
func neighbour(ask asker, h hop) (uint16, error) {
	body := make([]byte, unix.SizeofNdMsg)
	body[0] = family(h.addr)
	binary.NativeEndian.PutUint32(body[4:], uint32(h.link))
	body = attribute(body, unix.NDA_DST, h.addr.AsSlice())
	m, err := ask(unix.RTM_GETNEIGH, body)
	if err != nil {
		return 0, err
	}
	if len(m.Data) < unix.SizeofNdMsg {
		return 0, errNoAnswer
	}
	return binary.NativeEndian.Uint16(m.Data[8:]), nil
}

func family(a netip.Addr) uint8 {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// ask sends one netlink request and returns its answer.
func ask(kind uint16, body []byte) (*syscall.NetlinkMessage, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return askAt(fd, kind, body)
}

// attribute appends a netlink attribute, padded.
func attribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// attributes returns the attributes of an answer whose own header has the given size.
func attributes(m *syscall.NetlinkMessage, header int) (out []syscall.NetlinkRouteAttr) {
	for b := m.Data[min(header, len(m.Data)):]; len(b) >= unix.SizeofRtAttr; {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			return out
		}
		out = append(out, syscall.NetlinkRouteAttr{
			Attr:  syscall.RtAttr{Len: uint16(n), Type: binary.NativeEndian.Uint16(b[2:])},
			Value: b[unix.SizeofRtAttr:n],
		})
		b = b[min((n+3)&^3, len(b)):]
	}
	return out
}
