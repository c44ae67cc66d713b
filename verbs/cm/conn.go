package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/internal/ipc"
)

// Config describes a connection to make.
type Config struct {
	PD *verbs.PD
	QP verbs.QPConfig
	// Private is sent to the peer with the request or the reply: at most 56 bytes in a request and 196
	// in a reply, minus the bytes that rdma_cm needs itself.
	Private []byte
	// Reads is the number of outstanding reads and atomics in each direction; 0 selects 16.
	Reads int
	// Prepare, if set, is called when the queue pair accepts receives but has no peer yet. Receives that
	// it posts are ready for the first message.
	Prepare func(*verbs.QP) error
}

func (c *Config) check() error {
	switch {
	case c.PD == nil:
		return errors.New("no protection domain: set Config.PD")
	case len(c.Private) > abi.CMMaxPrivateData-1:
		return fmt.Errorf("%d bytes of private data: at most %d fit", len(c.Private), abi.CMMaxPrivateData-1)
	case c.Reads < 0 || c.Reads > 255:
		return fmt.Errorf("invalid number of outstanding reads %d", c.Reads)
	}
	return nil
}

// param returns the parameters of a request or a reply.
func (c *Config) param(qp *verbs.QP) (p abi.CMConnParam) {
	reads := uint8(16)
	if c.Reads > 0 {
		reads = uint8(c.Reads)
	}
	p = abi.CMConnParam{
		QPNum: qp.QPN(), ResponderResources: reads, InitiatorDepth: reads, RetryCount: 7, RNRRetryCount: 7,
		PrivateDataLen: uint8(len(c.Private)), Valid: 1,
	}
	copy(p.PrivateData[:], c.Private)
	if c.QP.SRQ != nil {
		p.SRQ = 1
	}
	return p
}

// A Conn is a connection: a queue pair with a peer.
type Conn struct {
	i       *identifier
	qp      *verbs.QP
	private []byte
	local   netip.AddrPort
	remote  netip.AddrPort
	once    sync.Once
	// The destination of datagrams, for a UD connection.
	ah   *verbs.AH
	qpn  uint32
	qkey uint32
}

// QP returns the queue pair, which is ready to send.
func (c *Conn) QP() *verbs.QP { return c.qp }

// Private returns the peer's private data.
func (c *Conn) Private() []byte { return c.private }

// LocalAddr and RemoteAddr return the addresses of the two sides.
func (c *Conn) LocalAddr() netip.AddrPort  { return c.local }
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// Done returns a channel that is closed when the connection ends: the peer disconnected, or the device is
// gone. Work requests posted after that complete as Flushed.
func (c *Conn) Done() <-chan struct{} { return c.i.gone }

// Datagram fills in the destination of a UD connection.
func (c *Conn) Datagram(wr *verbs.SendWR) { wr.AH, wr.RemoteQPN, wr.QKey = c.ah, c.qpn, c.qkey }

// Close disconnects and destroys the queue pair. Outstanding requests are flushed.
func (c *Conn) Close() (err error) {
	c.once.Do(func() {
		if c.qp.Type() != verbs.UD {
			_ = c.qp.Modify(verbs.Err, verbs.Attr{})
			_ = tell(c.i.m, abi.CMCmdDisconnect, &abi.CMDisconnect{ID: c.i.id})
		}
		err = errors.Join(c.i.destroy(), c.qp.Close())
		if c.ah != nil {
			err = errors.Join(err, c.ah.Close())
		}
	})
	return fault("close a connection", err)
}

// Dial connects to a listener at an address: "192.0.2.1:7471", or a host name and a port.
func (m *Manager) Dial(ctx context.Context, addr string, c Config) (*Conn, error) {
	op := "connect to " + addr
	if err := c.check(); err != nil {
		return nil, fault(op, err)
	}
	to, err := parse(ctx, addr)
	if err != nil {
		return nil, fault(op, err)
	}
	conn, err := m.dial(ctx, to, c)
	return conn, fault(op, err)
}

// space returns the port space of a transport service.
func space(t verbs.Type) (uint16, verbs.Type) {
	if t == verbs.UD {
		return abi.PSUDP, verbs.UD
	}
	if t == 0 {
		t = verbs.RC
	}
	return abi.PSTCP, t
}

func (m *Manager) dial(ctx context.Context, to netip.AddrPort, c Config) (conn *Conn, err error) {
	ps, typ := space(c.QP.Type)
	i, err := m.create(ps, typ, 8)
	if err != nil {
		return nil, err
	}
	conn = &Conn{i: i, remote: to}
	defer conn.undo(&err)
	if err := i.resolve(ctx, to); err != nil {
		return nil, err
	}
	if err := conn.prepare(&c); err != nil {
		return nil, err
	}
	conn.local, conn.remote = i.addresses()
	if err := tell(m, abi.CMCmdConnect, &abi.CMConnect{ConnParam: c.param(conn.qp), ID: i.id}); err != nil {
		return nil, err
	}
	if typ == verbs.UD {
		if err := conn.established(ctx, &c); err != nil {
			return nil, err
		}
		return conn, nil
	}
	e, err := i.expect(ctx, abi.CMEventConnectResponse)
	if err != nil {
		return nil, phaseReply.of(err)
	}
	if err := conn.confirm(); err != nil {
		return nil, i.over(err)
	}
	var p abi.CMConnParam
	abi.Decode(e.Param[:], &p)
	conn.private = append([]byte(nil), p.PrivateData[:p.PrivateDataLen]...)
	return conn, nil
}

