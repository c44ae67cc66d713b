package goperf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

// perftest's defaults.
const (
	sendDepth  = 128
	recvDepth  = 512
	signal     = 100 // one in this many requests is signaled in bandwidth tests
	batch      = 16  // completions polled at a time
	inlineMost = 220
)

// A pair is one side of two connected queue pairs.
type pair struct {
	*Config
	ctx        context.Context
	pd         *verbs.PD
	send, recv *verbs.CQ
	mr         *verbs.MR // the buffers to send from and to receive into
	qp         *verbs.QP
	conn       *cm.Conn
	peerAddr   uint64
	peerKey    uint32
	wc         [batch]verbs.WC
	wr         verbs.SendWR
	rr         verbs.RecvWR
}

// onQP makes a test of a function that uses a pair of queue pairs.
func onQP(measure func(*pair) (Result, error)) test {
	return func(ctx context.Context, c *Config) (Result, error) {
		p := &pair{Config: c, ctx: ctx}
		dev, err := c.Device.Open(ctx)
		if err != nil {
			return Result{}, err
		}
		defer dev.Close()
		if err := p.open(dev); err != nil {
			return Result{}, err
		}
		defer p.mr.Close()
		m, err := cm.New(dev)
		if err != nil {
			return Result{}, err
		}
		defer m.Close()
		if err := p.connect(m); err != nil {
			return Result{}, err
		}
		defer p.conn.Close()
		r, err := measure(p)
		if err == nil && c.Server {
			<-p.conn.Done() // the client has measured
		}
		return r, err
	}
}

func (p *pair) open(dev *verbs.Device) error {
	var errs [3]error
	p.pd, errs[0] = dev.AllocPD()
	p.send, errs[1] = dev.CreateCQ(sendDepth)
	p.recv, errs[2] = dev.CreateCQ(recvDepth)
	err := errors.Join(errs[:]...)
	if err == nil {
		p.mr, err = p.pd.Alloc(2*p.Size, verbs.RemoteAll)
	}
	return err
}

// connect connects to the peer and exchanges the addresses of the buffers.
func (p *pair) connect(m *cm.Manager) (err error) {
	private := binary.BigEndian.AppendUint64(nil, p.mr.Addr(p.Size))
	private = binary.BigEndian.AppendUint32(private, p.mr.RKey())
	c := cm.Config{
		PD: p.pd, Private: private, Prepare: p.receives,
		QP: verbs.QPConfig{SendCQ: p.send, RecvCQ: p.recv, MaxSend: sendDepth, MaxRecv: recvDepth},
	}
	if p.inline() {
		c.QP.MaxInline = inlineMost
	}
	if p.Server {
		p.conn, err = p.accept(m, c)
	} else {
		p.conn, err = m.Dial(p.ctx, p.Addr, c)
	}
	if err != nil {
		return err
	}
	told := p.conn.Private()
	if len(told) < len(private) {
		return fmt.Errorf("the peer sent %d bytes of parameters, want %d: it is another program", len(told), len(private))
	}
	p.qp, p.peerAddr, p.peerKey = p.conn.QP(), binary.BigEndian.Uint64(told), binary.BigEndian.Uint32(told[8:])
	return nil
}

func (p *pair) accept(m *cm.Manager, c cm.Config) (*cm.Conn, error) {
	l, err := m.Listen(p.Addr, nil)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	r, err := l.Accept(p.ctx)
	if err != nil {
		return nil, err
	}
	return r.Accept(p.ctx, c)
}

// receives fills the receive queue.
func (p *pair) receives(q *verbs.QP) error {
	p.rr.SGL = []verbs.SGE{p.mr.Slice(p.Size, p.Size)}
	for range recvDepth {
		if err := q.PostRecv(&p.rr); err != nil {
			return err
		}
	}
	return nil
}

// inline reports whether data is sent inline: small messages in latency tests.
func (p *pair) inline() bool {
	return p.Size <= inlineMost && (p.Test == "write-lat" || p.Test == "send-lat")
}

