package nic

import (
	"syscall"

	"vrdma/internal/transport"
)

// QPAttr is struct ib_uverbs_qp_attr by value.
type QPAttr struct {
	State, CurState               uint8
	PathMTU, PathMig              uint8
	QKey, RQPSN, SQPSN, DestQPN   uint32
	AccessFlags                   uint32
	AH, AltAH                     AHAttr
	Cap                           QPCap
	PKeyIndex, AltPKeyIndex       uint16
	EnSQDAsync, SQDraining        uint8
	MaxRDAtomic, MaxDestRDAtomic  uint8
	MinRNRTimer, PortNum, Timeout uint8
	RetryCnt, RNRRetry            uint8
	AltPortNum, AltTimeout        uint8
	RateLimit                     uint32
}

// QPInit is what a queue pair was made with.
type QPInit struct {
	Cap    QPCap
	SigAll bool
}

// Attribute masks, numbered as enum ib_qp_attr_mask.
const (
	attrState = 1 << iota
	attrCurState
	attrSQDAsync
	attrAccess
	attrPKey
	attrPort
	attrQKey
	attrAV
	attrMTU
	attrTimeout
	attrRetry
	attrRNRRetry
	attrRQPSN
	attrMaxRD
	attrAltPath
	attrMinRNR
	attrSQPSN
	attrMaxDestRD
	attrPathMig
	attrCap
	attrDestQPN
)

// A transition says which attributes a change of state needs and which it takes
// besides, for each transport service. It is the table of section 11.2.5.2 of the
// specification as the kernel's ib_modify_qp_is_ok has it.
type transition struct{ required, optional [3]uint32 } // RC, UC, UD

type edge struct{ from, to transport.State }

const (
	rcPath = attrAltPath | attrAccess | attrPathMig
	toRTS  = attrCurState | rcPath
)

var transitions = map[edge]transition{
	{transport.Reset, transport.Reset}: {},
	{transport.Reset, transport.Init}: {required: [3]uint32{
		attrPKey | attrPort | attrAccess, attrPKey | attrPort | attrAccess, attrPKey | attrPort | attrQKey}},
	{transport.Init, transport.Reset}: {},
	{transport.Init, transport.Error}: {},
	{transport.Init, transport.Init}: {optional: [3]uint32{
		attrPKey | attrPort | attrAccess, attrPKey | attrPort | attrAccess, attrPKey | attrPort | attrQKey}},
	{transport.Init, transport.RTR}: {
		required: [3]uint32{
			attrAV | attrMTU | attrDestQPN | attrRQPSN | attrMaxDestRD | attrMinRNR,
			attrAV | attrMTU | attrDestQPN | attrRQPSN, 0},
		optional: [3]uint32{
			attrAltPath | attrAccess | attrPKey, attrAltPath | attrAccess | attrPKey, attrPKey | attrQKey}},
	{transport.RTR, transport.Reset}: {},
	{transport.RTR, transport.Error}: {},
	{transport.RTR, transport.RTS}: {
		required: [3]uint32{attrTimeout | attrRetry | attrRNRRetry | attrSQPSN | attrMaxRD, attrSQPSN, attrSQPSN},
		optional: [3]uint32{toRTS | attrMinRNR, toRTS, attrCurState | attrQKey}},
	{transport.RTS, transport.Reset}: {},
	{transport.RTS, transport.Error}: {},
	{transport.RTS, transport.RTS}:   {optional: [3]uint32{toRTS | attrMinRNR, toRTS, attrCurState | attrQKey}},
	{transport.RTS, transport.SQD}:   {optional: [3]uint32{attrSQDAsync, attrSQDAsync, attrSQDAsync}},
	{transport.SQD, transport.Reset}: {},
	{transport.SQD, transport.Error}: {},
	{transport.SQD, transport.RTS}:   {optional: [3]uint32{toRTS | attrMinRNR, toRTS, attrCurState | attrQKey}},
	{transport.SQD, transport.SQD}: {optional: [3]uint32{
		attrPort | attrAV | attrTimeout | attrRetry | attrRNRRetry | attrMaxRD | attrMaxDestRD | rcPath | attrPKey | attrMinRNR,
		attrAV | rcPath | attrPKey, attrPKey | attrQKey}},
	{transport.SQE, transport.Reset}:   {},
	{transport.SQE, transport.Error}:   {},
	{transport.SQE, transport.RTS}:     {optional: [3]uint32{0, attrCurState | attrAccess, attrCurState | attrQKey}},
	{transport.Error, transport.Reset}: {},
	{transport.Error, transport.Error}: {},
}

