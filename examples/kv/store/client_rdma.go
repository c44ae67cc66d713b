package store

import (
	"context"
	"errors"
	"fmt"

	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

// A Dialer makes clients over RDMA. They share one open device.
type Dialer struct {
	// Poll makes clients poll for completions instead of sleeping: faster, but it uses a processor.
	Poll bool

	dev *verbs.Device
	pd  *verbs.PD
	m   *cm.Manager
}

// NewDialer opens a device.
func NewDialer(ctx context.Context, o verbs.Options) (*Dialer, error) {
	dev, err := o.Open(ctx)
	if err != nil {
		return nil, err
	}
	d := &Dialer{dev: dev}
	if d.pd, err = dev.AllocPD(); err == nil {
		d.m, err = cm.New(dev)
	}
	if err != nil {
		dev.Close()
		return nil, err
	}
	return d, nil
}

// Close closes the device. Its clients must be closed before.
func (d *Dialer) Close() error { return errors.Join(d.m.Close(), d.dev.Close()) }

// RPC is a client that sends messages to the server over RDMA.
type RPC struct {
	poll bool
	// Requests and READs complete on sent, replies on received. An RPC waits for its reply only. The completion of its request is
	// polled at the next call, which saves a wake-up.
	sent, received *verbs.CQ

	mr    *verbs.MR // request, reply and a slot
	conn  *cm.Conn
	table where
	size  int // of the largest message
	wcs   [4]verbs.WC
	// broken is why an earlier call was abandoned. Its completions may still come, so no more calls are possible.
	broken error
}

// IDs of work requests.
const (
	idRequest = iota
	idReply
	idRead
)

// The three parts of a client's memory.
func (c *RPC) requestAt() int { return 0 }
func (c *RPC) replyAt() int   { return c.size }
func (c *RPC) slotAt() int    { return 2 * c.size }

// DialRPC connects to a server.
func (d *Dialer) DialRPC(ctx context.Context, addr string) (_ *RPC, err error) {
	// The maximum value size is known only after the connection is made, so there is space for any.
	c := &RPC{poll: d.Poll, size: headSize + MaxValue}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if c.sent, err = d.dev.CreateCQ(depth); err != nil {
		return nil, err
	}
	if c.received, err = d.dev.CreateCQ(depth); err != nil {
		return nil, err
	}
	if c.mr, err = d.pd.Alloc(2*c.size+slotSize(MaxValue), verbs.LocalWrite); err != nil {
		return nil, err
	}
	c.conn, err = d.m.Dial(ctx, addr, cm.Config{PD: d.pd, QP: verbs.QPConfig{SendCQ: c.sent, RecvCQ: c.received, MaxSend: depth, MaxRecv: depth}})
	if err != nil {
		return nil, err
	}
	if c.table, err = parseWhere(c.conn.Private()); err != nil {
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	return c, nil
}

// Get implements Client with a message to the server.
func (c *RPC) Get(ctx context.Context, key uint64, dst []byte) (int, uint64, error) {
	return get(ctx, c, key, dst)
}

// Put implements Client.
func (c *RPC) Put(ctx context.Context, key uint64, value []byte) (uint64, error) {
	return put(ctx, c, key, value)
}

// Stats implements Client.
func (c *RPC) Stats(ctx context.Context) (Stats, error) { return stats(ctx, c) }

// Keys returns the server's number of keys, MaxValue its largest value.
func (c *RPC) Keys() int     { return int(c.table.keys) }
func (c *RPC) MaxValue() int { return int(c.table.maxValue) }

// Close implements Client.
func (c *RPC) Close() error {
	var errs []error
	if c.conn != nil {
		errs = append(errs, c.conn.Close())
	}
	for _, cq := range []*verbs.CQ{c.sent, c.received} {
		if cq != nil {
			errs = append(errs, cq.Close())
		}
	}
	if c.mr != nil {
		errs = append(errs, c.mr.Close())
	}
	return errors.Join(errs...)
}

func (c *RPC) room() message {
	return c.mr.Bytes()[c.requestAt() : c.requestAt()+c.size]
}

// call sends the request and waits for the reply. It posts the receive first. When the reply has come, the server has received the
// request, and the buffer can be reused.
func (c *RPC) call(ctx context.Context, length int) (message, error) {
	if err := c.ready(); err != nil {
		return nil, err
	}
	qp := c.conn.QP()
	if err := qp.PostRecv(&verbs.RecvWR{ID: idReply, SGL: []verbs.SGE{c.mr.Slice(c.replyAt(), c.size)}}); err != nil {
		return nil, err
	}
	err := qp.PostSend(&verbs.SendWR{
		ID: idRequest, Op: verbs.Send, Flags: verbs.Signaled, SGL: []verbs.SGE{c.mr.Slice(c.requestAt(), length)},
	})
	if err != nil {
		return nil, err
	}
	got, err := c.await(ctx, c.received, idReply)
	if err != nil {
		return nil, err
	}
	m, err := parse(c.mr.Bytes()[c.replyAt() : c.replyAt()+got])
	if err != nil {
		return nil, err
	}
	return m, m.err()
}

// ready polls the completions of earlier requests and reports whether another is possible.
func (c *RPC) ready() error {
	n, err := c.sent.Poll(c.wcs[:])
	for i := range n {
		err = errors.Join(err, c.wcs[i].Err())
	}
	if c.broken == nil {
		c.broken = err
	}
	return c.broken
}

// await waits for the completion of a work request and returns the number of received bytes.
func (c *RPC) await(ctx context.Context, cq *verbs.CQ, id uint64) (received int, err error) {
	defer func() { c.broken = err }()
	for {
		done, err := c.next(ctx, cq)
		if err != nil {
			return 0, err
		}
		for i := range done {
			if err := c.wcs[i].Err(); err != nil {
				return 0, fmt.Errorf("the server has gone: %w", err)
			}
			if c.wcs[i].ID == id {
				return int(c.wcs[i].Bytes), nil // the last one: there is one at a time
			}
		}
	}
}

// next waits for completions: it sleeps, or polls.
func (c *RPC) next(ctx context.Context, cq *verbs.CQ) (int, error) {
	if !c.poll {
		return cq.Next(ctx, c.wcs[:])
	}
	for {
		for range 1000 {
			if n, err := cq.Poll(c.wcs[:]); n > 0 || err != nil {
				return n, err
			}
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
}
