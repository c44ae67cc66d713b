package roce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/wire"
)

// Multicast: a RoCEv2 group is an IP multicast group, and the GID of one is the address of the other. Each
// group with a member on this host has its own socket, bound to the group's address. So it receives nothing
// for the host's own addresses, and several daemons on a machine can join the same group. The loop reads
// these sockets only when the poller reports one as readable, so memberships cost nothing on the data path.

// MaxGroups is the maximum number of groups that a host joins on the network. Each needs a socket with a
// buffer.
const MaxGroups = 1024

// ErrGroups means that no more groups can be joined.
var ErrGroups = errors.New("link: too many multicast groups")

// Groups is a Bind that can join multicast groups.
type Groups interface {
	// Join joins a group at every interface that has one of the bind's addresses of the group's family.
	// The descriptor is readable when datagrams for the group have arrived. It is -1 if there is no such
	// address.
	Join(group netip.Addr) (fd int, err error)
	// Leave leaves the group.
	Leave(group netip.Addr)
	// ReceiveGroup is Receive for the group with this descriptor.
	ReceiveGroup(fd int, msgs []Message) (int, error)
}

const (
	// groupBuffer is the receive buffer of a group's socket.
	groupBuffer = 1 << 20
	// groupHops is the hop limit of datagrams to a group, the same as for others. The system's default is
	// one hop.
	groupHops = wire.DefaultTTL
	// ipv6MulticastAll is IPV6_MULTICAST_ALL of linux/in6.h, since 4.20.
	ipv6MulticastAll = 29
)

// Join implements Groups.
func (u *UDP) Join(group netip.Addr) (int, error) {
	group = group.Unmap()
	if len(u.groups) >= MaxGroups {
		return -1, fmt.Errorf("%w: %d are joined, the most that a host can have; leave one first", ErrGroups, len(u.groups))
	}
	e := endpoint{addr: group, local: netip.AddrPortFrom(group, wire.Port), fd: -1}
	for i := range e.out {
		e.out[i] = -1
	}
	at := u.interfaces(group.Is4())
	if len(at) == 0 {
		return -1, nil // no address of this family: nothing can be sent or received
	}
	if group.IsLinkLocalMulticast() && !group.Is4() {
		e.scope = uint32(at[0])
	}
	if err := u.openGroup(&e, at); err != nil {
		if e.fd >= 0 {
			unix.Close(e.fd)
		}
		return -1, fmt.Errorf("join %v: %w (net.ipv4.igmp_max_memberships, net.core.optmem_max and the limit of open files bound this)", group, err)
	}
	u.groups = append(u.groups, e)
	return e.fd, nil
}

// openGroup opens the socket of a group and joins the group at these interfaces.
func (u *UDP) openGroup(e *endpoint, at []int) error {
	var err error
	if e.fd, err = u.open(e, wire.Port, true); err != nil {
		return err
	}
	enlarge(e.fd, unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, groupBuffer)
	v4 := e.addr.Is4()
	if v4 {
		err = unix.SetsockoptInt(e.fd, unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0)
	} else {
		// rxe sends no UDP checksum. Older kernels also deliver datagrams of groups that other sockets of
		// the machine have joined; they are harmless.
		err = unix.SetsockoptInt(e.fd, unix.SOL_UDP, udpNoCheck6RX, 1)
		_ = unix.SetsockoptInt(e.fd, unix.IPPROTO_IPV6, ipv6MulticastAll, 0)
	}
	if err != nil {
		return err
	}
	for _, i := range at {
		if v4 {
			err = unix.SetsockoptIPMreqn(e.fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: e.addr.As4(), Ifindex: int32(i)})
		} else {
			err = unix.SetsockoptIPv6Mreq(e.fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: e.addr.As16(), Interface: uint32(i)})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// interfaces returns the numbers of the interfaces that have addresses of a family.
func (u *UDP) interfaces(v4 bool) []int {
	var out []int
	seen := map[int]bool{}
	for i := range u.ends {
		if e := &u.ends[i]; e.addr.Is4() == v4 && e.iface != 0 && !seen[e.iface] {
			seen[e.iface] = true
			out = append(out, e.iface)
		}
	}
	return out
}

// Leave implements Groups.
func (u *UDP) Leave(group netip.Addr) {
	group = group.Unmap()
	for i := range u.groups {
		if u.groups[i].addr == group {
			unix.Close(u.groups[i].fd) // closing leaves the group
			u.groups = append(u.groups[:i], u.groups[i+1:]...)
			return
		}
	}
}

// ReceiveGroup implements Groups.
func (u *UDP) ReceiveGroup(fd int, msgs []Message) (int, error) {
	for i := range u.groups {
		if u.groups[i].fd == fd {
			return u.receiveFrom(u.groups[i].fd, &u.groups[i], msgs), nil
		}
	}
	return 0, nil
}

// prepareGroups makes a sending socket send to groups through the interface of its address, with groupHops.
// Loopback stays on: other daemons on this machine may be members.
func prepareGroups(e *endpoint, fd int) error {
	if e.addr.Is4() {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, groupHops); err != nil {
			return err
		}
		return unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Address: e.addr.As4()})
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, groupHops); err != nil || e.iface == 0 {
		return err
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, e.iface)
}

// interfaceOf returns the number of the interface that has an address; 0: none.
func interfaceOf(a netip.Addr) int {
	list, _ := net.Interfaces()
	for _, i := range list {
		addrs, _ := i.Addrs()
		for _, p := range addrs {
			if n, ok := p.(*net.IPNet); ok {
				if b, ok := netip.AddrFromSlice(n.IP); ok && b.Unmap() == a {
					return i.Index
				}
			}
		}
	}
	return 0
}

// Join makes the host a member of a group on the network. The descriptor is readable when datagrams for the
// group have arrived; -1 means that none can arrive.
func (p *Port) Join(group netip.Addr) (int, error) {
	if g, ok := p.bind.(Groups); ok {
		return g.Join(group)
	}
	return -1, fmt.Errorf("join %v: this network has no multicast", group)
}

// Leave ends a membership and closes its descriptor.
func (p *Port) Leave(group netip.Addr) {
	if g, ok := p.bind.(Groups); ok {
		g.Leave(group)
	}
}

// PollGroup is Poll for the group with this descriptor. It ignores this host's own datagrams: members on this
// host have already received them.
func (p *Port) PollGroup(fd int, r Receiver) bool {
	g, ok := p.bind.(Groups)
	if !ok {
		return false
	}
	n, err := g.ReceiveGroup(fd, p.in)
	for i := range n {
		m := &p.in[i]
		if _, _, ours := p.bind.Source(m.Remote.Addr().Unmap().WithZone(""), 0); !ours {
			p.take(m, r)
		}
		m.Data = m.Data[:receiveRoom]
	}
	return n > 0 && err == nil
}
