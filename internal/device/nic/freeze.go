package nic

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"

	"vrdma.dev/vrdma/internal/ib"
)

// Freeze returns the state of the session. It changes nothing, except that it sends the events that the loop keeps.
// It runs on the loop, while no Job writes memory of the session (Engine.Halt). What was read from foreign memory and
// not sent yet is read again after Thaw.
func (s *Session) Freeze() (*SessionState, error) {
	if s.closed || s.Arena.lost {
		return nil, fmt.Errorf("freeze the session of process %d: %w", s.Pid, os.ErrClosed)
	}
	if s.loop != nil {
		s.loop.sendKept()
	}
	f := freezer{now: s.now(), names: namesOf(s)}
	st := &SessionState{
		Opened: s.opened.UnixNano(), Arena: s.Arena.freeze(), Stalls: uint32(s.stalls), Round: s.waiting.round,
		Next: NextHandles{
			PD: s.pds.next, MR: s.mrs.next, MW: s.mws.next, CQ: s.cqs.next, SRQ: s.srqs.next, QP: s.qps.next, AH: s.ahs.next,
			Channel: s.channels.next,
		},
		PDs: make([]PDState, 0, s.pds.len()), MRs: make([]MRState, 0, s.mrs.len()), MWs: make([]MWState, 0, s.mws.len()),
		CQs: make([]CQState, 0, s.cqs.len()), SRQs: make([]SRQState, 0, s.srqs.len()), QPs: make([]QPState, s.qps.len()),
		AHs: make([]AHState, 0, s.ahs.len()), Channels: make([]ChannelState, 0, s.channels.len()),
	}
	for h, p := range s.pds.sorted() {
		st.PDs = append(st.PDs, PDState{h, p.serial})
	}
	for h, m := range s.mrs.sorted() {
		st.MRs = append(st.MRs, f.mr(h, m))
	}
	for h, w := range s.mws.sorted() {
		st.MWs = append(st.MWs, f.mw(h, w))
	}
	for h, c := range s.cqs.sorted() {
		st.CQs = append(st.CQs, f.cq(h, c))
	}
	for h, q := range s.srqs.sorted() {
		st.SRQs = append(st.SRQs, f.srq(h, q))
	}
	for h, a := range s.ahs.sorted() {
		st.AHs = append(st.AHs, AHState{h, f.pds[a.pd], a.attr, a.sgid})
	}
	for h, q := range s.channels.sorted() {
		st.Channels = append(st.Channels, ChannelState{h, q.freeze()})
	}
	if s.async != nil {
		st.Async = &ChannelState{Waiting: s.async.freeze()}
	}
	i := 0
	for _, q := range s.qps.sorted() {
		f.qp(&st.QPs[i], q)
		i++
	}
	return st, nil
}

// sorted iterates over the objects in the order of their handles: equal sessions have equal states.
func (t *table[T]) sorted() func(func(uint32, T) bool) {
	return func(yield func(uint32, T) bool) {
		for _, h := range slices.Sorted(maps.Keys(t.items)) {
			if !yield(h, t.items[h]) {
				return
			}
		}
	}
}

// names are the handles of a session's objects.
type names struct {
	pds      map[*PD]uint32
	cqs      map[*CQ]uint32
	srqs     map[*SRQ]uint32
	mrs      map[*MR]uint32
	channels map[*eventQueue]uint32
}

func namesOf(s *Session) names {
	return names{handlesOf(&s.pds), handlesOf(&s.cqs), handlesOf(&s.srqs), handlesOf(&s.mrs), handlesOf(&s.channels)}
}

func handlesOf[T comparable](t *table[T]) map[T]uint32 {
	m := make(map[T]uint32, len(t.items))
	for h, v := range t.items {
		m[v] = h
	}
	return m
}

// plusOne is a reference to an object that may be missing.
func plusOne[T comparable](m map[T]uint32, v T) uint32 {
	if h, ok := m[v]; ok {
		return h + 1
	}
	return 0
}

// A freezer freezes the objects of one session.
type freezer struct {
	now ib.Time
	names
}

func (f *freezer) mr(h uint32, m *MR) MRState {
	return MRState{
		Handle: h, Serial: m.serial, PD: f.pds[m.pd], Key: m.lkey, IOVA: m.iova, Length: m.length, Access: m.access, Region: m.region.ID(),
	}
}

func (f *freezer) mw(h uint32, w *MW) MWState {
	st := MWState{
		Handle: h, PD: f.pds[w.pd], Type: w.typ, Key: w.rkey, MR: plusOne(f.mrs, w.mr), Addr: w.addr, Length: w.length, Access: w.access,
	}
	if w.qp != nil {
		st.QP = w.qp.handle + 1
	}
	return st
}

