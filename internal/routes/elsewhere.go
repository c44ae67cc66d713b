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

// Elsewhere is a network namespace other than ours, asked through sockets that were made there: one
// of netlink's, and one of UDP for each family. Any goroutine may use it.
type Elsewhere struct {
	mu      sync.Mutex
	netlink int // guarded by mu; -1: closed
	udp     [2]int
}

// NewElsewhere takes over three sockets. A socket that is -1 is not there.
func NewElsewhere(netlink, udp4, udp6 int) *Elsewhere {
	return &Elsewhere{netlink: netlink, udp: [2]int{udp4, udp6}}
}

// Close closes the sockets.
func (e *Elsewhere) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, fd := range []*int{&e.netlink, &e.udp[0], &e.udp[1]} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// ask asks there. A socket whose answer was late could give it to the next who asks: it is not asked again.
func (e *Elsewhere) ask(kind uint16, body []byte) (*syscall.NetlinkMessage, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.netlink < 0 {
		return nil, net.ErrClosed
	}
	m, err := askAt(e.netlink, kind, body)
	if errors.Is(err, unix.EAGAIN) {
		unix.Close(e.netlink)
		e.netlink = -1
	}
	return m, err
}

// From is the function From, there.
func (e *Elsewhere) From(from, to netip.Addr) (netip.Addr, error) {
	m, err := e.ask(unix.RTM_GETROUTE, routeRequest(from, to))
	if err != nil {
		return netip.Addr{}, err
	}
	if len(m.Data) < unix.SizeofRtMsg {
		return netip.Addr{}, errNoAnswer
	}
	switch m.Data[7] { // rtm_type: of IPv6 it says that there is no way
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

// Reach is the function Reach, there.
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
		unix.Sendto(fd, nil, unix.MSG_DONTWAIT, socketAddress(to, rocePort)) // an error says nothing that we will not see
	}
}

// An Interface has an address.
type Interface struct {
	Addr  netip.Addr
	Name  string
	Index int
	MTU   int
}

// mostCollected bounds how many interfaces, and how many addresses, are kept of those that somebody else's namespace has.
const mostCollected = 1000

// Addresses are those of the interfaces there that are up, and that can be used now: the first thousand.
func (e *Elsewhere) Addresses() ([]Interface, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.netlink < 0 {
		return nil, net.ErrClosed
	}
	links := make(map[int]Interface)
	err := dump(e.netlink, unix.RTM_GETLINK, unix.SizeofIfInfomsg, func(m *syscall.NetlinkMessage) {
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
	err = dump(e.netlink, unix.RTM_GETADDR, unix.SizeofIfAddrmsg, func(m *syscall.NetlinkMessage) {
		i, up := links[int(binary.NativeEndian.Uint32(m.Data[4:]))]
		if !up || len(out) >= mostCollected || m.Data[2]&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
			return
		}
		// IFA_LOCAL is ours where IFA_ADDRESS is the other end of a point-to-point interface.
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

// dump asks for everything of a kind, whose messages have a header of the given size.
func dump(fd int, kind uint16, header int, each func(*syscall.NetlinkMessage)) error {
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	msg := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+header))
	msg = binary.NativeEndian.AppendUint16(msg, kind)
	msg = binary.NativeEndian.AppendUint16(msg, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	msg = append(msg, make([]byte, 8+header)...)
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return err
		}
		list, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for i := range list {
			switch m := &list[i]; {
			case m.Header.Type == unix.NLMSG_DONE:
				return nil
			case m.Header.Type == unix.NLMSG_ERROR:
				return errNoAnswer
			case len(m.Data) >= header:
				each(m)
			}
		}
	}
}
