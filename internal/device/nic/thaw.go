package nic

import (
	"cmp"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// A Restorer has what a session's state refers to.
type Restorer interface {
	// Region returns the registered memory with an ID.
	Region(id uint64) (*memory.Region, error)
	// Sink returns the sink of a completion channel, and AsyncSink that of asynchronous events.
	Sink(channel uint32) (EventSink, error)
	AsyncSink() (EventSink, error)
}

// NewArenaOf makes an arena of the memfd of a process's arena, which it closes. Its contents stay. NIC.ThawSession finds
// out what of it is in use.
func NewArenaOf(file *os.File) (*Arena, error) {
	if err := CheckArena(file); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, arenaSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map the memfd for rings: %w", err)
	}
	return NewArenaIn(&ringFile{file, mem}), nil
}

// CheckArena returns an error if a file cannot be the memfd of an arena: it may be a client's.
func CheckArena(file *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return fmt.Errorf("memfd for rings: %w", err)
	}
	seals, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
	const want = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if err != nil || seals&want != want || st.Size != arenaSize {
		return fmt.Errorf("the file of %d bytes is not a memfd for rings", st.Size)
	}
	return nil
}

// ThawSession makes a session whose state is st. o.Arena is the arena that it had, and its account is charged for the rings.
// Engine.Attach completes it: queue pairs get their owners, and join their groups. It runs on the loop, whose clock
// shows now. A state that does not fit is an error. Then nothing is left of it, the sinks that r returned are closed,
// and the regions released.
func (n *NIC) ThawSession(o SessionOptions, st *SessionState, r Restorer, now ib.Time) (*Session, error) {
	if o.Arena == nil {
		return nil, fmt.Errorf("restore a session: it has no arena")
	}
	s, err := n.Open(o)
	if err != nil {
		return nil, err
	}
	s.opened = time.Unix(0, st.Opened)
	s.stalls, s.waiting.round = int(st.Stalls), st.Round
	t := thawing{s: s, st: st, from: r, now: now, regions: make(map[*memory.Region]bool)}
	if err := t.all(); err != nil {
		t.undo()
		return nil, fmt.Errorf("restore the session of process %d: %w", o.Pid, err)
	}
	return s, nil
}

// thawing is a session that is being made.
type thawing struct {
	s       *Session
	st      *SessionState
	from    Restorer
	now     ib.Time
	rings   []MMap
	regions map[*memory.Region]bool
}