// allowed reports whether a change of state is one that the table has.
func allowed(from, to transport.State, typ transport.Type, mask uint32) bool {
	t, ok := transitions[edge{from, to}]
	if !ok {
		return false
	}
	i := typ - transport.RC
	if mask&t.required[i] != t.required[i] {
		return false
	}
	return mask&^(t.required[i]|t.optional[i]|attrState) == 0
}

// ModifyQP changes a queue pair's attributes and state.
func (s *Session) ModifyQP(h, mask uint32, a *QPAttr) error {
	q, err := s.qps.get(h)
	if err != nil {
		return err
	}
	next, err := q.check(mask, a)
	if err != nil {
		return err
	}
	q.apply(mask, a, next)
	return nil
}

// check validates a change as the kernel's core and rxe do and returns the state
// that it leads to.
func (q *QP) check(mask uint32, a *QPAttr) (transport.State, error) {
	cur := q.tr.State()
	if mask&attrCurState != 0 {
		switch c := transport.State(a.CurState); c {
		case transport.RTR, transport.RTS, transport.SQD, transport.SQE:
			cur = c
		default:
			return 0, syscall.EINVAL
		}
	}
	next := cur
	if mask&attrState != 0 {
		next = transport.State(a.State)
	}
	if !allowed(cur, next, q.typ, mask) {
		return 0, syscall.EINVAL
	}
	// What the application believes must be so, as far as the tables say.
	if cur != q.tr.State() && !(q.tr.State() == transport.RTS && cur == transport.SQD) &&
		!(q.tr.State() == transport.SQE && cur == transport.RTS) {
		return 0, syscall.EINVAL
	}
	if mask&attrState != 0 && next != transport.Error && next != transport.Reset && q.tr.Snapshot().SQDraining {
		return 0, syscall.EINVAL
	}
	return next, q.checkValues(mask, a)
}

func (q *QP) checkValues(mask uint32, a *QPAttr) error {
	bad := mask&attrPort != 0 && a.PortNum != 1 ||
		mask&attrMTU != 0 && (a.PathMTU < 1 || a.PathMTU > q.nic.MTU) ||
		mask&attrMaxRD != 0 && uint32(a.MaxRDAtomic) > q.nic.Limits.RDAtomic ||
		mask&attrMaxDestRD != 0 && uint32(a.MaxDestRDAtomic) > q.nic.Limits.RDAtomic ||
		mask&attrTimeout != 0 && a.Timeout > 31 ||
		mask&attrMinRNR != 0 && a.MinRNRTimer > 31 ||
		mask&attrRetry != 0 && a.RetryCnt > 7 ||
		mask&attrRNRRetry != 0 && a.RNRRetry > 7 ||
		mask&attrPKey != 0 && a.PKeyIndex != 0 ||
		mask&attrAltPath != 0 && (a.AltPortNum != 1 || a.AltTimeout > 31)
	if bad {
		return syscall.EINVAL
	}
	if mask&attrAV != 0 {
		if _, err := q.nic.checkAddress(&a.AH); err != nil {
			return err
		}
	}
	if mask&attrAltPath != 0 {
		if _, err := q.nic.checkAddress(&a.AltAH); err != nil {
			return err
		}
	}
	return nil
}