// request prepares the request that is sent repeatedly.
func (p *pair) request(op verbs.Op) {
	p.wr = verbs.SendWR{Op: op, RemoteAddr: p.peerAddr, RKey: p.peerKey}
	if p.inline() {
		p.wr.Data = p.mr.Bytes()[:p.Size]
	} else {
		p.wr.SGL = []verbs.SGE{p.mr.Slice(0, p.Size)}
	}
}

// next polls at least one completion.
func (p *pair) next(cq *verbs.CQ) (int, error) {
	for {
		n, err := cq.Poll(p.wc[:])
		if err != nil {
			return 0, err
		}
		for i := range n {
			if err := p.wc[i].Err(); err != nil {
				return 0, err
			}
		}
		if n > 0 {
			return n, nil
		}
		switch {
		case p.Sleep:
			err = cq.Sleep(p.ctx)
		case p.Events:
			err = cq.Wait(p.ctx)
		}
		if err != nil {
			return 0, err
		}
	}
}

// writeLatency writes a number into the peer's memory. The peer polls its memory and answers.
func (p *pair) writeLatency() (Result, error) {
	p.request(verbs.Write)
	p.wr.Flags = verbs.Signaled
	out, in := p.mr.Uint32(p.Size-4), p.mr.Uint32(2*p.Size-4)
	stamps := make([]time.Time, 0, p.Count)
	for i := uint32(1); i <= uint32(p.Count); i++ {
		if p.Server {
			for in.Load() != i {
			}
		}
		stamps = append(stamps, time.Now())
		out.Store(i)
		if err := p.qp.PostSend(&p.wr); err != nil {
			return Result{}, err
		}
		if _, err := p.next(p.send); err != nil {
			return Result{}, err
		}
		if !p.Server {
			for in.Load() != i {
			}
		}
	}
	return latency(stamps), nil
}

// sendLatency sends a message and waits for the answer.
func (p *pair) sendLatency() (Result, error) {
	p.request(verbs.Send)
	p.wr.Flags = verbs.Signaled
	stamps := make([]time.Time, 0, p.Count)
	receive := func() error {
		if _, err := p.next(p.recv); err != nil {
			return err
		}
		return p.qp.PostRecv(&p.rr)
	}
	for range p.Count {
		if p.Server {
			if err := receive(); err != nil {
				return Result{}, err
			}
		}
		stamps = append(stamps, time.Now())
		if err := p.qp.PostSend(&p.wr); err != nil {
			return Result{}, err
		}
		if _, err := p.next(p.send); err != nil {
			return Result{}, err
		}
		if !p.Server {
			if err := receive(); err != nil {
				return Result{}, err
			}
		}
	}
	return latency(stamps), nil
}

func (p *pair) writeBandwidth() (Result, error) {
	if p.Server {
		return Result{}, nil
	}
	return p.stream(verbs.Write)
}

func (p *pair) sendBandwidth() (Result, error) {
	if !p.Server {
		return p.stream(verbs.Send)
	}
	for got := 0; got < p.Count; {
		n, err := p.next(p.recv)
		if err != nil {
			return Result{}, err
		}
		for range n {
			if err := p.qp.PostRecv(&p.rr); err != nil {
				return Result{}, err
			}
		}
		got += n
	}
	return Result{}, nil
}

// stream keeps the send queue full.
func (p *pair) stream(op verbs.Op) (Result, error) {
	p.request(op)
	start := time.Now()
	for sent, done := 0, 0; done < p.Count; {
		for sent < p.Count && sent-done < sendDepth {
			sent++
			p.wr.Flags = 0
			if sent%signal == 0 || sent == p.Count {
				p.wr.Flags = verbs.Signaled
			}
			if err := p.qp.PostSend(&p.wr); err != nil {
				return Result{}, err
			}
		}
		n, err := p.next(p.send)
		if err != nil {
			return Result{}, err
		}
		done = min(done+n*signal, p.Count)
	}
	return p.rate(time.Since(start)), nil
}
