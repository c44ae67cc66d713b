package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/roce"
)

const (
	udpSegment = 103 // UDP_SEGMENT of <linux/udp.h>
	udpGRO     = 104
	// mergedMost is the number of merged messages received in one call.
	mergedMost = 4
)

// A udp has one kernel socket per address family. Datagrams of one length to one peer are sent in one message, which the
// kernel or the device splits (GSO), and received in one (GRO).
type udp struct {
	conns map[bool]*udpConn // by Is6
}

// udpConn is the socket of one address.
type udpConn struct {
	addr  netip.Addr
	conn  *net.UDPConn
	batch batcher
	gso   atomic.Bool
	pool  sync.Pool // *sending
}

// batcher is the common interface of ipv4.PacketConn and ipv6.PacketConn.
type batcher interface {
	ReadBatch([]ipv6.Message, int) (int, error)
	WriteBatch([]ipv6.Message, int) (int, error)
}

// listenUDP opens the sockets of the options.
func listenUDP(o Options) (*udp, error) {
	if o.Buffer == 0 {
		o.Buffer = 16 << 20
	}
	u := &udp{conns: map[bool]*udpConn{}}
	for _, a := range o.Addrs {
		a = a.Unmap()
		if u.conns[a.Is6()] != nil {
			u.close()
			return nil, fmt.Errorf("tunnel: %v and another address of its family: WireGuard is taken at one a family", a)
		}
		c, err := listen(a, o)
		if err != nil {
			u.close()
			return nil, err
		}
		u.conns[a.Is6()] = c
	}
	if len(u.conns) == 0 {
		return nil, errors.New("tunnel: no address to receive at")
	}
	return u, nil
}

// listen opens the socket of one address.
func listen(a netip.Addr, o Options) (*udpConn, error) {
	c := &udpConn{addr: a}
	network := "udp4"
	if a.Is6() {
		network = "udp6"
	}
	l := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) { err = c.prepare(int(fd), a.Is6(), o.Buffer) }); e != nil {
			return e
		}
		return err
	}}
	var pc net.PacketConn
	var err error
	if fds := o.inherited(a); len(fds) == 1 {
		if pc, err = inherit(fds[0]); err == nil {
			err = c.probe(pc)
		}
	} else {
		pc, err = l.ListenPacket(context.Background(), network, netip.AddrPortFrom(a, o.Port).String())
	}
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("UDP port %d of %v is taken: another program, perhaps the kernel's WireGuard or another vrdma daemon, has it (ss -ulnp 'sport = %d'; wg show); stop it or give this daemon another --tunnel-port: %w", o.Port, a, o.Port, err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%v is not an address of this machine, or not usable yet (ip address shows them): %w", a, err)
	case err != nil:
		return nil, fmt.Errorf("open a UDP socket for the tunnel: %w", err)
	}
	c.conn = pc.(*net.UDPConn)
	if a.Is6() {
		c.batch = ipv6.NewPacketConn(c.conn)
	} else {
		c.batch = ipv4.NewPacketConn(c.conn)
	}
	c.pool.New = func() any { return newSending() }
	return c, nil
}

// prepare sets the options of a socket.
func (c *udpConn) prepare(fd int, is6 bool, buffer int) error {
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], buffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], buffer) // the kernel limits the size
		}
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_UDP, udpGRO, 1) // without GRO every datagram is received separately
	c.probeGSO(fd)
	// Forbid fragments: one lost fragment loses the datagram, and the path MTU is chosen so that none are needed.
	if is6 {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
}

// probeGSO finds out whether the kernel splits messages.
func (c *udpConn) probeGSO(fd int) {
	_, err := unix.GetsockoptInt(fd, unix.SOL_UDP, udpSegment)
	c.gso.Store(err == nil)
}

