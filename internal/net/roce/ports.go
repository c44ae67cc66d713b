package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// Ports are UDP ports of this machine from which no other program can send. A daemon sends from them and tells other
// hosts their numbers. A packet with this host's address and another source port is then a forgery of a local user.
//
// A socket that is bound to one address is not enough. Any user may bind the same port at another address of the machine,
// for instance 127.0.0.1 or ::1, and choose this host's address as the source with IP_PKTINFO or IPV6_PKTINFO. So each
// port also has a socket at the wildcard address of both families, which conflicts with every other. Two sockets of one
// port need SO_REUSEPORT at the moment in which the second is bound. It is off before and afterwards, so that not even a
// program of the same user can share the port. SO_REUSEADDR would admit every user.
//
// A program with CAP_NET_RAW in the machine's network namespace can send from any port.
type Ports struct {
	mu      sync.Mutex // held while a port is shared
	holders [poolSize]int
	numbers [poolSize]uint16
}

// HoldPorts takes ports of this machine, of which seed determines the first that it tries. So a daemon that starts again
// mostly gets the ports that other hosts know.
func HoldPorts(seed uint32) (*Ports, error) {
	p := newPorts()
	try := seed
	for i := range p.holders {
		fd, family, err := wildcardSocket()
		if err != nil {
			p.Close()
			return nil, err
		}
		p.holders[i] = fd
		for range 1000 {
			port := firstPort + uint16(try%numPorts)
			try++
			if err = unix.Bind(fd, wildcard(family, port)); err == nil {
				p.numbers[i] = port
				break
			}
			if !errors.Is(err, unix.EADDRINUSE) {
				break
			}
		}
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("no UDP port from %d on is free at all addresses: %w", firstPort, err)
		}
	}
	return p, nil
}

// InheritPorts takes the ports that another daemon has left (Sockets). It closes fds after an error.
func InheritPorts(fds []int) (*Ports, error) {
	p := newPorts()
	if len(fds) != poolSize {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("%d inherited sockets that hold ports, want %d", len(fds), poolSize)
	}
	copy(p.holders[:], fds)
	for i, fd := range fds {
		port, err := boundPort(fd)
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("an inherited socket that holds a port: %w", err)
		}
		p.numbers[i] = port
	}
	return p, nil
}

func newPorts() *Ports {
	p := &Ports{}
	for i := range p.holders {
		p.holders[i] = -1
	}
	return p
}

// PortSeed is a seed for HoldPorts that is the same whenever a daemon receives at this port of this address.
func PortSeed(a netip.Addr, port uint16) uint32 {
	h := fnv.New32a()
	b := a.As16()
	h.Write(b[:])
	h.Write(binary.BigEndian.AppendUint16(nil, port))
	return h.Sum32()
}

// wildcardSocket returns a socket for the wildcard address of both families, or of IPv4 where the kernel has no IPv6.
func wildcardSocket() (fd, family int, err error) {
	const kind = unix.SOCK_DGRAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	if fd, err = unix.Socket(unix.AF_INET6, kind, unix.IPPROTO_UDP); err == nil {
		// An IPv6 socket at ::1 can send IPv4 packets, too, and conflicts only with a socket of both families.
		if err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0); err != nil {
			unix.Close(fd)
			return -1, 0, err
		}
		family = unix.AF_INET6
	} else if fd, err = unix.Socket(unix.AF_INET, kind, unix.IPPROTO_UDP); err != nil {
		return -1, 0, err
	} else {
		family = unix.AF_INET
	}
	// Nothing is received here.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0)
	return fd, family, nil
}

func wildcard(family int, port uint16) unix.Sockaddr {
	if family == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(port)}
	}
	return &unix.SockaddrInet6{Port: int(port)}
}

// bind binds a sending socket of an endpoint to the i-th port.
func (p *Ports) bind(fd int, e *endpoint, i int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	pair := [2]int{p.holders[i], fd}
	for _, fd := range pair {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return err
		}
	}
	err := unix.Bind(fd, e.name(p.numbers[i]))
	for _, fd := range pair {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 0))
	}
	return err
}

// Numbers returns the ports.
func (p *Ports) Numbers() []uint16 {
	if p == nil {
		return nil
	}
	return p.numbers[:]
}

// Sockets returns the sockets that hold the ports, for InheritPorts of the next daemon.
func (p *Ports) Sockets() []int {
	if p == nil {
		return nil
	}
	return p.holders[:]
}

// Close gives the ports back.
func (p *Ports) Close() {
	for i, fd := range p.holders {
		if fd >= 0 {
			unix.Close(fd)
		}
		p.holders[i] = -1
	}
}

// boundPort returns the port that a socket is bound to.
func boundPort(fd int) (uint16, error) {
	at, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		return uint16(at.Port), nil
	case *unix.SockaddrInet6:
		return uint16(at.Port), nil
	}
	return 0, errors.New("not a socket of IP")
}

// A Holder is a Bind that knows from which ports only it can send.
type Holder interface {
	// Held returns the source ports of an address; nil: other programs can send from them.
	Held(local netip.Addr) []uint16
}

// Held implements Holder.
func (u *UDP) Held(local netip.Addr) []uint16 {
	for i := range u.ends {
		if e := &u.ends[i]; e.addr == local && e.held {
			return e.port[:]
		}
	}
	return nil
}

// Held returns the source ports of the port's packets from an address, if only this daemon can send from them.
func (p *Port) Held(local netip.Addr) []uint16 {
	if h, ok := p.bind.(Holder); ok {
		return h.Held(local)
	}
	return nil
}
