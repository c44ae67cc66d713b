package store

import (
	"context"
	"time"

	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

// depth is how many requests of one client can be outstanding. Our clients send one at a time.
const depth = 16

// patience is how long a client may take to connect on a busy machine.
const patience = time.Minute

func (s *Server) acceptRDMA(l *cm.Listener) {
	for {
		r, err := l.Accept(s.ctx)
		if err != nil {
			return // closed, or the device is lost
		}
		s.wg.Go(func() { s.serveRDMA(r) })
	}
}

// serveRDMA answers one client over RDMA until it disconnects. A client that crashes or sends invalid messages ends only its own
// connection.
func (s *Server) serveRDMA(r *cm.Request) {
	size := s.maxMessage()
	mr, err := s.pd.Alloc(depth*size, verbs.LocalWrite)
	if err != nil {
		r.Reject(nil)
		return
	}
	defer mr.Close()
	// Two queues: only requests wake this goroutine up. Completions of replies are polled with the next request, which saves a
	// wake-up.
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
	// Buffer i is a receive, then its reply, then a receive again.
	receive := func(q *verbs.QP, i uint64) error {
		return q.PostRecv(&verbs.RecvWR{ID: i, SGL: []verbs.SGE{mr.Slice(int(i)*size, size)}})
	}
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	table := where{s.mr.Addr(0), s.mr.RKey(), uint32(s.cfg.Keys), uint32(s.cfg.MaxValue)}
	conn, err := r.Accept(ctx, cm.Config{
		PD: s.pd, QP: verbs.QPConfig{SendCQ: replies, RecvCQ: requests, MaxSend: depth, MaxRecv: depth}, Private: table.encode(),
		Prepare: func(q *verbs.QP) error { // receives are posted before the first message can come
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
		if posted == 0 { // the client sends faster than it receives replies: wait for them
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
		if n, err = requests.Next(s.ctx, wcs[:]); err != nil { // sleeps; one-sided reads do not wake it up
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
