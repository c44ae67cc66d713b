package nic

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// QPCap are the sizes of a queue pair: struct ib_qp_cap.
type QPCap struct {
	SendWR  uint32 `cbor:"1,keyasint,omitempty"`
	RecvWR  uint32 `cbor:"2,keyasint,omitempty"`
	SendSGE uint32 `cbor:"3,keyasint,omitempty"`
	RecvSGE uint32 `cbor:"4,keyasint,omitempty"`
	Inline  uint32 `cbor:"5,keyasint,omitempty"`
}

// QPParams are the parameters of a new queue pair.
type QPParams struct {
	UserHandle              uint64
	PD, SendCQ, RecvCQ, SRQ uint32
	HasSRQ                  bool
	Cap                     QPCap
	SigAll                  bool
	Type                    uint8 // enum ib_qp_type
	Flags                   uint32
}

// QPInfo describes one.
type QPInfo struct {
	Handle, Num uint32
	Cap         QPCap
	SQ, RQ      MMap
}

// A QP is a queue pair: rings, rights and the transport's state machine, which knows it as its
// NIC (transport.NIC).
type QP struct {
	nic        *NIC
	session    *Session
	handle     uint32
	userHandle uint64
	num        uint32
	typ        ib.Service
	pd         *PD
	sendCQ     *CQ
	recvCQ     *CQ
	srq        *SRQ
	sq         workRing
	rq         workRing
	cap        QPCap
	sigAll     bool
	attr       QPAttr
	tr         transport.QP
	env        transport.Env
	events     uint32
	gone       bool
	watched    bool // in session.errored
	nextWatch  *QP  // there

	lastMR     *MR // key caches
	lastRemote *MR
	lastSL     uint8    // of the datagram that GRH described last
	rang       bool     // the last receive that completed gave an event
	errands    *errands // nil: it had nothing to do with foreign memory
	asideOut   bool     // what it reads is reached aside, see aside.go,
	asideIn    bool     // and what is written for it
	bound      map[*MW]struct{}
	groups     []ib.GID

	// For the rules: see guard.go.
	contact ib.Contact // how it came to its peer
	judged  uint32     // the number of the Guard that judged it; 0: none did
	revoked uint32     // that of the one that ended it
	tells   verdict    // about datagrams that it sends
	hears   verdict    // about datagrams that come
	denied  uint64     // requests for operations that were refused, as far as somebody was told

	owner  Owner
	loop   *Loop  // its owner's
	thawed *aside // its mark, until it is adopted; nil: none
}

const (
	minInline = 64 // programs post a little more than they asked for
	maxBurst  = 256 << 10
	window    = 1 << 20 // packets; local memory does not overflow
)

// CreateQP makes a queue pair in the RESET state.
func (s *Session) CreateQP(p QPParams) (QPInfo, error) {
	if s.owner == nil {
		return QPInfo{}, syscall.EIO
	}
	q, err := s.newQP(&p)
	if err != nil {
		return QPInfo{}, err
	}
	if err := q.makeRings(&p); err != nil {
		return QPInfo{}, err
	}
	h, err := s.qps.add(q)
	if err != nil {
		q.sq.release()
		q.rq.release()
		return QPInfo{}, err
	}
	q.handle = h
	q.num = s.newNumber()
	s.nic.qps[q.num] = q
	q.pd.refs++
	q.sendCQ.refs++
	q.recvCQ.refs++
	if q.srq != nil {
		q.srq.refs++
	}
	q.owner, q.loop = s.owner.Adopt(q), s.loop
	q.env = transport.NewEnv((*qpNIC)(q), q.owner, q.loop.Scratch())
	q.tr.Init(transport.Config{
		Type: q.typ, Num: q.num, MaxBurst: maxBurst, Window: window, MTU: 128 << s.nic.MTU, SRQ: q.srq != nil,
	})
	q.publish()
	q.review(s.owner.Now())
	return QPInfo{Handle: h, Num: q.num, Cap: q.cap, SQ: q.sq.at, RQ: q.rq.at}, nil
}

