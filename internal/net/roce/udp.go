package roce

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/wire"
)

const (
	// firstPort and numPorts are the range of RoCEv2 source ports (annex A17.9.2).
	firstPort = 0xc000
	numPorts  = 1 << 14
	// poolSize is the number of source ports per local address: enough to spread sessions over the paths and
	// queues of the network.
	poolSize = 8
	// SocketsPerAddress is the number of sockets that a UDP opens per address.
	SocketsPerAddress = 1 + poolSize
)

// UDPOptions are the user's settings.
type UDPOptions struct {
	// NoGSO and NoGRO disable batching in the kernel, even where it works.
	NoGSO, NoGRO bool
	// NoECN sends packets as not ECN-capable.
	NoECN bool
	// Buffer is the size of the socket buffers; 0 means 16 MiB. Without CAP_NET_ADMIN the kernel limits it to
	// net.core.rmem_max.
	Buffer int
	// Port is the port at which datagrams arrive; 0 means RoCEv2's, any other port VXLAN's.
	Port uint16
	// Socket creates a non-blocking UDP socket of a family; nil: in the daemon's network namespace. Interface
	// returns the number of the interface that has an address there.
	Socket    func(family int) (int, error)
	Interface func(netip.Addr) int
	// Shards is the number of loops that receive, see shards.go; 0: one. With Socket there is one.
	Shards int
	// Ports are the ports from which each address sends; nil: any free ones, from which other programs can send, too.
	// They belong to the daemon's network namespace: with Socket, they are not used.
	Ports *Ports
	// Inherited returns the sockets of an address at the port that another daemon has left (Sockets), which the
	// UDP closes; nil: there are none.
	Inherited func(port uint16, addr netip.Addr) []int
}

// UDP is a Bind of UDP sockets. Each local address has one that receives on port 4791 and several that send.
//
// The sending sockets are bound but not connected, and must not fragment. Only then the kernel sends IPv4
// identification 0, or 0, 1, 2… in the segments of one call. The ICRC covers the identification.
type UDP struct {
	opts   UDPOptions
	ends   []endpoint
	groups []endpoint // multicast sockets, which only receive
	gro    bool
	shard  // the first
}

// endpoint is one local address.
type endpoint struct {
	addr  netip.Addr // without zone
	local netip.AddrPort
	scope uint32 // scope of a link-local address
	iface int    // number of the interface that has the address; 0: unknown
	fd    int
	more  []int         // receiving sockets of the other shards
	out   [poolSize]int // sending sockets
	port  [poolSize]uint16
	held  bool // only this daemon can send from them: they are those of UDPOptions.Ports
	// grouped says that the receiving sockets are or were several, which a program steers.
	grouped bool
}

// ListenUDP opens the sockets of these addresses. A link-local address needs a zone.
func ListenUDP(o UDPOptions, addrs ...netip.Addr) (*UDP, error) {
	if o.Buffer == 0 {
		o.Buffer = 16 << 20
	}
	if o.Port == 0 {
		o.Port = wire.Port
	}
	u := &UDP{opts: o}
	u.shard = *newShard(u, 0)
	for _, a := range addrs {
		if err := u.add(a.Unmap()); err != nil {
			u.Close()
			return nil, err
		}
	}
	if len(u.ends) == 0 {
		return nil, errors.New("no address to receive at")
	}
	return u, nil
}