// apply records the attributes and moves the state machine.
func (q *QP) apply(mask uint32, a *QPAttr, next transport.State) {
	if mask&attrState != 0 && next == transport.Reset {
		q.reset()
		return
	}
	q.attr.merge(mask, a)
	t := transport.Attr{
		State:           next,
		MTU:             128 << (a.PathMTU & 7),
		QKey:            a.QKey,
		RQPSN:           a.RQPSN & 0xffffff,
		SQPSN:           a.SQPSN & 0xffffff,
		DestQPN:         a.DestQPN & 0xffffff,
		Access:          transport.Access(a.AccessFlags),
		PKey:            0xffff,
		MaxRDAtomic:     a.MaxRDAtomic,
		MaxDestRDAtomic: a.MaxDestRDAtomic,
		MinRNRTimer:     a.MinRNRTimer,
		Timeout:         a.Timeout,
		RetryCount:      a.RetryCnt,
		RNRRetry:        a.RNRRetry,
		SQDAsyncNotify:  a.EnSQDAsync != 0,
	}
	if mask&attrAV != 0 {
		t.SGID, _ = q.nic.checkAddress(&a.AH)
		t.DGID = a.AH.DGID
		q.tr.SetPath(q.nic.link.Path(&t.SGID, &t.DGID))
		q.Sched.Peer, q.Sched.Route = nil, RouteUnknown
	}
	m := transport.AttrMask(mask)
	if next != q.tr.State() {
		m |= attrState
	} else if mask&attrState != 0 && next == transport.Error {
		q.Settle()
		return
	}
	q.tr.Modify(&t, m, q.nic.link.Now(), q)
	q.session.Arena.setReady(q.handle, q.CanPost())
	q.Settle()
	q.nic.link.Wake(q)
}

// CanPost reports whether the queue pair takes sends: not before RTS.
func (q *QP) CanPost() bool { return q.tr.State() >= transport.RTS }

// reset drops what is queued, as a fresh queue pair.
func (q *QP) reset() {
	q.tr.Modify(&transport.Attr{State: transport.Reset}, attrState, q.nic.link.Now(), q)
	q.dismiss()
	if q.Sched.Parked {
		q.nic.link.Wake(q) // what waits for it was for the old connection
	}
	q.session.Arena.setReady(q.handle, false)
	q.sq.drop()
	q.tr.SetSendPos(q.sq.cons)
	if q.rq.mem != nil {
		q.rq.drop()
	}
	for w := range q.bound {
		w.unbind()
	}
	q.Sched.Peer, q.Sched.Route = nil, RouteUnknown
	q.attr = QPAttr{}
	q.nic.link.Wake(q)
}

// merge records what mask names.
func (d *QPAttr) merge(mask uint32, a *QPAttr) {
	set := func(bit uint32, f func()) {
		if mask&bit != 0 {
			f()
		}
	}
	set(attrAccess, func() { d.AccessFlags = a.AccessFlags })
	set(attrPKey, func() { d.PKeyIndex = a.PKeyIndex })
	set(attrPort, func() { d.PortNum = a.PortNum })
	set(attrQKey, func() { d.QKey = a.QKey })
	set(attrAV, func() { d.AH = a.AH })
	set(attrMTU, func() { d.PathMTU = a.PathMTU })
	set(attrTimeout, func() { d.Timeout = a.Timeout })
	set(attrRetry, func() { d.RetryCnt = a.RetryCnt })
	set(attrRNRRetry, func() { d.RNRRetry = a.RNRRetry })
	set(attrRQPSN, func() { d.RQPSN = a.RQPSN & 0xffffff })
	set(attrMaxRD, func() { d.MaxRDAtomic = a.MaxRDAtomic })
	set(attrAltPath, func() {
		d.AltAH, d.AltPKeyIndex, d.AltPortNum, d.AltTimeout = a.AltAH, a.AltPKeyIndex, a.AltPortNum, a.AltTimeout
	})
	set(attrMinRNR, func() { d.MinRNRTimer = a.MinRNRTimer })
	set(attrSQPSN, func() { d.SQPSN = a.SQPSN & 0xffffff })
	set(attrMaxDestRD, func() { d.MaxDestRDAtomic = a.MaxDestRDAtomic })
	set(attrPathMig, func() { d.PathMig = a.PathMig })
	set(attrDestQPN, func() { d.DestQPN = a.DestQPN & 0xffffff })
}

// QueryQP reports a queue pair's attributes.
func (s *Session) QueryQP(h uint32) (QPAttr, QPInit, error) {
	q, err := s.qps.get(h)
	if err != nil {
		return QPAttr{}, QPInit{}, err
	}
	a := q.attr
	a.State = uint8(q.tr.State())
	a.CurState = a.State
	a.Cap = q.cap
	snap := q.tr.Snapshot()
	if q.typ != transport.UD {
		a.RQPSN = snap.Attr.RQPSN
	}
	a.SQPSN = snap.Attr.SQPSN
	if snap.SQDraining {
		a.SQDraining = 1
	}
	return a, QPInit{Cap: q.cap, SigAll: q.sigAll}, nil
}
