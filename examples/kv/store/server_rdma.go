package store

import (
	"context"
	"time"

	"vrdma/verbs"
	"vrdma/verbs/cm"
)

// depth is how many requests of one client can be under way. Ours send one at a time.
const depth = 16

// patience bounds how long a client may take to become connected.
const patience = 10 * time.Second

func (s *Server) acceptRDMA(l *cm.Listener) {
	for {
		r, err := l.Accept(s.ctx)
		if err != nil {
			return // closed, or the device is gone
		}
		s.wg.Go(func() { s.serveRDMA(r) })
	}
}

// serveRDMA answers one client over RDMA until it has gone. A client that dies or does nonsense ends
// its own connection only.
func (s *Server) serveRDMA(r *cm.Request) {
	size := s.maxMessage()
	mr, err := s.pd.Alloc(depth*size, verbs.LocalWrite)
	if err != nil {
		r.Reject(nil)
		return
	}
	defer mr.Close()
	cq, err := s.dev.CreateCQ(2 * depth)
	if err != nil {
		r.Reject(nil)
		return
	}
	defer cq.Close()
	// Buffer i is a receive, then the reply to it, then a receive again.
	receive := func(q *verbs.QP, i int) error {
		return q.PostRecv(&verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{mr.Slice(i*size, size)}})
	}
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	table := where{s.mr.Addr(0), s.mr.RKey(), uint32(s.cfg.Keys), uint32(s.cfg.MaxValue)}
	conn, err := r.Accept(ctx, cm.Config{
		PD: s.pd, QP: verbs.QPConfig{SendCQ: cq, MaxSend: depth, MaxRecv: depth}, Private: table.encode(),
		Prepare: func(q *verbs.QP) error { // receives are there before the first message can come
			for i := range depth {
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
	var wcs [2 * depth]verbs.WC
	for {
		n, err := cq.Next(s.ctx, wcs[:]) // sleeps; one-sided reads do not wake it
		if err != nil {
			return
		}
		for _, wc := range wcs[:n] {
			if wc.Err() != nil {
				return // flushed: the client has gone
			}
			i := int(wc.ID)
			if wc.Op != verbs.WCRecv { // the reply has left
				if err := receive(conn.QP(), i); err != nil {
					return
				}
				continue
			}
			room := mr.Bytes()[i*size : (i+1)*size]
			length := s.answer(room[:wc.Bytes], room)
			err := conn.QP().PostSend(&verbs.SendWR{
				ID: wc.ID, Op: verbs.Send, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.Slice(i*size, length)},
			})
			if err != nil {
				return
			}
		}
	}
}