// add opens the sockets of one address.
func (u *UDP) add(a netip.Addr) error {
	e := endpoint{addr: a.WithZone(""), fd: -1}
	for i := range e.out {
		e.out[i] = -1
	}
	e.local = netip.AddrPortFrom(e.addr, u.opts.Port)
	if u.opts.Interface != nil {
		e.iface = u.opts.Interface(e.addr)
	} else {
		e.iface = interfaceOf(e.addr)
	}
	var err error
	if e.scope, err = scopeOf(a); err != nil {
		return err
	}
	u.ends = append(u.ends, e)
	p := &u.ends[len(u.ends)-1] // appended now, so that Close finds the sockets after an error
	if u.opts.Inherited != nil {
		if fds := u.opts.Inherited(u.opts.Port, p.addr); fds != nil {
			return u.inherit(p, fds)
		}
	}
	if p.fd, err = u.open(p, u.opts.Port, false); err != nil {
		return u.explain(a, err)
	}
	if err := u.prepareReceive(p, p.fd); err != nil {
		return fmt.Errorf("prepare the socket at %v: %w", p.local, err)
	}
	u.openShards(p)
	if u.opts.Ports != nil && u.opts.Socket == nil {
		return u.sendFromHeld(p)
	}
	// Start at a random port: other programs may use some.
	try := rand.Uint32N(numPorts)
	for i := range p.out {
		// Use one socket for all attempts: creating sockets through a helper process is slow.
		if p.out[i], err = u.socket(p.family()); err != nil {
			return u.explain(a, err)
		}
		for range 1000 {
			port := firstPort + uint16(try%numPorts)
			try++
			if err = unix.Bind(p.out[i], p.name(port)); err == nil {
				p.port[i] = port
				break
			}
			if !errors.Is(err, unix.EADDRINUSE) {
				return u.explain(a, err)
			}
		}
		if err != nil {
			return fmt.Errorf("no UDP port between %d and %d of %v is free: %w", firstPort, firstPort+numPorts-1, a, err)
		}
		if err := u.prepareSend(p, p.out[i]); err != nil {
			return fmt.Errorf("prepare the socket at port %d of %v: %w", p.port[i], a, err)
		}
	}
	return nil
}

// sendFromHeld opens the sending sockets of e at the ports of UDPOptions.Ports.
func (u *UDP) sendFromHeld(e *endpoint) (err error) {
	for i := range e.out {
		if e.out[i], err = u.socket(e.family()); err != nil {
			return u.explain(e.addr, err)
		}
		if err = u.opts.Ports.bind(e.out[i], e, i); err == nil {
			e.port[i] = u.opts.Ports.numbers[i]
			err = u.prepareSend(e, e.out[i])
		}
		if err != nil {
			return fmt.Errorf("prepare the socket at port %d of %v: %w", u.opts.Ports.numbers[i], e.addr, err)
		}
	}
	e.held = true
	return nil
}

// inherit makes e from the sockets that another daemon has left: the receiving one first, then those that send, then those of
// other shards. They have their options.
func (u *UDP) inherit(e *endpoint, fds []int) error {
	if len(fds) < SocketsPerAddress {
		return fmt.Errorf("%d inherited sockets at %v, want %d or more", len(fds), e.addr, SocketsPerAddress)
	}
	e.fd = fds[0]
	copy(e.out[:], fds[1:])
	u.inheritShards(e, fds[SocketsPerAddress:])
	for i, fd := range e.out {
		var err error
		if e.port[i], err = boundPort(fd); err != nil {
			return fmt.Errorf("an inherited socket at %v: %w", e.addr, err)
		}
	}
	e.held = u.opts.Ports != nil && e.port == u.opts.Ports.numbers
	u.gro = !u.opts.NoGRO && probe(e.fd, featureGRO)
	u.gso = !u.opts.NoGSO && probe(e.out[0], featureGSO)
	return nil
}

// Sockets returns the sockets of each address, for the Inherited of the next daemon.
func (u *UDP) Sockets() map[netip.Addr][]int {
	out := make(map[netip.Addr][]int)
	for i := range u.ends {
		e := &u.ends[i]
		out[e.addr] = append(append([]int{e.fd}, e.out[:]...), e.more...)
	}
	return out
}

// Port returns the port at which datagrams arrive.
func (u *UDP) Port() uint16 { return u.opts.Port }

