package cm

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/verbs"
)

// ListenConfig are the options of Listen; nil stands for the zero value.
type ListenConfig struct {
	Type    verbs.Type // 0 selects RC
	Backlog int        // pending requests that the device keeps; 0 selects 128
}

// A Listener receives connection requests. Any goroutine may use it.
type Listener struct {
	i     *identifier
	addr  netip.AddrPort
	typ   verbs.Type
	close sync.Once
}

// Listen listens at an address: "192.0.2.1:7471", ":7471", or port 0 for a free port.
func (m *Manager) Listen(addr string, c *ListenConfig) (*Listener, error) {
	op := "listen at " + addr
	if c == nil {
		c = &ListenConfig{}
	}
	at, err := parse(context.Background(), addr)
	if err != nil {
		return nil, fault(op, err)
	}
	ps, typ := space(c.Type)
	i, err := m.create(ps, typ, backlog)
	if err != nil {
		return nil, fault(op, err)
	}
	depth := uint32(128)
	if c.Backlog > 0 {
		depth = uint32(c.Backlog)
	}
	if err = tell(m, abi.CMCmdBindIP, &abi.CMBindIP{Addr: abi.ToSockaddr(at), ID: i.id}); err == nil {
		err = tell(m, abi.CMCmdListen, &abi.CMListen{ID: i.id, Backlog: depth})
	}
	if err != nil {
		i.destroy()
		return nil, fault(op, err)
	}
	l := &Listener{i: i, typ: typ}
	l.addr, _ = i.addresses()
	return l, nil
}

// Addr returns the address of the listener.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// Close stops listening. Pending requests are rejected.
func (l *Listener) Close() (err error) {
	l.close.Do(func() {
		err = l.i.destroy()
		for {
			select {
			case e := <-l.i.events:
				l.i.m.drop(e.ID)
				continue
			default:
			}
			return
		}
	})
	return fault("stop listening", err)
}

// Accept waits for a connection request.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	e, err := l.i.expect(ctx, abi.CMEventConnectRequest)
	if err != nil {
		return nil, fault("wait for a connection", err)
	}
	m := l.i.m
	i := &identifier{m: m, id: e.ID, uid: m.newUID(), events: make(chan abi.CMEventResp, 8), gone: make(chan struct{})}
	m.adopt(i)
	r := &Request{i: i, typ: l.typ}
	if l.typ == verbs.UD {
		var p abi.CMUDParam
		abi.Decode(e.Param[:], &p)
		r.private = append([]byte(nil), p.PrivateData[:p.PrivateDataLen]...)
	} else {
		var p abi.CMConnParam
		abi.Decode(e.Param[:], &p)
		r.private = append([]byte(nil), p.PrivateData[:p.PrivateDataLen]...)
	}
	r.local, r.remote = i.addresses()
	return r, nil
}

// A Request is a peer's connection request. The program accepts or rejects it.
type Request struct {
	i       *identifier
	typ     verbs.Type
	private []byte
	local   netip.AddrPort
	remote  netip.AddrPort
}

// Private returns the private data of the request.
func (r *Request) Private() []byte { return r.private }

// LocalAddr and RemoteAddr return the addresses of the two sides.
func (r *Request) LocalAddr() netip.AddrPort  { return r.local }
func (r *Request) RemoteAddr() netip.AddrPort { return r.remote }

// Reject refuses the connection and sends private data to the peer.
func (r *Request) Reject(private []byte) error {
	const op = "reject a connection"
	req := abi.CMReject{ID: r.i.id, PrivateDataLen: uint8(min(len(private), 148)), Reason: consumerReject}
	copy(req.PrivateData[:148], private)
	err := tell(r.i.m, abi.CMCmdReject, &req)
	return fault(op, errors.Join(err, r.i.destroy()))
}

// Accept accepts the request. It returns when the peer has confirmed the connection.
func (r *Request) Accept(ctx context.Context, c Config) (*Conn, error) {
	const op = "accept a connection"
	conn, err := r.accept(ctx, c)
	return conn, fault(op, err)
}

func (r *Request) accept(ctx context.Context, c Config) (conn *Conn, err error) {
	conn = &Conn{i: r.i, private: r.private, local: r.local, remote: r.remote}
	defer conn.undo(&err)
	if err := c.check(); err != nil {
		return nil, err
	}
	c.QP.Type = r.typ
	if err := conn.prepare(&c); err != nil {
		return nil, aborted(err)
	}
	if err := conn.ready(connecting...); err != nil {
		return nil, aborted(err)
	}
	if err := tell(r.i.m, abi.CMCmdAccept, &abi.CMAccept{UID: r.i.uid, ConnParam: c.param(conn.qp), ID: r.i.id}); err != nil {
		return nil, aborted(stale(err))
	}
	if r.typ == verbs.UD {
		return conn, nil
	}
	if _, err := r.i.expect(ctx, abi.CMEventEstablished); err != nil {
		return nil, err
	}
	return conn, nil
}

// aborted maps the error for a request that the peer has abandoned to ECONNABORTED, as accept(2) does.
func aborted(err error) error {
	if errors.Is(err, errStale) {
		return syscall.ECONNABORTED
	}
	return err
}