func (f *freezer) cq(h uint32, c *CQ) CQState {
	st := CQState{
		Handle: h, Serial: c.serial, UserHandle: c.userHandle, Ring: c.ring.freeze(), Prod: c.prod, Seen: c.seen,
		Channel: plusOne(f.channels, c.channel), Overrun: c.overrun, Events: c.events, Async: c.async,
		Woken: c.arm.wokenAt.at, HasWoken: c.arm.wokenAt.set, Urgent: c.arm.urgentAt.at, HasUrgent: c.arm.urgentAt.set,
	}
	if c.arm.word == &c.arm.own[0] {
		for i := range c.arm.own {
			st.Arm = append(st.Arm, c.arm.own[i].Load())
		}
	}
	return st
}

func (f *freezer) srq(h uint32, q *SRQ) SRQState {
	return SRQState{
		Handle: h, PD: f.pds[q.pd], UserHandle: q.userHandle, Num: q.num, Ring: q.ring.freeze(), MaxSGE: q.maxSGE, Limit: q.limit, Events: q.events,
	}
}

func (f *freezer) qp(st *QPState, q *QP) {
	st.Handle, st.UserHandle, st.PD = q.handle, q.userHandle, f.pds[q.pd]
	st.SendCQ, st.RecvCQ, st.SRQ = f.cqs[q.sendCQ], f.cqs[q.recvCQ], plusOne(f.srqs, q.srq)
	st.SQ, st.RQ, st.Cap, st.SigAll, st.Attr = q.sq.freeze(), q.rq.freeze(), q.cap, q.sigAll, q.attr
	q.tr.Freeze(&st.Transport, f.now)
	st.Events, st.LastSL, st.Rang, st.Groups = q.events, q.lastSL, q.rang, slices.Clone(q.groups)
	st.Contact = ContactState{q.contact.Type, q.contact.By, q.contact.ID}
	st.Judged, st.Revoked, st.Denied = q.judged != 0, q.revoked != 0 && q.revoked == q.nic.rules.number, q.denied
	if q.loop != nil {
		if a := q.loop.foreign.asides.qps[q]; a != nil {
			st.Aside = AsideState{Until: a.until.Freeze(f.now), Lasts: a.lasts}
		}
	}
}

func (r *ring) freeze() RingState {
	return RingState{Offset: r.at.Offset, Size: r.at.Size, Mask: r.mask, Log2: r.log2}
}

func (r *workRing) freeze() RingState {
	st := r.ring.freeze()
	st.Consumed = r.cons
	return st
}

func (q *eventQueue) freeze() (waiting []byte) {
	for i := range q.waiting {
		waiting = append(waiting, q.waiting[i].b[:q.waiting[i].n]...)
	}
	return waiting
}

func (a *Arena) freeze() ArenaState {
	a.mu.Lock()
	defer a.mu.Unlock()
	return ArenaState{Released: slices.Concat(a.reclaiming, a.released)}
}

// Sinks are the sinks of a session's events, by channel; async is nil if there is none yet. It runs on the loop.
func (s *Session) Sinks() (async EventSink, channels map[uint32]EventSink) {
	channels = make(map[uint32]EventSink, s.channels.len())
	s.channels.walk(func(h uint32, q *eventQueue) { channels[h] = q.sink })
	if s.async != nil {
		async = s.async.sink
	}
	return async, channels
}

// Freeze returns the state of the NIC without its sessions. It changes nothing, and runs on the loop.
func (n *NIC) Freeze() *NICState {
	f, p := n.Face(), n.tally.sum()
	st := &NICState{
		Serial: n.serial, Retired: n.retired.Counters, Drops: slices.Clone(p.drops[:]), Connected: n.tally.connected,
		Loop: p.loop, Delays: slices.Clone(p.waits.Delays[:]), Waited: p.waits.Sum, Refusals: slices.Clone(n.rules.count[:]),
		Face: FaceState{MTU: f.MTU, Rows: slices.Clone(f.Rows)},
	}
	for _, g := range f.GIDs {
		st.Face.GIDs, st.Face.NetDevs = append(st.Face.GIDs, g.GID), append(st.Face.NetDevs, g.NetDev)
	}
	return st
}

// Freeze returns the state of the loop that no session has. It runs on the loop, whose clock shows now.
func (l *Loop) Freeze(now ib.Time) *LoopState {
	st := &LoopState{}
	for uid, a := range l.foreign.asides.users {
		st.Asides = append(st.Asides, AsideState{User: uid, Until: a.until.Freeze(now), Lasts: a.lasts})
	}
	slices.SortFunc(st.Asides, func(a, b AsideState) int { return cmp.Compare(a.User, b.User) })
	return st
}