// open returns a socket bound to a port of e's address; shared sets SO_REUSEPORT.
func (u *UDP) open(e *endpoint, port uint16, shared bool) (int, error) {
	fd, err := u.socket(e.family())
	if err != nil {
		return -1, err
	}
	if shared {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, e.name(port))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// family returns the address family for socket(2).
func (e *endpoint) family() int {
	if e.addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// name returns the endpoint's address with a port.
func (e *endpoint) name(port uint16) unix.Sockaddr {
	if e.addr.Is4() {
		return &unix.SockaddrInet4{Addr: e.addr.As4(), Port: int(port)}
	}
	return &unix.SockaddrInet6{Addr: e.addr.As16(), Port: int(port), ZoneId: e.scope}
}

// socket creates a UDP socket in the bind's network namespace.
func (u *UDP) socket(family int) (int, error) {
	if u.opts.Socket != nil {
		return u.opts.Socket(family)
	}
	return unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
}

// explain adds what to do about an address that cannot be bound.
func (u *UDP) explain(a netip.Addr, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		who := fmt.Sprintf("another program, perhaps another vrdma daemon, has it (ss -ulnp 'sport = %d' shows which); stop it or give this daemon another --addr", u.opts.Port)
		if u.opts.Port != wire.Port {
			who = overlayPortUser(u.opts.Port)
		} else if _, e := os.Stat("/sys/module/rdma_rxe"); e == nil {
			who = "the kernel's rdma_rxe is loaded and takes it; remove its devices (rdma link; rdma link delete NAME) or unload it (modprobe -r rdma_rxe)"
		}
		return fmt.Errorf("UDP port %d of %v is taken: %s: %w", u.opts.Port, a, who, err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%v is not an address of this machine, or not usable yet (ip address shows them; an IPv6 address is tentative for a second or two): %w", a, err)
	}
	return fmt.Errorf("open a UDP socket at port %d of %v: %w", u.opts.Port, a, err)
}

// overlayPortUser returns the likely user of the VXLAN port. A kernel vxlan device that is up uses it at all
// addresses.
func overlayPortUser(port uint16) string {
	if devices := vxlanDevices(port); len(devices) > 0 {
		return fmt.Sprintf("the kernel's vxlan device %s has it while it is up (ip -d link show type vxlan shows its dstport); "+
			"set it down or give it another dstport, or choose another port for all hosts with --overlay-port", strings.Join(devices, ", "))
	}
	return fmt.Sprintf("another program, perhaps another vrdma daemon, has it (ss -ulnp 'sport = %d' shows which); "+
		"stop it, or choose another port for all hosts with --overlay-port or another address with --underlay", port)
}

// prepareReceive sets the options of a receiving socket.
func (u *UDP) prepareReceive(e *endpoint, fd int) error {
	enlarge(fd, unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, u.opts.Buffer)
	u.gro = !u.opts.NoGRO && probe(fd, featureGRO)
	if e.addr.Is4() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
	}
	// rxe sends no UDP checksum; over IPv6 the receiver must allow that.
	if err := unix.SetsockoptInt(fd, unix.SOL_UDP, udpNoCheck6RX, 1); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
}

// prepareSend sets the options of a sending socket.
func (u *UDP) prepareSend(e *endpoint, fd int) error {
	enlarge(fd, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, u.opts.Buffer)
	// No peer sends to this port; minimize the memory for datagrams that arrive anyway.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0); err != nil {
		return err
	}
	u.gso = !u.opts.NoGSO && probe(fd, featureGSO)
	if err := prepareGroups(e, fd); err != nil {
		return err
	}
	tos := ect
	if u.opts.NoECN {
		tos = 0
	}
	if e.addr.Is4() {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, tos)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, tos)
}

// enlarge sets the size of a socket buffer, beyond the administrator's limit if permitted.
func enlarge(fd, opt, force, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, size) // the kernel limits the size
	}
}

// GSO and GRO report whether the kernel batches sent and received datagrams.
func (u *UDP) GSO() bool { return u.gso }
func (u *UDP) GRO() bool { return u.gro }

// ReceiveBuffer returns the size of a socket's receive buffer, in bytes as the kernel counts them. That includes the
// kernel's overhead, which is most of it for small packets.
func (u *UDP) ReceiveBuffer() int {
	n, err := unix.GetsockoptInt(u.ends[0].fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 0
	}
	return n
}

// Close implements Bind.
func (u *UDP) Close() error {
	for i := range u.ends {
		u.ends[i].close()
	}
	for i := range u.groups {
		unix.Close(u.groups[i].fd)
	}
	u.ends, u.groups = nil, nil
	return nil
}