func (t *thawing) all() error {
	for _, f := range []func() error{t.pds, t.channels, t.mrs, t.cqs, t.srqs, t.ahs, t.qps, t.mws, t.next, t.arena} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// undo closes the session. Its arena stays as it is.
func (t *thawing) undo() {
	s := t.s
	s.Arena.dying = true
	s.qps.each(func(_ uint32, q *QP) { delete(s.nic.qps, q.num) })
	s.mws.each(func(_ uint32, w *MW) { w.free() })
	for r := range t.regions {
		r.Release()
	}
	s.Close()
	s.Arena.dying = false
}

// put gives v its handle.
func (t *table[T]) put(h uint32, v T) error {
	if _, taken := t.items[h]; taken || h >= t.space {
		return fmt.Errorf("handle %d of %d, taken %v", h, t.space, taken)
	}
	if len(t.items) >= t.limit {
		return t.full
	}
	if err := t.account.Charge(t.price); err != nil {
		return err
	}
	t.items[h] = v
	return nil
}

func (t *thawing) pds() error {
	for i := range t.st.PDs {
		st := &t.st.PDs[i]
		if err := t.s.pds.put(st.Handle, &PD{serial: st.Serial}); err != nil {
			return fmt.Errorf("protection domain: %w", err)
		}
	}
	return nil
}

// pd finds the protection domain that an object refers to.
func (t *thawing) pd(h uint32) (*PD, error) {
	pd, err := t.s.pds.get(h)
	if err != nil {
		return nil, fmt.Errorf("protection domain %d: %w", h, err)
	}
	return pd, nil
}

func (t *thawing) channels() error {
	for i := range t.st.Channels {
		st := &t.st.Channels[i]
		q := newEventQueue(t.s, nil)
		if err := t.s.channels.put(st.Handle, q); err != nil {
			return fmt.Errorf("completion channel: %w", err)
		}
		var err error
		if q.sink, err = t.from.Sink(st.Handle); err != nil {
			t.s.channels.remove(st.Handle)
			return fmt.Errorf("completion channel %d: %w", st.Handle, err)
		}
		if err := q.thaw(st.Waiting, compEventSize); err != nil {
			return fmt.Errorf("completion channel %d: %w", st.Handle, err)
		}
	}
	if t.st.Async == nil {
		return nil
	}
	if err := t.s.CreateAsync(t.from.AsyncSink); err != nil {
		return fmt.Errorf("asynchronous events: %w", err)
	}
	if err := t.s.async.thaw(t.st.Async.Waiting, asyncEventSize); err != nil {
		return fmt.Errorf("asynchronous events: %w", err)
	}
	return nil
}

// thaw restores the events that wait, each of so many bytes.
func (q *eventQueue) thaw(waiting []byte, size int) error {
	n := len(waiting) / size
	if n*size != len(waiting) || n > maxWaiting {
		return fmt.Errorf("%d bytes of events", len(waiting))
	}
	if err := q.account.Charge(budget.Bill{budget.State: uint64(n) * eventBill[budget.State]}); err != nil {
		return err
	}
	q.waiting = make([]event, n)
	for i := range q.waiting {
		q.waiting[i].n = copy(q.waiting[i].b[:], waiting[i*size:(i+1)*size])
	}
	return nil
}

// key enters a memory key of the NIC.
func (t *thawing) key(key uint32, k keyed) error {
	if _, taken := t.s.nic.keys[key>>8]; taken || key>>8 == 0 {
		return fmt.Errorf("key %#x is taken or invalid", key)
	}
	t.s.nic.keys[key>>8] = k
	return nil
}

func (t *thawing) mrs() error {
	for i := range t.st.MRs {
		if err := t.mr(&t.st.MRs[i]); err != nil {
			return fmt.Errorf("memory region: %w", err)
		}
	}
	return nil
}

func (t *thawing) mr(st *MRState) error {
	pd, err := t.pd(st.PD)
	if err != nil {
		return err
	}
	m := &MR{session: t.s, serial: st.Serial, pd: pd, lkey: st.Key, iova: st.IOVA, length: st.Length, access: st.Access}
	if m.region, err = t.from.Region(st.Region); err != nil {
		return err
	}
	if t.regions[m.region] {
		return fmt.Errorf("two of them have the same registered memory")
	}
	t.regions[m.region] = true
	if m.region.Length() < st.Length || !m.region.Writable() && st.Access&regionWrites != 0 ||
		st.IOVA+st.Length < st.IOVA || uint32(st.Access)&^accessSupported != 0 {
		return fmt.Errorf("%d bytes at %#x with access %#x in registered memory of %d bytes", st.Length, st.IOVA, st.Access, m.region.Length())
	}
	if err := t.key(st.Key, m); err != nil {
		return err
	}
	if err := t.s.mrs.put(st.Handle, m); err != nil {
		delete(t.s.nic.keys, st.Key>>8)
		return err
	}
	pd.refs++
	t.s.nic.tally.registered += m.length
	return nil
}

func (t *thawing) mws() error {
	for i := range t.st.MWs {
		if err := t.mw(&t.st.MWs[i]); err != nil {
			return fmt.Errorf("memory window: %w", err)
		}
	}
	return nil
}

func (t *thawing) mw(st *MWState) error {
	pd, err := t.pd(st.PD)
	if err != nil {
		return err
	}
	w := &MW{session: t.s, pd: pd, typ: st.Type, rkey: st.Key}
	if st.Type != abi.MWType1 && st.Type != abi.MWType2 {
		return fmt.Errorf("type %d", st.Type)
	}
	var m *MR
	var q *QP
	if st.MR != 0 {
		if m, err = t.s.mrs.get(st.MR - 1); err != nil {
			return fmt.Errorf("region %d: %w", st.MR-1, err)
		}
		if m.pd != pd || !m.covers(st.Addr, st.Length) || st.Access&^mwAccess != 0 {
			return fmt.Errorf("%d bytes at %#x with access %#x are not in region %d", st.Length, st.Addr, st.Access, st.MR-1)
		}
	}
	if st.QP != 0 {
		if q, err = t.s.qps.get(st.QP - 1); err != nil {
			return fmt.Errorf("queue pair %d: %w", st.QP-1, err)
		}
	}
	if (q != nil) != (m != nil && st.Type == abi.MWType2) {
		return fmt.Errorf("a window of type %d is bound by queue pair %d", st.Type, st.QP)
	}
	if err := t.key(st.Key, w); err != nil {
		return err
	}
	if err := t.s.mws.put(st.Handle, w); err != nil {
		delete(t.s.nic.keys, st.Key>>8)
		return err
	}
	pd.refs++
	if m != nil {
		w.bindTo(m, q, st.Addr, st.Length, st.Access)
	}
	return nil
}

// ring checks the place of a ring for elements of at least least bytes, and returns it.
func (t *thawing) ring(st *RingState, least uint32) (r ring, err error) {
	a := t.s.Arena
	slots := uint64(st.Mask) + 1
	if st.Offset%pageSize != 0 || st.Size%pageSize != 0 || st.Offset < protocol.SharedSize || st.Offset > a.end() ||
		uint64(st.Size) > a.end()-st.Offset || bits.OnesCount64(slots) != 1 || slots < 2 || st.Log2 < 3 || st.Log2 > 16 || 1<<st.Log2 < least ||
		uint64(abi.QueueData)+slots<<st.Log2 > uint64(st.Size) {
		return r, fmt.Errorf("a ring of %d slots, of 2^%d bytes, in %d bytes at %#x", slots, st.Log2, st.Size, st.Offset)
	}
	m := MMap{Offset: st.Offset, Size: st.Size}
	mem := a.mem[m.Offset : m.Offset+uint64(m.Size) : m.Offset+uint64(m.Size)]
	t.rings = append(t.rings, m)
	return ring{arena: a, at: m, mem: mem, data: mem[abi.QueueData:], mask: st.Mask, log2: st.Log2}, nil
}

func (t *thawing) cqs() error {
	for i := range t.st.CQs {
		if err := t.cq(&t.st.CQs[i]); err != nil {
			return fmt.Errorf("completion queue: %w", err)
		}
	}
	return nil
}

func (t *thawing) cq(st *CQState) error {
	c := &CQ{
		session: t.s, serial: st.Serial, userHandle: st.UserHandle, cqe: st.Ring.Mask, prod: st.Prod, seen: st.Seen,
		overrun: st.Overrun, events: st.Events, async: st.Async,
	}
	if st.Prod-st.Seen > st.Ring.Mask {
		return fmt.Errorf("%d completions in a ring of %d", st.Prod-st.Seen, st.Ring.Mask)
	}
	var err error
	if c.ring, err = t.ring(&st.Ring, cqeSize); err != nil {
		return err
	}
	if st.Channel != 0 {
		if c.channel, err = t.s.channels.get(st.Channel - 1); err != nil {
			return fmt.Errorf("completion channel %d: %w", st.Channel-1, err)
		}
	}
	if err := t.s.cqs.put(st.Handle, c); err != nil {
		return err
	}
	if c.channel != nil {
		c.channel.cqs++
	}
	c.arm.resume(t.s.Arena, st.Handle, st.Arm)
	c.arm.wokenAt, c.arm.urgentAt = mark{st.Woken, st.HasWoken}, mark{st.Urgent, st.HasUrgent}
	return nil
}

func (t *thawing) srqs() error {
	for i := range t.st.SRQs {
		st := &t.st.SRQs[i]
		pd, err := t.pd(st.PD)
		if err != nil {
			return fmt.Errorf("shared receive queue: %w", err)
		}
		q := &SRQ{
			session: t.s, pd: pd, userHandle: st.UserHandle, num: st.Num, maxSGE: st.MaxSGE, maxWR: st.Ring.Mask, limit: st.Limit, events: st.Events,
		}
		if q.ring, err = t.workRing(&st.Ring, abi.RecvWQESize, st.MaxSGE); err == nil {
			err = t.s.srqs.put(st.Handle, q)
		}
		if err != nil {
			return fmt.Errorf("shared receive queue: %w", err)
		}
		pd.refs++
	}
	return nil
}

// workRing is ring for work requests with lists of so many entries.
func (t *thawing) workRing(st *RingState, fixed, sge uint32) (w workRing, err error) {
	if sge > transport.MaxSGE {
		return w, fmt.Errorf("lists of %d entries", sge)
	}
	w.cons = st.Consumed
	w.ring, err = t.ring(st, fixed+sge*abi.SGESize)
	return w, err
}

func (t *thawing) ahs() error {
	for i := range t.st.AHs {
		st := &t.st.AHs[i]
		pd, err := t.pd(st.PD)
		if err == nil {
			err = t.s.ahs.put(st.Handle, &AH{pd: pd, attr: st.Attr, sgid: st.SGID})
		}
		if err != nil {
			return fmt.Errorf("address handle: %w", err)
		}
		pd.refs++
	}
	return nil
}

func (t *thawing) qps() error {
	for i := range t.st.QPs {
		if err := t.qp(&t.st.QPs[i]); err != nil {
			return fmt.Errorf("queue pair: %w", err)
		}
	}
	return nil
}

func (t *thawing) qp(st *QPState) error {
	s := t.s
	tr, err := transport.Thaw(&st.Transport, t.now)
	if err != nil {
		return err
	}
	conf := tr.Config()
	q := &QP{
		nic: s.nic, session: s, handle: st.Handle, userHandle: st.UserHandle, num: conf.Num, typ: conf.Type, cap: st.Cap, sigAll: st.SigAll,
		attr: st.Attr, tr: tr, events: st.Events, lastSL: st.LastSL, rang: st.Rang, denied: st.Denied,
		contact: ib.Contact{Type: st.Contact.Type, By: st.Contact.By, ID: st.Contact.ID},
	}
	if st.Judged {
		q.judged = s.nic.rules.number
	}
	if st.Revoked {
		q.revoked = s.nic.rules.number
	}
	if q.pd, err = t.pd(st.PD); err != nil {
		return err
	}
	if q.sendCQ, err = s.cqs.get(st.SendCQ); err != nil {
		return fmt.Errorf("completion queue %d: %w", st.SendCQ, err)
	}
	if q.recvCQ, err = s.cqs.get(st.RecvCQ); err != nil {
		return fmt.Errorf("completion queue %d: %w", st.RecvCQ, err)
	}
	if st.SRQ != 0 {
		if q.srq, err = s.srqs.get(st.SRQ - 1); err != nil {
			return fmt.Errorf("shared receive queue %d: %w", st.SRQ-1, err)
		}
	}
	if err := t.qpRings(q, st); err != nil {
		return err
	}
	if conf.SRQ != (q.srq != nil) {
		return fmt.Errorf("a shared receive queue is used: %v and %v", conf.SRQ, q.srq != nil)
	}
	if q.groups, err = t.groups(q, st.Groups); err != nil {
		return err
	}
	if _, taken := s.nic.qps[q.num]; taken || q.num > ib.QPNMask {
		return fmt.Errorf("the number %#x is taken or invalid", q.num)
	}
	if err := s.qps.put(st.Handle, q); err != nil {
		return err
	}
	s.nic.qps[q.num] = q
	q.pd.refs++
	q.sendCQ.refs++
	q.recvCQ.refs++
	if q.srq != nil {
		q.srq.refs++
	}
	if st.Aside != (AsideState{}) {
		q.thawed = &aside{until: st.Aside.Until.Thaw(t.now), lasts: st.Aside.Lasts}
	}
	return nil
}

// qpRings restores the two queues.
func (t *thawing) qpRings(q *QP, st *QPState) (err error) {
	if q.sq, err = t.workRing(&st.SQ, abi.SendWQESize, st.Cap.SendSGE); err != nil {
		return err
	}
	if tail := q.tr.Snapshot().SendTail; tail != q.sq.cons {
		return fmt.Errorf("the send queue is at %d, its requester at %d", q.sq.cons, tail)
	}
	if q.srq == nil {
		q.rq, err = t.workRing(&st.RQ, abi.RecvWQESize, st.Cap.RecvSGE)
	} else if st.RQ.Size != 0 {
		err = fmt.Errorf("two receive queues")
	}
	return err
}

// groups checks the groups of a queue pair. It joins them when it is adopted.
func (t *thawing) groups(q *QP, list []ib.GID) ([]ib.GID, error) {
	for i, g := range list {
		if q.typ != ib.UD || !g.IsMulticast() || slices.Contains(list[:i], g) {
			return nil, fmt.Errorf("the group %v", g.Addr())
		}
	}
	return slices.Clone(list), nil
}

// next restores the handles that come next.
func (t *thawing) next() error {
	n, s := &t.st.Next, t.s
	for _, c := range []struct {
		next  uint32
		space uint32
		to    *uint32
	}{
		{n.PD, s.pds.space, &s.pds.next}, {n.MR, s.mrs.space, &s.mrs.next}, {n.MW, s.mws.space, &s.mws.next}, {n.CQ, s.cqs.space, &s.cqs.next},
		{n.SRQ, s.srqs.space, &s.srqs.next}, {n.QP, s.qps.space, &s.qps.next}, {n.AH, s.ahs.space, &s.ahs.next},
		{n.Channel, s.channels.space, &s.channels.next},
	} {
		if c.next >= c.space {
			return fmt.Errorf("the next handle is %d of %d", c.next, c.space)
		}
		*c.to = c.next
	}
	return nil
}

// arena makes the arena's free space what the rings leave.
func (t *thawing) arena() error {
	a := t.s.Arena
	var lag uint64
	for _, m := range t.st.Arena.Released {
		if m.Size == 0 || m.Offset%pageSize != 0 || m.Size%pageSize != 0 || m.Offset < protocol.SharedSize || m.Offset > a.end() || uint64(m.Size) > a.end()-m.Offset {
			return fmt.Errorf("a released ring of %d bytes at %#x", m.Size, m.Offset)
		}
		lag += uint64(m.Size)
	}
	all := slices.Concat(t.rings, t.st.Arena.Released)
	slices.SortFunc(all, func(a, b MMap) int { return cmp.Compare(a.Offset, b.Offset) })
	at, end, used := uint64(protocol.SharedSize), a.end(), uint64(0)
	var free []arenaRange
	for _, m := range all {
		if m.Offset < at || m.Offset+uint64(m.Size) > end {
			return fmt.Errorf("two rings at %#x, or one behind the end", m.Offset)
		}
		if m.Offset > at {
			free = append(free, arenaRange{at, m.Offset - at})
		}
		at = m.Offset + uint64(m.Size)
		used += uint64(m.Size)
	}
	if at < end {
		free = append(free, arenaRange{at, end - at})
	}
	if err := a.account.Charge(budget.Bill{budget.Rings: used}); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free, a.used, a.lag, a.released, a.reclaimed = free, used, lag, slices.Clone(t.st.Arena.Released), nil
	return nil
}

// AdoptQPs completes a session that ThawSession has made, for the loop that serves it now: queue pairs get their owners and
// join their groups. After an error the session has to be closed. It runs on the loop.
func (s *Session) AdoptQPs() error {
	for _, q := range s.qps.sorted() {
		if q.owner != nil {
			continue
		}
		q.owner, q.loop = s.owner.Adopt(q), s.loop
		q.env = transport.NewEnv((*qpNIC)(q), q.owner, q.loop.Scratch())
		if q.thawed != nil {
			q.loop.foreign.asides.mark(q, *q.thawed)
			q.thawed = nil
		}
		q.review(s.owner.Now())
		q.publish()
		q.watch()
		if s.nic.rules.guard != nil {
			s.nic.rules.old = append(s.nic.rules.old, q) // its rules may have changed
		}
		groups := q.groups
		q.groups = nil
		for _, g := range groups {
			if err := q.join(g); err != nil {
				return fmt.Errorf("join the group %v: %w", g.Addr(), err)
			}
		}
	}
	for _, q := range s.channels.sorted() {
		if len(q.waiting) > 0 {
			s.trouble.stall(q)
		}
	}
	if s.async != nil && len(s.async.waiting) > 0 {
		s.trouble.stall(s.async)
	}
	return nil
}

// Thaw makes the NIC, which has no sessions, continue with the counters and the face of one whose state is st. It runs
// on the loop.
func (n *NIC) Thaw(st *NICState) error {
	f := Face{MTU: st.Face.MTU, Rows: slices.Clone(st.Face.Rows)}
	if f.MTU < 1 || f.MTU > LargestMTU || len(st.Face.NetDevs) != len(st.Face.GIDs) ||
		f.Rows != nil && (len(f.Rows) != len(st.Face.GIDs) || !slices.IsSorted(f.Rows) || len(f.Rows) > 0 && (f.Rows[0] < 0 || f.Rows[len(f.Rows)-1] >= mostRows)) {
		return fmt.Errorf("restore the NIC %s: MTU %d, %d addresses at %d interfaces, rows %v", n.Name, f.MTU, len(st.Face.GIDs), len(st.Face.NetDevs), f.Rows)
	}
	for i, g := range st.Face.GIDs {
		f.GIDs = append(f.GIDs, GIDEntry{g, st.Face.NetDevs[i]})
	}
	n.GIDs, n.MTU = f.GIDs, f.MTU
	n.face.Store(&f)
	n.serial, n.retired.Counters = st.Serial, st.Retired
	n.tally.connected, n.tally.loop, n.tally.waits.Sum = st.Connected, st.Loop, st.Waited
	// A format with more kinds, or fewer, has lists of another length.
	copy(n.tally.drops[:], st.Drops)
	copy(n.tally.waits.Delays[:], st.Delays)
	copy(n.rules.count[:], st.Refusals)
	return nil
}

// mostRows is the number of rows that a GID table can have: a program names a row with 8 bits.
const mostRows = 256

// Thaw restores what Freeze has returned, on a loop whose clock shows now. It runs on the loop.
func (l *Loop) Thaw(st *LoopState, now ib.Time) {
	for _, a := range st.Asides {
		*l.foreign.asides.newUser(a.User, now) = aside{until: a.Until.Thaw(now), lasts: a.Lasts}
	}
}