// confirm makes the queue pair ready after the peer's reply and sends the confirmation to the peer.
func (c *Conn) confirm() error {
	if err := c.ready(connecting...); err != nil {
		return err
	}
	return stale(tell(c.i.m, abi.CMCmdAccept, &abi.CMAccept{UID: c.i.uid, ID: c.i.id}))
}

// undo releases the resources of a connection that failed, if *err is set. Callers defer it.
func (c *Conn) undo(err *error) {
	if *err == nil {
		return
	}
	c.i.destroy()
	if c.qp != nil {
		c.qp.Close()
	}
}

// resolve resolves an address and the route to it.
func (i *identifier) resolve(ctx context.Context, to netip.AddrPort) error {
	req := abi.CMResolveIP{DstAddr: abi.ToSockaddr(to), ID: i.id, TimeoutMS: patience(ctx)}
	if err := tell(i.m, abi.CMCmdResolveIP, &req); err != nil {
		return err
	}
	if _, err := i.expect(ctx, abi.CMEventAddrResolved); err != nil {
		return phaseAddress.of(err)
	}
	if err := tell(i.m, abi.CMCmdResolveRoute, &abi.CMResolveRoute{ID: i.id, TimeoutMS: patience(ctx)}); err != nil {
		return err
	}
	_, err := i.expect(ctx, abi.CMEventRouteResolved)
	return phaseRoute.of(err)
}

// addresses returns the two addresses of the identifier. An unknown address is invalid (netip's zero value).
func (i *identifier) addresses() (local, remote netip.AddrPort) {
	var r abi.CMQueryRouteResp
	if exec(i.m, abi.CMCmdQueryRoute, &abi.CMQuery{Response: i.m.response(), ID: i.id}, &r) != nil {
		return local, remote
	}
	local, _ = abi.FromSockaddr(&r.SrcAddr)
	remote, _ = abi.FromSockaddr(&r.DstAddr)
	return local, remote
}

// prepare creates the queue pair and makes it accept receives.
func (c *Conn) prepare(cfg *Config) (err error) {
	if c.qp, err = cfg.PD.CreateQP(cfg.QP); err != nil {
		return err
	}
	if c.qp.Type() != verbs.UD {
		qp := c.qp
		c.i.m.idMu.Lock()
		c.i.ending = func() { _ = qp.Modify(verbs.Err, verbs.Attr{}) }
		c.i.m.idMu.Unlock()
	}
	if err = c.ready(verbs.Init); err == nil && cfg.Prepare != nil {
		err = cfg.Prepare(c.qp)
	}
	return err
}

// connecting lists the states on the way to a connection. Init comes again because only now rdma_cm knows
// the rights of the peer.
var connecting = []verbs.State{verbs.Init, verbs.RTR, verbs.RTS}

// ready moves the queue pair through the states, with the attributes that rdma_cm computes.
func (c *Conn) ready(states ...verbs.State) error {
	for _, s := range states {
		if s != verbs.Init && c.qp.Type() == verbs.UD {
			if err := c.qp.Modify(s, verbs.Attr{}); err != nil {
				return err
			}
			continue
		}
		var a abi.QPAttr
		req := abi.CMInitQPAttr{Response: c.i.m.response(), ID: c.i.id, QPState: uint32(s)}
		if err := exec(c.i.m, abi.CMCmdInitQPAttr, &req, &a); err != nil {
			return stale(err)
		}
		a.QPState = uint32(s)
		a.QPAttrMask |= abi.QPMaskState
		if err := ipc.Apply(c.qp, &a); err != nil {
			return err
		}
	}
	return nil
}

// established waits for the reply to a UD request, which contains the destination of datagrams.
func (c *Conn) established(ctx context.Context, cfg *Config) error {
	e, err := c.i.expect(ctx, abi.CMEventEstablished)
	if err != nil {
		return phaseReply.of(err)
	}
	if err := c.ready(connecting...); err != nil {
		return err
	}
	var p abi.CMUDParam
	abi.Decode(e.Param[:], &p)
	c.private = append([]byte(nil), p.PrivateData[:p.PrivateDataLen]...)
	c.qpn, c.qkey = p.QPNum, p.QKey
	var from verbs.GID
	if c.local.IsValid() {
		from = verbs.GIDOf(c.local.Addr())
	}
	c.ah, err = cfg.PD.CreateAH(p.AHAttr.GRH.DGID, from)
	return err
}
