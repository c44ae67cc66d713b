package rdmacm

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/ib"
)

// Bind binds the ID to a local address: an address of the device, or a wildcard.
func (id *ID) Bind(addr netip.AddrPort) error {
	if id.state != Idle {
		return syscall.EINVAL
	}
	old := *id
	if !addr.Addr().IsUnspecified() {
		local, err := id.cma.localAddress(addr.Addr())
		if err != nil {
			return err
		}
		if id.ps == abi.PSIPoIB {
			return syscall.EINVAL // InfiniBand addresses are not supported
		}
		id.sgid, id.device = local.As16(), true
		addr = netip.AddrPortFrom(local, addr.Port())
	}
	id.src = addr
	if !id.afOnlySet {
		id.afOnly = addr.Addr().Is4()
	}
	if err := id.bindPort(); err != nil {
		id.src, id.sgid, id.device, id.afOnly = old.src, old.sgid, old.device, old.afOnly
		return err
	}
	id.state = Bound
	return nil
}

// localAddress returns the device's address for addr: addr itself, or for a loopback address that the device does not have, its first
// address of that family.
func (a *CMA) localAddress(addr netip.Addr) (netip.Addr, error) {
	if a.gidIndex(addr.As16()) >= 0 {
		return addr, nil
	}
	if addr.IsLoopback() {
		for i := range a.nic.GIDs {
			if g := netip.AddrFrom16(a.nic.GIDs[i].GID).Unmap(); g.Is4() == addr.Is4() {
				return g, nil
			}
		}
	}
	return netip.Addr{}, syscall.ENODEV
}

