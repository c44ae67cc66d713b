package cm

import (
	"context"

	"vrdma.dev/vrdma/internal/abi"
)

// A Half is a connection that the peer has accepted and that is not confirmed.
type Half struct{ c *Conn }

// DialHalf is Dial up to the peer's reply.
func (m *Manager) DialHalf(ctx context.Context, addr string, c Config) (h *Half, err error) {
	to, err := parse(ctx, addr)
	if err != nil {
		return nil, err
	}
	ps, typ := space(c.QP.Type)
	i, err := m.create(ps, typ, 8)
	if err != nil {
		return nil, err
	}
	h = &Half{&Conn{i: i, remote: to}}
	defer h.c.undo(&err)
	if err := i.resolve(ctx, to); err != nil {
		return nil, err
	}
	if err := h.c.prepare(&c); err != nil {
		return nil, err
	}
	if err := tell(m, abi.CMCmdConnect, &abi.CMConnect{ConnParam: c.param(h.c.qp), ID: i.id}); err != nil {
		return nil, err
	}
	_, err = i.expect(ctx, abi.CMEventConnectResponse)
	return h, err
}

// Confirm returns the rest of Dial.
func (h *Half) Confirm() (err error) {
	defer h.c.undo(&err)
	if err = h.c.confirm(); err != nil {
		return h.c.i.over(err)
	}
	return h.c.Close()
}

// Told reports whether an unread event has arrived for the connection.
func (h *Half) Told() bool {
	select {
	case <-h.c.i.gone:
		return true
	default:
		return len(h.c.i.events) > 0
	}
}

// Stale reports whether the peer has abandoned the request. There is no event for that.
func (r *Request) Stale() bool {
	var a abi.QPAttr
	req := abi.CMInitQPAttr{Response: r.i.m.response(), ID: r.i.id, QPState: abi.QPStateInit}
	return stale(exec(r.i.m, abi.CMCmdInitQPAttr, &req, &a)) == errStale
}