// probe is probeGSO for a socket that has its options already.
func (c *udpConn) probe(pc net.PacketConn) error {
	u, ok := pc.(*net.UDPConn)
	if !ok {
		pc.Close()
		return errors.New("tunnel: the other daemon's socket is not a UDP socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { c.probeGSO(int(fd)) })
}

// inherited returns the sockets of an address that another daemon has left.
func (o *Options) inherited(a netip.Addr) []int {
	if o.Inherited == nil {
		return nil
	}
	return o.Inherited(o.Port, a)
}

// sending is the working storage of a send.
type sending struct {
	msgs []ipv6.Message
	oob  [][]byte
	addr net.UDPAddr
	ip   [16]byte
}

func newSending() *sending {
	s := &sending{msgs: make([]ipv6.Message, receiveBatch), oob: make([][]byte, receiveBatch)}
	for i := range s.msgs {
		s.msgs[i].Buffers = make([][]byte, 0, receiveBatch)
		s.oob[i] = make([]byte, unix.CmsgSpace(2))
	}
	return s
}

// send implements socket.
func (u *udp) send(bufs [][]byte, to netip.AddrPort) error {
	c := u.conns[to.Addr().Is6()]
	if c == nil {
		return unix.EAFNOSUPPORT
	}
	s := c.pool.Get().(*sending)
	defer c.pool.Put(s)
	s.ip = to.Addr().As16()
	s.addr = net.UDPAddr{IP: s.ip[:], Port: int(to.Port()), Zone: to.Addr().Zone()}
	if to.Addr().Is4() {
		s.addr.IP = s.ip[12:]
	}
	gso := c.gso.Load()
	var failed error
	for len(bufs) > 0 {
		n, took := s.pack(bufs, gso)
		err := c.write(s.msgs[:n])
		switch {
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil && gso:
			// The device cannot segment, or a datagram is too long for the path. Some datagrams are sent twice, which is
			// harmless: WireGuard drops replays.
			if gso = false; errors.Is(err, unix.EIO) {
				c.gso.Store(false)
			}
			continue
		case err != nil:
			failed = err
		}
		bufs = bufs[took:]
	}
	return failed
}

// write sends all messages that the kernel accepts.
func (c *udpConn) write(msgs []ipv6.Message) (failed error) {
	for len(msgs) > 0 {
		n, err := c.batch.WriteBatch(msgs, 0)
		if err != nil {
			failed, n = err, max(n, 0)+1
		}
		msgs = msgs[n:]
	}
	return failed
}

// pack combines datagrams into messages. It returns the number of messages, and of datagrams in them.
func (s *sending) pack(bufs [][]byte, gso bool) (n, took int) {
	for took < len(bufs) && n < len(s.msgs) {
		m := &s.msgs[n]
		m.Addr, m.OOB = &s.addr, nil
		size := len(bufs[took])
		m.Buffers = append(m.Buffers[:0], bufs[took])
		total := size
		took++
		for gso && took < len(bufs) && len(m.Buffers) < cap(m.Buffers) && len(bufs[took]) <= size && total+len(bufs[took]) <= roce.MaxMessage {
			m.Buffers = append(m.Buffers, bufs[took])
			total += len(bufs[took])
			took++
			if len(bufs[took-1]) < size {
				break
			}
		}
		if len(m.Buffers) > 1 {
			m.OOB = s.oob[n]
			binary.NativeEndian.PutUint64(m.OOB, uint64(unix.CmsgLen(2)))
			binary.NativeEndian.PutUint32(m.OOB[8:], unix.SOL_UDP)
			binary.NativeEndian.PutUint32(m.OOB[12:], udpSegment)
			binary.NativeEndian.PutUint16(m.OOB[16:], uint16(size))
		}
		n++
	}
	return n, took
}

// receivers implements socket.
func (u *udp) receivers() (r []receiver) {
	for _, c := range u.conns {
		r = append(r, newReceiving(c).receive)
	}
	return r
}

// receiving splits messages that the kernel has merged.
type receiving struct {
	conn *udpConn
	msgs []ipv6.Message
	n    int // number of messages from the last call
	at   int // index of the next message
	off  int // offset in it
}

func newReceiving(c *udpConn) *receiving {
	r := &receiving{conn: c, msgs: make([]ipv6.Message, mergedMost)}
	for i := range r.msgs {
		r.msgs[i].Buffers = [][]byte{make([]byte, 1<<16)}
		r.msgs[i].OOB = make([]byte, unix.CmsgSpace(4))
	}
	return r
}

// receive returns a receiver.
func (r *receiving) receive(bufs [][]byte, sizes []int, from []netip.AddrPort) (int, error) {
	if r.at == r.n {
		r.at, r.off = 0, 0
		n, err := r.conn.batch.ReadBatch(r.msgs, 0)
		for errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EMSGSIZE) {
			n, err = r.conn.batch.ReadBatch(r.msgs, 0) // the error was about an earlier send
		}
		if r.n = max(n, 0); err != nil {
			r.n = 0
			return 0, err
		}
	}
	n := 0
	for n < len(bufs) && r.at < r.n {
		m := &r.msgs[r.at]
		data := m.Buffers[0][r.off:m.N]
		if size := segmentOf(m); size > 0 && size < len(data) {
			data = data[:size]
		}
		sizes[n] = copy(bufs[n], data)
		a := m.Addr.(*net.UDPAddr).AddrPort()
		from[n] = netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
		n++
		if r.off += len(data); r.off >= m.N {
			r.at, r.off = r.at+1, 0
		}
	}
	return n, nil
}

// segmentOf returns the length of the merged datagrams; 0 if there is only one.
func segmentOf(m *ipv6.Message) int {
	for c := m.OOB[:m.NN]; len(c) >= unix.SizeofCmsghdr; {
		size := int(binary.NativeEndian.Uint64(c))
		if size < unix.SizeofCmsghdr || size > len(c) {
			return 0
		}
		if binary.NativeEndian.Uint32(c[8:]) == unix.SOL_UDP && binary.NativeEndian.Uint32(c[12:]) == udpGRO && size >= unix.SizeofCmsghdr+2 {
			return int(binary.NativeEndian.Uint16(c[unix.SizeofCmsghdr:]))
		}
		c = c[min(len(c), unix.CmsgSpace(size-unix.SizeofCmsghdr)):]
	}
	return 0
}

// close implements socket.
func (u *udp) close() error {
	var errs []error
	for _, c := range u.conns {
		errs = append(errs, c.conn.Close())
	}
	return errors.Join(errs...)
}