// BeginResolve is the first half of RESOLVE_IP: it binds an unbound ID and returns the addresses to find a route for. from may be
// unspecified.
func (id *ID) BeginResolve(src, dst netip.AddrPort) (from, to netip.Addr, err error) {
	if id.state == Idle {
		if !src.IsValid() {
			src = netip.AddrPortFrom(unspecified(dst.Addr()), 0)
		}
		if src.Addr().Is4() != dst.Addr().Is4() {
			return from, to, syscall.EINVAL
		}
		switch err := id.Bind(src); err {
		case nil:
		case syscall.ENODEV:
			return from, to, syscall.EADDRNOTAVAIL
		default:
			return from, to, err
		}
	}
	if id.state != Bound || id.src.Addr().Is4() != dst.Addr().Is4() && !id.src.Addr().IsUnspecified() {
		return from, to, syscall.EINVAL
	}
	id.state, id.dst = Resolving, dst
	return id.src.Addr(), dst.Addr(), nil
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func loopback(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// MaxPatience limits the time for a resolution.
const MaxPatience = time.Minute

// Patient sets how long a resolution that has begun may last.
func (id *ID) Patient(d time.Duration) { id.until = id.cma.now() + ib.Time(d) }

// A Resolution is the part of a resolution between BeginResolve and EndResolve.
type Resolution struct {
	ID       *ID
	Channel  *Channel
	From, To netip.Addr
	Patience time.Duration // remaining time
}

// Resolving returns the resolutions under way. After a client is restored, nobody works on them.
func (c *Client) Resolving() (list []Resolution) {
	for _, name := range c.ids.names() {
		if id := c.ids.items[name]; id.state == Resolving {
			list = append(list, Resolution{id, id.ch, id.src.Addr(), id.dst.Addr(), time.Duration(max(id.until-c.cma.now(), 0))})
		}
	}
	return list
}

// AbortResolve reverts BeginResolve: there is no route.
func (id *ID) AbortResolve() {
	if id.state == Resolving {
		id.state, id.dst = Bound, netip.AddrPort{}
	}
}

// Local returns the device's address for to, if to is on this machine.
func (a *CMA) Local(to netip.Addr) (netip.Addr, bool) {
	if to.IsUnspecified() && len(a.nic.GIDs) > 0 {
		to = netip.AddrFrom16(a.nic.GIDs[0].GID).Unmap()
	}
	l, err := a.localAddress(to)
	return l, err == nil
}

// Near reports whether to needs no route, because it is on this machine or a group. It returns the device's source address: from, unless
// that is unspecified.
func (a *CMA) Near(from, to netip.Addr) (netip.Addr, bool) {
	local, here := a.Local(to)
	switch {
	case !here && !to.IsMulticast():
		return from, false
	case !from.IsUnspecified():
		return from, true
	case here:
		return local, true
	}
	for i := range a.nic.GIDs {
		if g := netip.AddrFrom16(a.nic.GIDs[i].GID).Unmap(); g.Is4() == to.Is4() {
			return g, true
		}
	}
	return from, true // another address family: EndResolve returns the error
}

// EndResolve is the second half: src is the source address of the route. An errno other than 0 means that there is none.
func (id *ID) EndResolve(src netip.Addr, errno syscall.Errno) {
	if id.state != Resolving {
		return
	}
	id.Changed()
	a := id.cma
	dst := id.dst.Addr()
	anywhere := dst.IsUnspecified() && id.src.Addr().IsUnspecified()
	if l, ok := a.Local(dst); ok {
		dst = l
		if !src.IsValid() {
			src = l
		}
	}
	if errno == 0 && a.gidIndex(src.As16()) < 0 {
		errno = syscall.ENODEV
	}
	if errno == 0 && id.ps == abi.PSIPoIB {
		errno = syscall.EINVAL
	}
	if errno != 0 {
		id.AbortResolve()
		id.tell(abi.CMEventAddrError, failure(errno), nil, nil)
		return
	}
	id.state, id.device = Resolved, true
	id.src = netip.AddrPortFrom(src, id.src.Port())
	id.dst = netip.AddrPortFrom(dst, id.dst.Port())
	id.sgid, id.dgid = src.As16(), dst.As16()
	if anywhere {
		id.src = netip.AddrPortFrom(loopback(dst), id.src.Port()) // as the kernel does
	}
	id.tell(abi.CMEventAddrResolved, 0, nil, nil)
}

// ResolveRoute sets the path, which over Ethernet follows from the addresses.
func (id *ID) ResolveRoute() error {
	if id.state != Resolved {
		return syscall.EINVAL
	}
	id.route()
	return nil
}

// route sets the ID's path.
func (id *ID) route() {
	id.state, id.life = Routed, packetLife
	if id.ackTimeout != 0 {
		id.life = id.ackTimeout - 1
	}
	id.tell(abi.CMEventRouteResolved, 0, nil, nil)
}

// SetPath sets a path that the program resolved itself, an array of struct ib_path_rec_data, in place of ResolveRoute. All paths are
// equivalent here.
func (id *ID) SetPath(b []byte) error {
	const size, primary = 72, 1 | 1<<1 | 1<<3 | 1<<5 // GMP, primary, both directions
	if len(b)%size != 0 {
		return syscall.EINVAL
	}
	for ; len(b) > 0; b = b[size:] {
		if binary.NativeEndian.Uint32(b) == primary {
			break
		}
	}
	if len(b) == 0 || id.state != Resolved {
		return syscall.EINVAL
	}
	id.route()
	return nil
}

// Listen starts to accept requests.
func (id *ID) Listen(backlog int) error {
	if id.state == Idle {
		if err := id.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); err != nil {
			return err
		}
	}
	if id.state != Bound {
		return syscall.EINVAL
	}
	if id.reuse {
		if err := id.port.conflict(id, false); err != nil {
			return err
		}
	}
	if backlog <= 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	id.backlog = backlog
	id.state = Listening
	return nil
}

// maxBacklog is the kernel's net.rdma_ucm.max_backlog.
const maxBacklog = 1024

// routed reports whether the path is known.
func (id *ID) routed() bool {
	return id.state == Routed || id.state == Connecting || id.state == Disconnected
}

// Query is the result of QUERY_ROUTE.
type Query struct {
	PortSpace  uint16
	Src, Dst   netip.AddrPort
	Device     bool
	Routed     bool
	SGID, DGID ib.GID
	MTU        uint8
	TOS        uint8
	Life       uint8 // code of the packet lifetime
}

// Query returns the ID's addresses and route.
func (id *ID) Query() Query {
	return Query{
		PortSpace: id.ps, Src: id.src, Dst: id.dst, Device: id.device, Routed: id.routed(), SGID: id.sgid, DGID: id.dgid,
		MTU: id.mtu(), TOS: id.tos, Life: id.life,
	}
}

func (id *ID) mtu() uint8 {
	if id.conn != nil && id.conn.Path.MTU != 0 {
		return id.conn.Path.MTU
	}
	return id.cma.nic.MTU
}

// packetLife is the code of the packet lifetime: CMA_IBOE_PACKET_LIFETIME.
const packetLife = 18

// maxTimeout is the largest code of a local ACK timeout.
const maxTimeout = 31

// Service returns the service ID of an address's port.
func (q *Query) Service(a netip.AddrPort) uint64 {
	if !a.IsValid() {
		return 0
	}
	return serviceID(portKey{q.PortSpace, a.Port()})
}
