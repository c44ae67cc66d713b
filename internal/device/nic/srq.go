package nic

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/transport"
)

// An SRQ is a receive queue that queue pairs share.
type SRQ struct {
	session    *Session
	pd         *PD
	userHandle uint64
	num        uint32
	ring       workRing
	maxSGE     uint32
	maxWR      uint32
	limit      uint32
	refs       int
	events     uint32

	_ [40]byte // to full cache lines: the next SRQ may be another loop's
}

// SRQParams ask for a shared receive queue.
type SRQParams struct {
	UserHandle               uint64
	PD, MaxWR, MaxSGE, Limit uint32
}

// SRQInfo describes one.
type SRQInfo struct {
	Handle, Num, MaxWR, MaxSGE uint32
	Ring                       MMap
}

// SRQAttr is what can be asked of one.
type SRQAttr struct{ MaxWR, MaxSGE, Limit uint32 }

// CreateSRQ makes a shared receive queue.
func (s *Session) CreateSRQ(p SRQParams) (SRQInfo, error) {
	pd, err := s.pds.get(p.PD)
	if err != nil {
		return SRQInfo{}, err
	}
	l := &s.nic.Limits
	if p.MaxWR == 0 || p.MaxWR > l.SRQWR || p.MaxSGE > l.SRQSGE || p.Limit > p.MaxWR {
		return SRQInfo{}, syscall.EINVAL
	}
	sge := max(p.MaxSGE, 1)
	r, err := newRing(s.Arena, p.MaxWR, abi.RecvWQESize+sge*abi.SGESize)
	if err != nil {
		return SRQInfo{}, err
	}
	q := &SRQ{
		session: s, pd: pd, userHandle: p.UserHandle, num: s.nic.Random() & 0xffffff,
		ring: workRing{ring: r}, maxSGE: sge, maxWR: r.mask, limit: p.Limit,
	}
	h, err := s.srqs.add(q)
	if err != nil {
		q.ring.release()
		return SRQInfo{}, err
	}
	pd.refs++
	return SRQInfo{Handle: h, Num: q.num, MaxWR: q.maxWR, MaxSGE: sge, Ring: r.at}, nil
}

// ModifySRQ resizes the queue or arms its limit event.
func (s *Session) ModifySRQ(h, mask, maxWR, limit uint32) (ring MMap, resized bool, err error) {
	q, err := s.srqs.get(h)
	if err != nil {
		return MMap{}, false, err
	}
	if mask&^(abi.SRQMaskMaxWR|abi.SRQMaskLimit) != 0 {
		return MMap{}, false, syscall.EINVAL
	}
	room := q.maxWR
	if mask&abi.SRQMaskMaxWR != 0 {
		if maxWR == 0 || maxWR > s.nic.Limits.SRQWR || maxWR < q.limit && mask&abi.SRQMaskLimit == 0 {
			return MMap{}, false, syscall.EINVAL
		}
		room = maxWR
	}
	if mask&abi.SRQMaskLimit != 0 && limit > room {
		return MMap{}, false, syscall.EINVAL
	}
	if mask&abi.SRQMaskMaxWR != 0 {
		if err := q.resize(maxWR); err != nil {
			return MMap{}, false, err
		}
	}
	if mask&abi.SRQMaskLimit != 0 {
		q.limit = limit
	}
	return q.ring.at, mask&abi.SRQMaskMaxWR != 0, nil
}

func (q *SRQ) resize(maxWR uint32) error {
	held := q.ring.posted()
	if maxWR < held {
		return syscall.EINVAL
	}
	r, err := newRing(q.session.Arena, maxWR, q.ring.elem())
	if err != nil {
		return err
	}
	if err := r.move(&q.ring.ring, q.ring.cons, held); err != nil {
		r.release()
		return err
	}
	q.ring.release()
	q.ring = workRing{ring: r}
	q.maxWR = r.mask
	return nil
}

// QuerySRQ reports a queue's attributes.
func (s *Session) QuerySRQ(h uint32) (SRQAttr, error) {
	q, err := s.srqs.get(h)
	if err != nil {
		return SRQAttr{}, err
	}
	return SRQAttr{MaxWR: q.maxWR, MaxSGE: q.maxSGE, Limit: q.limit}, nil
}

// DestroySRQ ends a queue that no queue pair uses and returns how many of its
// events the client has read.
func (s *Session) DestroySRQ(h uint32) (uint32, error) {
	q, err := s.srqs.get(h)
	if err != nil {
		return 0, err
	}
	if q.refs > 0 {
		return 0, syscall.EBUSY
	}
	s.srqs.remove(h)
	q.pd.refs--
	q.ring.release()
	return q.events - s.async.withdraw(q.events, func(e *event) bool {
		return e.asyncOwner() == 's' && e.element() == q.userHandle
	}), nil
}

// take consumes the next receive and reports the limit if the queue fell below it.
func (q *SRQ) take(w *transport.RecvWQE) bool {
	n := q.ring.posted()
	if n == 0 {
		return false
	}
	parseRecv(q.ring.slot(q.ring.cons), q.maxSGE, w)
	q.ring.advance(q.ring.cons + 1)
	if q.limit > 0 && n-1 < q.limit {
		q.limit = 0
		q.events++
		q.session.async.post(asyncEvent(q.userHandle, abi.EventSRQLimitReached))
	}
	return true
}
