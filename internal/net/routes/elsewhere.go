package routes

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Elsewhere is a network namespace other than the daemon's. It is queried through sockets that were created there: one of
// netlink, and one of UDP for each family. Any goroutine may use it.
type Elsewhere struct {
	mu      sync.Mutex
	netlink int // guarded by mu; -1: closed
	udp     [2]int

	listing sync.Mutex // held during Addresses; locked before mu
	lists   int        // guarded by listing; the netlink socket of Addresses; -1: not open
	open    func() (int, error)
}

// NewElsewhere takes over three sockets; -1 stands for none. open opens a further netlink socket in the namespace.
func NewElsewhere(netlink, udp4, udp6 int, open func() (int, error)) *Elsewhere {
	return &Elsewhere{netlink: netlink, udp: [2]int{udp4, udp6}, lists: -1, open: open}
}

// Close closes the sockets. It waits for a running call of Addresses.
func (e *Elsewhere) Close() {
	e.listing.Lock()
	defer e.listing.Unlock()
	e.forget()
	e.open = nil
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, fd := range []*int{&e.netlink, &e.udp[0], &e.udp[1]} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// forget closes the socket of Addresses. The caller holds listing.
func (e *Elsewhere) forget() {
	if e.lists >= 0 {
		unix.Close(e.lists)
		e.lists = -1
	}
}

// ask sends a request in the namespace.
func (e *Elsewhere) ask(kind uint16, body []byte) (*syscall.NetlinkMessage, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.netlink < 0 {
		return nil, net.ErrClosed
	}
	return askAt(e.netlink, kind, body)
}

// From is the function From in the namespace.
func (e *Elsewhere) From(from, to netip.Addr) (netip.Addr, error) {
	m, err := e.ask(unix.RTM_GETROUTE, routeRequest(from, to))
	if err != nil {
		return netip.Addr{}, err
	}
	if len(m.Data) < unix.SizeofRtMsg {
		return netip.Addr{}, errNoAnswer
	}
	switch m.Data[7] { // rtm_type: for IPv6 it says whether there is a route
	case unix.RTN_UNREACHABLE, unix.RTN_BLACKHOLE, unix.RTN_PROHIBIT, unix.RTN_THROW:
		return netip.Addr{}, syscall.ENETUNREACH
	}
	if !from.IsUnspecified() {
		return from, nil
	}
	for _, a := range attributes(m, unix.SizeofRtMsg) {
		if a.Attr.Type == unix.RTA_PREFSRC {
			if b, ok := netip.AddrFromSlice(a.Value); ok {
				return b, nil
			}
		}
	}
	return netip.Addr{}, syscall.ENETUNREACH
}

// Reach is the function Reach in the namespace.
func (e *Elsewhere) Reach(from, to netip.Addr, timeout time.Duration) error {
	return reach(e.ask, func() { e.provoke(to) }, from, to, timeout)
}

// provoke sends an empty datagram.
func (e *Elsewhere) provoke(to netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fd := e.udp[0]
	if to.Is6() {
		fd = e.udp[1]
	}
	if fd >= 0 {
		unix.Sendto(fd, nil, unix.MSG_DONTWAIT, socketAddress(to, rocePort)) // the neighbour's state shows a failure
	}
}

// An Interface is an address of an interface.
type Interface struct {
	Addr  netip.Addr
	Name  string
	Index int
	MTU   int
}

// mostCollected limits the number of interfaces, and of addresses, read from a namespace that others control.
const mostCollected = 1000

// Addresses returns the usable addresses of the interfaces that are up, at most mostCollected. It returns an error if the
// addresses change all the time while it reads them.
func (e *Elsewhere) Addresses() (out []Interface, err error) {
	e.listing.Lock()
	defer e.listing.Unlock()
	for range 3 {
		if e.lists < 0 {
			if e.open == nil {
				return nil, net.ErrClosed
			}
			if e.lists, err = e.open(); err != nil {
				e.lists = -1
				return nil, err
			}
		}
		if out, err = addresses(e.lists); err == nil {
			return out, nil
		}
		e.forget()
		if !errors.Is(err, errChanged) {
			break
		}
	}
	return nil, err
}

// addresses reads the addresses through a socket.
func addresses(fd int) ([]Interface, error) {
	links := make(map[int]Interface)
	err := dump(fd, unix.RTM_GETLINK, unix.SizeofIfInfomsg, func(m *syscall.NetlinkMessage) {
		if binary.NativeEndian.Uint32(m.Data[8:])&unix.IFF_UP == 0 || len(links) >= mostCollected {
			return
		}
		i := Interface{Index: int(binary.NativeEndian.Uint32(m.Data[4:])), MTU: 1500}
		for _, a := range attributes(m, unix.SizeofIfInfomsg) {
			switch {
			case a.Attr.Type == unix.IFLA_IFNAME && len(a.Value) > 1:
				i.Name = string(a.Value[:len(a.Value)-1])
			case a.Attr.Type == unix.IFLA_MTU && len(a.Value) >= 4:
				i.MTU = int(binary.NativeEndian.Uint32(a.Value))
			}
		}
		links[i.Index] = i
	})
	if err != nil {
		return nil, err
	}
	var out []Interface
	err = dump(fd, unix.RTM_GETADDR, unix.SizeofIfAddrmsg, func(m *syscall.NetlinkMessage) {
		i, up := links[int(binary.NativeEndian.Uint32(m.Data[4:]))]
		if !up || len(out) >= mostCollected || m.Data[2]&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
			return
		}
		// On a point-to-point interface IFA_LOCAL is the local address and IFA_ADDRESS the peer's.
		for _, a := range attributes(m, unix.SizeofIfAddrmsg) {
			b, ok := netip.AddrFromSlice(a.Value)
			if ok && (a.Attr.Type == unix.IFA_LOCAL || a.Attr.Type == unix.IFA_ADDRESS && !i.Addr.IsValid()) {
				i.Addr = b.Unmap()
			}
		}
		if i.Addr.IsValid() {
			out = append(out, i)
		}
	})
	return out, err
}
