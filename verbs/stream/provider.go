package stream

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"

	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

// Config sets the buffer sizes of a connection.
type Config struct {
	// Buffer is the size of each of the two buffers. 0 selects 128 KiB, as rsockets does, and 1 MiB once the
	// peer streams.
	Buffer int
	// Messages is the maximum number of messages in flight in each direction; 0 selects 384, as rsockets does.
	Messages int

	grows bool // Buffer was not set
}

func (c *Config) fill() {
	if c.Buffer == 0 {
		c.Buffer, c.grows = firstBuffer, true
	}
	c.Buffer = min(max(c.Buffer&^4095, 8<<10), 64<<20)
	if c.Messages == 0 {
		c.Messages = 384
	}
	c.Messages = min(max(c.Messages, 16), 4096)
}

// A Provider makes connections with one device. Any goroutine may use it.
type Provider struct {
	dev *verbs.Device
	pd  *verbs.PD
	m   *cm.Manager
	cfg Config

	mu    sync.Mutex
	conns map[*Conn]struct{} // guarded by mu: open connections; nil after Close
}

// Open opens a device for connections.
func Open(ctx context.Context, o verbs.Options, c Config) (*Provider, error) {
	c.fill()
	dev, err := o.Open(ctx)
	if err != nil {
		return nil, err
	}
	p := &Provider{dev: dev, cfg: c, conns: make(map[*Conn]struct{})}
	if p.pd, err = dev.AllocPD(); err == nil {
		p.m, err = cm.New(dev)
	}
	if err != nil {
		dev.Close()
		return nil, err
	}
	return p, nil
}

// Close closes the device, its connections and listeners. Open connections break: the data written last
// may not arrive.
func (p *Provider) Close() error {
	p.mu.Lock()
	conns := p.conns
	p.conns = nil
	p.mu.Unlock()
	err := errors.Join(p.m.Close(), p.dev.Close())
	for c := range conns {
		c.end(false)
	}
	return err
}

// keep registers an open connection; it returns false after Close.
func (p *Provider) keep(c *Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Provider) forget(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// network is the network name of addresses.
const network = "rdma"

// Addr is an address of a connection.
type Addr struct{ netip.AddrPort }

// Network implements net.Addr.
func (Addr) Network() string { return network }

// Dial connects to a listener: "192.0.2.1:8080", or a host name and a port.
func (p *Provider) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := p.newConn()
	if err == nil {
		var conn *cm.Conn
		if conn, err = p.m.Dial(ctx, addr, c.config()); err == nil {
			if err = c.begin(conn); err == nil {
				return c, nil
			}
			conn.Close()
		}
		c.free()
	}
	return nil, &net.OpError{Op: "dial", Net: network, Err: err}
}

// DialContext is Dial with the signature that http.Transport expects; it ignores the network.
func (p *Provider) DialContext(ctx context.Context, _, addr string) (net.Conn, error) {
	return p.Dial(ctx, addr)
}

// Listen listens at an address: "192.0.2.1:8080", ":8080", or port 0 for a free port.
func (p *Provider) Listen(addr string) (net.Listener, error) {
	l, err := p.m.Listen(addr, nil)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	s := &listener{p: p, l: l, ready: make(chan *Conn)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.serve)
	return s, nil
}

// A listener answers requests concurrently: a peer that does not finish its handshake delays no other peer.
type listener struct {
	p      *Provider
	l      *cm.Listener
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	ready  chan *Conn
}

func (l *listener) serve() {
	slots := make(chan struct{}, 64)
	for {
		r, err := l.l.Accept(l.ctx)
		if err != nil {
			l.cancel() // wakes waiting goroutines
			return
		}
		slots <- struct{}{}
		l.wg.Go(func() {
			defer func() { <-slots }()
			l.answer(r)
		})
	}
}

// answer accepts a request and passes the connection to Accept.
func (l *listener) answer(r *cm.Request) {
	c, err := l.p.newConn()
	if err != nil {
		r.Reject(nil)
		return
	}
	if err := c.parseHello(r.Private()); err != nil {
		c.free()
		r.Reject(nil)
		return
	}
	ctx, cancel := context.WithTimeout(l.ctx, handshake)
	defer cancel()
	conn, err := r.Accept(ctx, c.config())
	if err != nil {
		c.free()
		return
	}
	if err := c.begin(conn); err != nil {
		conn.Close()
		c.free()
		return
	}
	select {
	case l.ready <- c:
	case <-l.ctx.Done():
		c.Close()
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.ctx.Done():
		return nil, &net.OpError{Op: "accept", Net: network, Addr: l.Addr(), Err: net.ErrClosed}
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.cancel()
	err := l.l.Close()
	l.wg.Wait()
	return err
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return Addr{l.l.Addr()} }
