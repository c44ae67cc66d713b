package store

import (
	"context"
	"time"

	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

// depth is the number of requests that one client can have in flight. The clients here send one at a time.
const depth = 16

// patience bounds the establishment of a connection; the machine may be busy.
const patience = time.Minute

func (s *Server) acceptRDMA(l *cm.Listener) {
	for {
		r, err := l.Accept(s.ctx)
		if err != nil {
			return // closed, or the device is gone
		}
		s.wg.Go(func() { s.serveRDMA(r) })
	}
}

// serveRDMA answers one client over RDMA until it disconnects. A client that dies or sends invalid requests ends only
// its own connection.
func (s *Server) serveRDMA(r *cm.Request) {
	size := s.maxMessage()
	mr, err := s.pd.Alloc(depth*size, verbs.LocalWrite)
	if err != nil {
		r.Reject(nil)
		return
	}
	defer mr.Close()
	// Two queues, so that only requests wake this goroutine. It polls completions of replies when the next
	// request arrives, which saves a wake-up.
	requests, err := s.dev.CreateCQ(depth)
	if err != nil {
		r.Reject(nil)
		return
	}
	defer requests.Close()
	replies, err := s.dev.CreateCQ(depth)
	if err != nil {
		r.Reject(nil)
		return
	}
	defer replies.Close()
	// Buffer i is a receive, then the reply to it, then a receive again.
	receive := func(q *verbs.QP, i uint64) error {
		return q.PostRecv(&verbs.RecvWR{ID: i, SGL: []verbs.SGE{mr.Slice(int(i)*size, size)}})
	}
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	table := where{s.mr.Addr(0), s.mr.RKey(), uint32(s.cfg.Keys), uint32(s.cfg.MaxValue)}
	conn, err := r.Accept(ctx, cm.Config{
		PD: s.pd, QP: verbs.QPConfig{SendCQ: replies, RecvCQ: requests, MaxSend: depth, MaxRecv: depth}, Private: table.encode(),
		Prepare: func(q *verbs.QP) error { // receives must be posted before the first message
			for i := range uint64(depth) {
				if err := receive(q, i); err != nil {
					return err
				}
			}
			return nil
		},
	})
	if err != nil {
		return
	}
	defer conn.Close()
	qp := conn.QP()
	var wcs [depth]verbs.WC
	for posted := depth; ; {
		if posted == 0 { // all buffers hold replies: wait for one to leave
			if err := replies.Wait(s.ctx); err != nil {
				return
			}
		}
		n, err := replies.Poll(wcs[:])
		if err != nil {
			return
		}
		for _, wc := range wcs[:n] {
			if wc.Err() != nil || receive(qp, wc.ID) != nil {
				return // flushed: the client has disconnected
			}
			posted++
		}
		if posted == 0 {
			continue
		}
		if n, err = requests.Next(s.ctx, wcs[:]); err != nil { // sleeps; one-sided reads do not wake it
			return
		}
		for _, wc := range wcs[:n] {
			if wc.Err() != nil {
				return
			}
			posted--
			room := mr.Bytes()[int(wc.ID)*size:][:size]
			length := s.answer(room[:wc.Bytes], room)
			err := qp.PostSend(&verbs.SendWR{
				ID: wc.ID, Op: verbs.Send, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.Slice(int(wc.ID)*size, length)},
			})
			if err != nil {
				return
			}
		}
	}
}
