package filecopy

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// TCP returns a transport without RDMA, for comparison: the same messages, chunks and checksums over sockets.
func TCP() Transport { return Transport{tcpTransport{}} }

type tcpTransport struct{}

func (tcpTransport) name() string { return "TCP" }
func (tcpTransport) close() error { return nil }

func (tcpTransport) addresses() (list []netip.Addr) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				list = append(list, ip.Unmap())
			}
		}
	}
	return list
}

func (tcpTransport) dial(ctx context.Context, addr string) (conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return newTCPConn(c), nil
}

type tcpListener struct{ l net.Listener }

func (tcpTransport) listen(addr string) (listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &tcpListener{l}, nil
}

func (l *tcpListener) accept(ctx context.Context) (func(context.Context) (conn, error), error) {
	defer context.AfterFunc(ctx, func() { l.l.Close() })()
	c, err := l.l.Accept()
	if err != nil {
		return nil, broken(ctx, err)
	}
	return func(context.Context) (conn, error) { return newTCPConn(c), nil }, nil
}

func (l *tcpListener) addr() string { return l.l.Addr().String() }
func (l *tcpListener) close() error { return l.l.Close() }

// A tcpConn is a connection over TCP. A message is preceded by its length, a chunk by its header.
type tcpConn struct {
	c    net.Conn
	mu   sync.Mutex // held during a write
	out  []byte     // guarded by mu
	in   []byte
	slot slot
}

func newTCPConn(c net.Conn) *tcpConn { return &tcpConn{c: c} }

func (c *tcpConn) remote() string {
	host, _, _ := net.SplitHostPort(c.c.RemoteAddr().String())
	return host
}

func (c *tcpConn) send(m message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = encode(append(c.out[:0], 0, 0, 0, 0), m)
	binary.LittleEndian.PutUint32(c.out, uint32(len(c.out)-4))
	_, err := c.c.Write(c.out)
	return broken(context.Background(), err)
}

// read fills b, or returns when ctx ends.
func (c *tcpConn) read(ctx context.Context, b []byte) error {
	c.c.SetReadDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { c.c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := io.ReadFull(c.c, b)
	if errors.Is(err, io.EOF) {
		err = errors.New("the other side is gone")
	}
	return broken(ctx, err)
}

func (c *tcpConn) recv(ctx context.Context) (message, error) {
	var size [4]byte
	if err := c.read(ctx, size[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > maxMessage {
		return nil, violation("a message of %d bytes: %d fit", n, maxMessage)
	}
	if c.in == nil {
		c.in = make([]byte, maxMessage)
	}
	if err := c.read(ctx, c.in[:n]); err != nil {
		return nil, err
	}
	return decode(c.in[:n])
}

// make makes one slot: the kernel's buffers do the rest.
func (c *tcpConn) make() {
	c.slot = newSlot(0, make([]byte, slotSize))
}

func (c *tcpConn) open(int) error {
	c.make()
	return nil
}

func (c *tcpConn) next(ctx context.Context) (*slot, error) {
	s := &c.slot
	if err := c.read(ctx, s.head); err != nil {
		return nil, err
	}
	var h header
	if err := h.parse(s.head); err != nil {
		return nil, err
	}
	s.length = int(h.length)
	return s, c.read(ctx, s.data[:s.length])
}

func (c *tcpConn) release(*slot) error { return nil }

func (c *tcpConn) attach(context.Context, int) error {
	c.make()
	return nil
}

func (c *tcpConn) buffer(ctx context.Context) (*slot, error) {
	return &c.slot, context.Cause(ctx)
}

func (c *tcpConn) unused(*slot) {}

func (c *tcpConn) round() (int, time.Duration) { return 0, 0 }

func (c *tcpConn) post(s *slot, n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.c.Write(s.whole[:headSize+n])
	return broken(context.Background(), err)
}

func (c *tcpConn) shut() { c.c.Close() }

func (c *tcpConn) close() error {
	c.c.Close()
	return nil
}
