package nic

import (
	"syscall"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// QPAttr is struct ib_uverbs_qp_attr by value.
type QPAttr struct {
	State           uint8  `cbor:"1,keyasint,omitempty"`
	CurState        uint8  `cbor:"2,keyasint,omitempty"`
	PathMTU         uint8  `cbor:"3,keyasint,omitempty"`
	PathMig         uint8  `cbor:"4,keyasint,omitempty"`
	QKey            uint32 `cbor:"5,keyasint,omitempty"`
	RQPSN           uint32 `cbor:"6,keyasint,omitempty"`
	SQPSN           uint32 `cbor:"7,keyasint,omitempty"`
	DestQPN         uint32 `cbor:"8,keyasint,omitempty"`
	AccessFlags     uint32 `cbor:"9,keyasint,omitempty"`
	AH              AHAttr `cbor:"10,keyasint,omitzero"`
	AltAH           AHAttr `cbor:"11,keyasint,omitzero"`
	Cap             QPCap  `cbor:"12,keyasint,omitzero"`
	PKeyIndex       uint16 `cbor:"13,keyasint,omitempty"`
	AltPKeyIndex    uint16 `cbor:"14,keyasint,omitempty"`
	EnSQDAsync      uint8  `cbor:"15,keyasint,omitempty"`
	SQDraining      uint8  `cbor:"16,keyasint,omitempty"`
	MaxRDAtomic     uint8  `cbor:"17,keyasint,omitempty"`
	MaxDestRDAtomic uint8  `cbor:"18,keyasint,omitempty"`
	MinRNRTimer     uint8  `cbor:"19,keyasint,omitempty"`
	PortNum         uint8  `cbor:"20,keyasint,omitempty"`
	Timeout         uint8  `cbor:"21,keyasint,omitempty"`
	RetryCnt        uint8  `cbor:"22,keyasint,omitempty"`
	RNRRetry        uint8  `cbor:"23,keyasint,omitempty"`
	AltPortNum      uint8  `cbor:"24,keyasint,omitempty"`
	AltTimeout      uint8  `cbor:"25,keyasint,omitempty"`
	RateLimit       uint32 `cbor:"26,keyasint,omitempty"`
}

// QPInit is what a queue pair was made with.
type QPInit struct {
	Cap    QPCap
	SigAll bool
}

// A transition says which attributes a change of state needs and which it takes
// besides, for each transport service. It is the table of section 11.2.5.2 of the
// specification as the kernel's ib_modify_qp_is_ok has it.
type transition struct{ required, optional [3]ib.AttrMask } // RC, UC, UD

type edge struct{ from, to ib.State }

const (
	rcPath = ib.MaskAltPath | ib.MaskAccess | ib.MaskPathMigState
	toRTS  = ib.MaskCurState | rcPath
)

var transitions = map[edge]transition{
	{ib.StateReset, ib.StateReset}: {},
	{ib.StateReset, ib.StateInit}: {required: [3]ib.AttrMask{
		ib.MaskPKey | ib.MaskPort | ib.MaskAccess, ib.MaskPKey | ib.MaskPort | ib.MaskAccess, ib.MaskPKey | ib.MaskPort | ib.MaskQKey}},
	{ib.StateInit, ib.StateReset}: {},
	{ib.StateInit, ib.StateError}: {},
	{ib.StateInit, ib.StateInit}: {optional: [3]ib.AttrMask{
		ib.MaskPKey | ib.MaskPort | ib.MaskAccess, ib.MaskPKey | ib.MaskPort | ib.MaskAccess, ib.MaskPKey | ib.MaskPort | ib.MaskQKey}},
	{ib.StateInit, ib.StateRTR}: {
		required: [3]ib.AttrMask{
			ib.MaskAV | ib.MaskMTU | ib.MaskDestQPN | ib.MaskRQPSN | ib.MaskMaxDestRDAtomic | ib.MaskMinRNRTimer,
			ib.MaskAV | ib.MaskMTU | ib.MaskDestQPN | ib.MaskRQPSN, 0},
		optional: [3]ib.AttrMask{
			ib.MaskAltPath | ib.MaskAccess | ib.MaskPKey, ib.MaskAltPath | ib.MaskAccess | ib.MaskPKey, ib.MaskPKey | ib.MaskQKey}},
	{ib.StateRTR, ib.StateReset}: {},
	{ib.StateRTR, ib.StateError}: {},
	{ib.StateRTR, ib.StateRTS}: {
		required: [3]ib.AttrMask{ib.MaskTimeout | ib.MaskRetryCount | ib.MaskRNRRetry | ib.MaskSQPSN | ib.MaskMaxRDAtomic, ib.MaskSQPSN, ib.MaskSQPSN},
		optional: [3]ib.AttrMask{toRTS | ib.MaskMinRNRTimer, toRTS, ib.MaskCurState | ib.MaskQKey}},
	{ib.StateRTS, ib.StateReset}: {},
	{ib.StateRTS, ib.StateError}: {},
	{ib.StateRTS, ib.StateRTS}:   {optional: [3]ib.AttrMask{toRTS | ib.MaskMinRNRTimer, toRTS, ib.MaskCurState | ib.MaskQKey}},
	{ib.StateRTS, ib.StateSQD}:   {optional: [3]ib.AttrMask{ib.MaskSQDAsyncNotify, ib.MaskSQDAsyncNotify, ib.MaskSQDAsyncNotify}},
	{ib.StateSQD, ib.StateReset}: {},
	{ib.StateSQD, ib.StateError}: {},
	{ib.StateSQD, ib.StateRTS}:   {optional: [3]ib.AttrMask{toRTS | ib.MaskMinRNRTimer, toRTS, ib.MaskCurState | ib.MaskQKey}},
	{ib.StateSQD, ib.StateSQD}: {optional: [3]ib.AttrMask{
		ib.MaskPort | ib.MaskAV | ib.MaskTimeout | ib.MaskRetryCount | ib.MaskRNRRetry | ib.MaskMaxRDAtomic | ib.MaskMaxDestRDAtomic | rcPath | ib.MaskPKey | ib.MaskMinRNRTimer,
		ib.MaskAV | rcPath | ib.MaskPKey, ib.MaskPKey | ib.MaskQKey}},
	{ib.StateSQE, ib.StateReset}:   {},
	{ib.StateSQE, ib.StateError}:   {},
	{ib.StateSQE, ib.StateRTS}:     {optional: [3]ib.AttrMask{0, ib.MaskCurState | ib.MaskAccess, ib.MaskCurState | ib.MaskQKey}},
	{ib.StateError, ib.StateReset}: {},
	{ib.StateError, ib.StateError}: {},
}

// allowed reports whether a change of state is one that the table has.
func allowed(from, to ib.State, typ ib.Service, mask ib.AttrMask) bool {
	t, ok := transitions[edge{from, to}]
	if !ok {
		return false
	}
	i := typ - ib.RC
	if mask&t.required[i] != t.required[i] {
		return false
	}
	return mask&^(t.required[i]|t.optional[i]|ib.MaskState) == 0
}

// ModifyQP changes a queue pair's attributes and state.
func (s *Session) ModifyQP(h uint32, mask ib.AttrMask, a *QPAttr) error {
	q, err := s.qps.get(h)
	if err != nil {
		return err
	}
	next, err := q.check(mask, a)
	if err != nil {
		return err
	}
	if err := q.nic.rules.mayMeet(q, mask, a); err != nil {
		return err
	}
	q.apply(mask, a, next)
	return nil
}

// check validates a change as the kernel's core and rxe do and returns the state
// that it leads to.
func (q *QP) check(mask ib.AttrMask, a *QPAttr) (ib.State, error) {
	cur := q.tr.State()
	if mask&ib.MaskCurState != 0 {
		switch c := ib.State(a.CurState); c {
		case ib.StateRTR, ib.StateRTS, ib.StateSQD, ib.StateSQE:
			cur = c
		default:
			return 0, syscall.EINVAL
		}
	}
	next := cur
	if mask&ib.MaskState != 0 {
		next = ib.State(a.State)
	}
	if !allowed(cur, next, q.typ, mask) {
		return 0, syscall.EINVAL
	}
	// What the application believes must be so, as far as the tables say.
	if cur != q.tr.State() && !(q.tr.State() == ib.StateRTS && cur == ib.StateSQD) &&
		!(q.tr.State() == ib.StateSQE && cur == ib.StateRTS) {
		return 0, syscall.EINVAL
	}
	if mask&ib.MaskState != 0 && next != ib.StateError && next != ib.StateReset && q.tr.Snapshot().SQDraining {
		return 0, syscall.EINVAL
	}
	return next, q.checkValues(mask, a)
}

func (q *QP) checkValues(mask ib.AttrMask, a *QPAttr) error {
	bad := mask&ib.MaskPort != 0 && a.PortNum != 1 ||
		mask&ib.MaskMTU != 0 && (a.PathMTU < 1 || a.PathMTU > q.nic.MTU) ||
		mask&ib.MaskMaxRDAtomic != 0 && uint32(a.MaxRDAtomic) > q.nic.Limits.RDAtomic ||
		mask&ib.MaskMaxDestRDAtomic != 0 && uint32(a.MaxDestRDAtomic) > q.nic.Limits.RDAtomic ||
		mask&ib.MaskTimeout != 0 && a.Timeout > 31 ||
		mask&ib.MaskMinRNRTimer != 0 && a.MinRNRTimer > 31 ||
		mask&ib.MaskRetryCount != 0 && a.RetryCnt > 7 ||
		mask&ib.MaskRNRRetry != 0 && a.RNRRetry > 7 ||
		mask&ib.MaskPKey != 0 && a.PKeyIndex != 0 ||
		mask&ib.MaskAltPath != 0 && (a.AltPortNum != 1 || a.AltTimeout > 31)
	if bad {
		return syscall.EINVAL
	}
	if mask&ib.MaskAV != 0 {
		if _, err := q.nic.checkAddress(&a.AH); err != nil {
			return err
		}
	}
	if mask&ib.MaskAltPath != 0 {
		if _, err := q.nic.checkAddress(&a.AltAH); err != nil {
			return err
		}
	}
	return nil
}

// apply records the attributes and moves the state machine.
func (q *QP) apply(mask ib.AttrMask, a *QPAttr, next ib.State) {
	if mask&ib.MaskState != 0 && next == ib.StateReset {
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
		Access:          ib.Access(a.AccessFlags),
		PKey:            0xffff,
		MaxRDAtomic:     a.MaxRDAtomic,
		MaxDestRDAtomic: a.MaxDestRDAtomic,
		MinRNRTimer:     a.MinRNRTimer,
		Timeout:         a.Timeout,
		RetryCount:      a.RetryCnt,
		RNRRetry:        a.RNRRetry,
		SQDAsyncNotify:  a.EnSQDAsync != 0,
	}
	if mask&ib.MaskAV != 0 {
		t.SGID, _ = q.nic.checkAddress(&a.AH)
		t.DGID = a.AH.DGID
		q.tr.SetPath(q.owner.Connect(&t.SGID, &t.DGID))
	}
	m, had := mask, q.connected()
	if next != q.tr.State() {
		m |= ib.MaskState
	} else if mask&ib.MaskState != 0 && next == ib.StateError {
		q.NoteError()
		return
	}
	q.tr.Modify(&t, m, q.owner.Now(), &q.env)
	if !had && q.connected() {
		q.nic.tally.connected++
	}
	q.publish()
	q.NoteError()
	q.owner.Wake()
}

// CanPost reports whether the queue pair takes sends: not before RTS.
func (q *QP) CanPost() bool { return q.tr.State() >= ib.StateRTS }

// reset drops what is queued, as a fresh queue pair.
func (q *QP) reset() {
	q.tr.Modify(&transport.Attr{State: ib.StateReset}, ib.MaskState, q.owner.Now(), &q.env)
	q.errands.dismiss()
	q.owner.Disconnect()
	q.publish()
	q.sq.drop()
	q.tr.SetSendPos(q.sq.cons)
	if q.rq.mem != nil {
		q.rq.drop()
	}
	for w := range q.bound {
		w.unbind()
	}
	q.attr = QPAttr{}
	q.judged = 0
	q.owner.Wake()
}

// merge records what mask names.
func (d *QPAttr) merge(mask ib.AttrMask, a *QPAttr) {
	set := func(bit ib.AttrMask, f func()) {
		if mask&bit != 0 {
			f()
		}
	}
	set(ib.MaskAccess, func() { d.AccessFlags = a.AccessFlags })
	set(ib.MaskPKey, func() { d.PKeyIndex = a.PKeyIndex })
	set(ib.MaskPort, func() { d.PortNum = a.PortNum })
	set(ib.MaskQKey, func() { d.QKey = a.QKey })
	set(ib.MaskAV, func() { d.AH = a.AH })
	set(ib.MaskMTU, func() { d.PathMTU = a.PathMTU })
	set(ib.MaskTimeout, func() { d.Timeout = a.Timeout })
	set(ib.MaskRetryCount, func() { d.RetryCnt = a.RetryCnt })
	set(ib.MaskRNRRetry, func() { d.RNRRetry = a.RNRRetry })
	set(ib.MaskRQPSN, func() { d.RQPSN = a.RQPSN & 0xffffff })
	set(ib.MaskMaxRDAtomic, func() { d.MaxRDAtomic = a.MaxRDAtomic })
	set(ib.MaskAltPath, func() {
		d.AltAH, d.AltPKeyIndex, d.AltPortNum, d.AltTimeout = a.AltAH, a.AltPKeyIndex, a.AltPortNum, a.AltTimeout
	})
	set(ib.MaskMinRNRTimer, func() { d.MinRNRTimer = a.MinRNRTimer })
	set(ib.MaskSQPSN, func() { d.SQPSN = a.SQPSN & 0xffffff })
	set(ib.MaskMaxDestRDAtomic, func() { d.MaxDestRDAtomic = a.MaxDestRDAtomic })
	set(ib.MaskPathMigState, func() { d.PathMig = a.PathMig })
	set(ib.MaskDestQPN, func() { d.DestQPN = a.DestQPN & 0xffffff })
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
	if q.typ != ib.UD {
		a.RQPSN = snap.Attr.RQPSN
	}
	a.SQPSN = snap.Attr.SQPSN
	if snap.SQDraining {
		a.SQDraining = 1
	}
	return a, QPInit{Cap: q.cap, SigAll: q.sigAll}, nil
}