// newQP checks the parameters and finds the objects they name.
func (s *Session) newQP(p *QPParams) (*QP, error) {
	typ, ok := ib.ServiceOf(p.Type)
	if !ok || p.Flags != 0 {
		return nil, syscall.EOPNOTSUPP
	}
	l := &s.nic.Limits
	c := &p.Cap
	if c.SendWR > l.QPWR || c.SendSGE > l.SGE || c.Inline > l.Inline ||
		!p.HasSRQ && (c.RecvWR > l.QPWR || c.RecvSGE > l.SGE) {
		return nil, syscall.EINVAL
	}
	if err := s.nic.rules.mayHave(s, typ); err != nil {
		return nil, err
	}
	q := &QP{nic: s.nic, session: s, userHandle: p.UserHandle, typ: typ, sigAll: p.SigAll}
	var err error
	if q.pd, err = s.pds.get(p.PD); err != nil {
		return nil, err
	}
	if q.sendCQ, err = s.cqs.get(p.SendCQ); err != nil {
		return nil, err
	}
	if q.recvCQ, err = s.cqs.get(p.RecvCQ); err != nil {
		return nil, err
	}
	if p.HasSRQ {
		if q.srq, err = s.srqs.get(p.SRQ); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// makeRings sizes and makes the two queues.
func (q *QP) makeRings(p *QPParams) error {
	q.cap = p.Cap
	data := max(q.cap.SendSGE*abi.SGESize, q.cap.Inline, minInline)
	sq, err := newRing(q.session.Arena, max(q.cap.SendWR, 1), abi.SendWQESize+data)
	if err != nil {
		return err
	}
	q.sq.ring = sq
	q.cap.SendWR = sq.mask
	q.cap.SendSGE = max(q.cap.SendSGE, 1)
	q.cap.Inline = min(sq.elem()-abi.SendWQESize, q.nic.Limits.Inline)
	if p.HasSRQ {
		q.cap.RecvWR, q.cap.RecvSGE = 0, 0
		return nil
	}
	sge := max(q.cap.RecvSGE, 1)
	rq, err := newRing(q.session.Arena, max(q.cap.RecvWR, 1), abi.RecvWQESize+sge*abi.SGESize)
	if err != nil {
		q.sq.release()
		return err
	}
	q.rq.ring = rq
	q.cap.RecvWR, q.cap.RecvSGE = rq.mask, sge
	return nil
}

// DestroyQP ends a queue pair and returns how many of its events the client has
// read.
func (s *Session) DestroyQP(h uint32) (uint32, error) {
	q, err := s.qps.get(h)
	if err != nil {
		return 0, err
	}
	if len(q.groups) > 0 {
		return 0, syscall.EBUSY
	}
	s.qps.remove(h)
	q.destroy()
	return q.events - s.async.withdraw(q.events, func(e *event) bool {
		return e.asyncOwner() == 'q' && e.element() == q.userHandle
	}), nil
}

func (q *QP) destroy() {
	q.gone = true
	q.errands.dismiss()
	delete(q.loop.foreign.asides.qps, q)
	delete(q.nic.qps, q.num)
	q.publish()
	for w := range q.bound {
		w.unbind()
	}
	q.pd.refs--
	q.sendCQ.refs--
	q.recvCQ.refs--
	if q.srq != nil {
		q.srq.refs--
	}
	q.nic.retired.add(q.tr.Counters())
	q.sq.release()
	q.rq.release()
	// A cache or a timer may still point to q, but must not keep these objects alive.
	q.lastMR, q.lastRemote = nil, nil
	q.owner.Forget()
}

// Type is the service type.
func (q *QP) Type() ib.Service { return q.typ }

// Peer is the number of the queue pair that this one is connected to.
func (q *QP) Peer() uint32 { return q.attr.DestQPN }

// PeerGID is that one's address.
func (q *QP) PeerGID() ib.GID { return q.attr.AH.DGID }

// Handle is the name that its session knows it by, and its bit in the doorbell page.
func (q *QP) Handle() uint32 { return q.handle }

// Num is the queue pair's number.
func (q *QP) Num() uint32 { return q.num }

// HasReceive reports whether a receive is posted.
func (q *QP) HasReceive() bool {
	if q.srq != nil {
		return q.srq.ring.posted() > 0
	}
	return q.rq.mem != nil && q.rq.posted() > 0
}

// Gone reports whether the queue pair has been destroyed.
func (q *QP) Gone() bool { return q.gone }

// Session owns the queue pair.
func (q *QP) Session() *Session { return q.session }

// Transport is the state machine.
func (q *QP) Transport() *transport.QP { return &q.tr }

// Flush completes with an error what was posted to a queue pair in an error state.
func (q *QP) Flush() { q.tr.Flush(q.owner.Now(), &q.env) }

// Rang reports whether the last receive that completed gave an event, so that the program
// sleeps or was about to.
func (q *QP) Rang() bool { return q.rang }

// watch has the receives of a queue pair in the error state looked after.
func (q *QP) watch() {
	if !q.watched && q.rq.mem != nil && q.tr.State() == ib.StateError {
		q.session.trouble.watch(q)
	}
}

// NoteError is called after the state machine has run: a queue pair that fell into the
// error state is watched from then on.
func (q *QP) NoteError() {
	if q.tr.State() == ib.StateError {
		q.errands.dismiss()
		q.watch()
		q.nic.rules.noteDenied(q)
	}
}
