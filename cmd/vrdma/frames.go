package main

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"vrdma/internal/overlay"
)

// A frameSender sends the frames of the switch to other hosts, in VXLAN. It has sockets of its own, so that
// those who send do not wait for the daemon's loop; what comes arrives at the loop's. The zero one sends nothing.
type frameSender struct {
	mu      sync.RWMutex
	sockets []*net.UDPConn // one for each address of the underlay
	log     *slog.Logger
	sealed  sync.Once
	buffers sync.Pool
}

// open opens sockets at the addresses of the underlay. Without one, hosts of that family are not reached.
func (s *frameSender) open(addrs []netip.Addr, log *slog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = log
	if len(s.sockets) > 0 {
		return
	}
	for _, a := range addrs {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
		if err != nil {
			log.Warn("virtual machines do not reach other hosts by this address", "address", a, "error", err)
			continue
		}
		s.sockets = append(s.sockets, c)
	}
}

func (s *frameSender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.sockets {
		c.Close()
	}
	s.sockets = nil
}

// send implements ethernet.Config.Send.
func (s *frameSender) send(vni uint32, to *overlay.Host, encrypted bool, frame []byte) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if encrypted {
		if s.log != nil {
			s.sealed.Do(func() {
				s.log.Warn("virtual machines in encrypted networks reach only those on this host: their frames are not sent through the tunnel yet")
			})
		}
		return
	}
	for _, a := range to.Addrs {
		for _, c := range s.sockets {
			if local := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(); local.Is4() == a.Is4() {
				s.write(c, a, to.Port, vni, frame)
				return
			}
		}
	}
}

// write sends a datagram, or loses it if the socket is full, as a wire would.
func (s *frameSender) write(c *net.UDPConn, to netip.Addr, port uint16, vni uint32, frame []byte) {
	if port == 0 {
		port = overlay.DefaultPort
	}
	b, _ := s.buffers.Get().(*[]byte)
	if b == nil {
		b = new([]byte)
	}
	defer s.buffers.Put(b)
	var head [overlay.VXLANSize]byte
	overlay.PutVXLAN(head[:], vni)
	*b = append(append((*b)[:0], head[:]...), frame...)
	var at unix.Sockaddr = &unix.SockaddrInet6{Port: int(port), Addr: to.As16()}
	if to.Is4() {
		at = &unix.SockaddrInet4{Port: int(port), Addr: to.As4()}
	}
	if raw, err := c.SyscallConn(); err == nil {
		raw.Write(func(fd uintptr) bool {
			unix.Sendto(int(fd), *b, unix.MSG_DONTWAIT, at)
			return true
		})
	}
}
