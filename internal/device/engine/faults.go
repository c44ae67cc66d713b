package engine

import (
	stdheap "container/heap"
	"slices"
	"time"

	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// faults makes packets fail on purpose, as the plans of NICs and programs want (package fault). Engine.faults is nil
// while there is no plan, and the loop tests nothing but that pointer.
//
//	task.Send ──▶ sends ─┬─ the sender's plans: passes ──▶ local link or network
//	                     ├─ late ──▶ held ── run, when it is due ──▶ Send
//	                     └─ lost, or an action on the queue pair ──▶ todo ── run
//	task.deliver ──▶ receives ── the receiver's plans, in the same way
//
// A burst is divided only where a rule hits one of its packets. On one host it never becomes packets.
type faults struct {
	e      *loop
	plans  map[*fault.Plan]*subject
	tasks  map[*task]*faulted
	pass   *transport.Burst // goes through: the plans have decided about it
	at     *transport.Burst // the burst that the plans decide about
	held   heldBursts
	serial uint64
	todo   []fatality
}

// A subject is what a plan belongs to: a NIC, or a process that uses it.
type subject struct {
	nic      *nic.NIC
	process  bool
	sessions []*nic.Session // of the process
}

// happen does what a plan wants of the device.
func (of *subject) happen(what fault.Event, e *loop) {
	switch {
	case what.Action == fault.Suspend && what.Over:
		e.loops.proceed(of.nic)
	case what.Action == fault.Suspend:
		e.loops.suspend(of.nic) // fails if another rule has suspended it
	case !of.process:
		of.nic.Happen(nil, what)
		if e.opts.Faced != nil {
			e.opts.Faced(of.nic)
		}
	default:
		for _, s := range of.sessions {
			of.nic.Happen(s, what)
		}
	}
}

// faulted is what the plans know of a queue pair.
type faulted struct {
	out, in map[*fault.Plan]*fault.Flow
	after   [2]*heldBurst // the packet that waits to be overtaken: out, in
	refuses bool          // it answered the last request with an RNR NAK on purpose
	deaf    bool          // an action waits in todo: what it sends meanwhile is lost
	queued  int           // bursts that wait because of a rate
	until   ib.Time       // when the last of them is due
	waits   bool          // it has no turns until fewer bytes wait
}

// A fatality is an action on a queue pair, or an event of a device. It waits until no call of a queue pair is in
// progress.
type fatality struct {
	t      *task
	of     *subject // of an event; nil: it is an action on t
	action fault.Action
}

// A heldBurst is a burst that arrives later.
type heldBurst struct {
	due    ib.Time
	serial uint64 // bursts that are due at the same time keep their order
	index  int
	t      *task
	out    bool
	paced  bool // a rate holds it: nothing is late
	b      transport.Burst
	in     *memory.Buffer
	data   []byte
	span   memory.Span
}

// heldBursts are ordered by time.
type heldBursts []*heldBurst

func (h heldBursts) Len() int { return len(h) }
func (h heldBursts) Less(i, j int) bool {
	return h[i].due < h[j].due || h[i].due == h[j].due && h[i].serial < h[j].serial
}
func (h heldBursts) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *heldBursts) Push(x any) {
	b := x.(*heldBurst)
	b.index = len(*h)
	*h = append(*h, b)
}
func (h *heldBursts) Pop() any {
	last := len(*h) - 1
	b := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	b.index = -1
	return b
}

const (
	// mostHeld is how many bursts may be late at a time; others are lost, as in a full buffer of a switch.
	mostHeld = 4096
	// pacedMost is how long the last byte of a queue pair may have to wait for a rate before the queue pair has no more
	// turns, and pacedFew when it has turns again. The loop may wake up some milliseconds late: the link must not be
	// idle meanwhile.
	pacedMost = ib.Time(10_000_000)
	pacedFew  = ib.Time(5_000_000)
)

// SetFaults replaces the plans of a NIC's declared Faults. It runs on the loop.
func (e *Engine) SetFaults(n *nic.NIC, plans []*fault.Plan) {
	e.loops.gatherNIC(n)
	old := n.Faults()
	n.SetFaults(plans)
	f := e.first.openFaults()
	keep := make(map[*fault.Plan]bool, len(plans))
	for _, p := range plans {
		keep[p] = true
		if _, known := f.plans[p]; !known {
			f.add(p, &subject{nic: n})
		}
	}
	for _, p := range old {
		if !keep[p] {
			f.remove(p)
		}
	}
	f.close()
}

// AddFaults makes the plan of a process that uses a NIC. It runs on the loop.
func (e *Engine) AddFaults(n *nic.NIC, rules []fault.Named) *fault.Plan {
	p := fault.New(rules, time.Duration(e.first.clock.now))
	e.first.openFaults().add(p, &subject{nic: n, process: true})
	return p
}

// JoinFaults adds a session to the process of a plan. It runs on the loop.
func (e *Engine) JoinFaults(s *nic.Session, p *fault.Plan) {
	if of := e.first.openFaults().plans[p]; of != nil {
		of.sessions = append(of.sessions, s)
		if c := clientOf(s); c != nil && c.e != e.first {
			e.loops.bring(c) // now, because it is new
		}
		s.SetFaults(p)
	}
}

// RemoveFaults ends the plan of a process. It runs on the loop.
func (e *Engine) RemoveFaults(p *fault.Plan) {
	if f := e.first.faults; f != nil {
		f.remove(p)
		f.close()
	}
}

// leave removes a session that is being closed.
func (f *faults) leave(s *nic.Session) {
	for _, of := range f.plans {
		of.sessions = slices.DeleteFunc(of.sessions, func(o *nic.Session) bool { return o == s })
	}
}

// FaultHits returns how often each action has hit since the engine was made, but for rates. It runs on the loop.
func (e *Engine) FaultHits() [fault.NumActions]uint64 { return e.first.hits }

func (e *loop) openFaults() *faults {
	if e.faults == nil {
		e.faults = &faults{e: e, plans: make(map[*fault.Plan]*subject), tasks: make(map[*task]*faulted)}
	}
	return e.faults
}

// close ends faults if nothing is left of them.
func (f *faults) close() {
	if len(f.plans) == 0 && len(f.held) == 0 && len(f.todo) == 0 && f.e.shared.CompletionsDue() == 0 {
		f.e.faults = nil
	}
}

func (f *faults) add(p *fault.Plan, of *subject) {
	f.plans[p] = of
	p.Report = func(h fault.Hit) { f.hit(of, h) }
}

// remove ends a plan, and what it has done to the device.
func (f *faults) remove(p *fault.Plan) {
	of, known := f.plans[p]
	if !known {
		return
	}
	delete(f.plans, p)
	for _, what := range p.End() {
		of.happen(what, f.e)
	}
	for _, s := range f.tasks {
		delete(s.out, p)
		delete(s.in, p)
	}
}

// hit counts and reports a hit.
func (f *faults) hit(of *subject, h fault.Hit) {
	f.e.hits[h.Action]++
	if tap := f.e.net.tap; tap != nil && f.at != nil {
		tap.Note(f.at.SGID.Addr(), f.at.DGID.Addr(), h.String())
	}
	if report := f.e.opts.Fault; report != nil {
		report(of.nic, h)
	}
}

// of returns what the plans know of t.
func (f *faults) of(t *task) *faulted {
	s := f.tasks[t]
	if s == nil {
		s = &faulted{out: make(map[*fault.Plan]*fault.Flow), in: make(map[*fault.Plan]*fault.Flow)}
		f.tasks[t] = s
	}
	return s
}

// forget drops what is known of a queue pair that is gone.
func (f *faults) forget(t *task) { delete(f.tasks, t) }

// sends decides about a burst that t sends. It returns true if it has taken b.
func (f *faults) sends(t *task, b *transport.Burst) bool {
	if f.pass == b {
		f.pass = nil
		return false
	}
	return f.decide(t, b, true)
}

// receives decides about a burst that arrives at t. It returns true if it has taken b.
func (f *faults) receives(t *task, b *transport.Burst) bool {
	if f.pass == b {
		f.pass = nil
		return false
	}
	if b.Damaged {
		t.adapter.part.Drop(nic.DropICRC, b.Packets)
		return true
	}
	return f.decide(t, b, false)
}

// decide divides a burst where rules hit its packets, and passes on what they leave. It returns false if they leave
// all of b.
func (f *faults) decide(t *task, b *transport.Burst, out bool) bool {
	s := t.q.Session()
	if s.Down() {
		return true
	}
	plans := s.Faults()
	if len(plans) == 0 {
		return false
	}
	known := f.of(t)
	if known.deaf && out && b.Kind < transport.KindReadResp {
		return true
	}
	if !out && b.Kind < transport.KindReadResp {
		known.refuses = false
	}
	x := packetOf(t, b, out)
	divisible := b.Packets > 1
	last := b.Packets
	if !divisible {
		last = 1
	}
	begin, taken := uint32(0), false
	for i := uint32(0); i < last; i++ {
		x.First, x.PSN = b.First && i == 0, ib.PSNAdd(b.PSN, i)
		v := f.verdict(t, known, plans, b, &x)
		if v == (fault.Verdict{}) && known.after[side(out)] == nil {
			continue
		}
		taken = true
		f.forward(t, b, begin, i-begin, out, false)
		begin = i + 1
		if end := f.apply(t, known, b, i, out, v); end {
			return true
		}
	}
	if !taken {
		return false
	}
	f.forward(t, b, begin, last-begin, out, false)
	return true
}

func side(out bool) int {
	if out {
		return 0
	}
	return 1
}

// verdict asks all plans about a packet.
func (f *faults) verdict(t *task, known *faulted, plans []*fault.Plan, b *transport.Burst, x *fault.Packet) (v fault.Verdict) {
	flows := known.in
	if x.Out {
		flows = known.out
	}
	f.at = b
	for _, p := range plans {
		flow := flows[p]
		if flow == nil {
			flow = p.NewFlow()
			flows[p] = flow
		}
		w := p.Decide(time.Duration(f.e.clock.now), flow, x)
		v.Delay, v.Reorder = max(v.Delay, w.Delay), max(v.Reorder, w.Reorder)
		v.Limited, v.Duplicate = v.Limited || w.Limited, v.Duplicate || w.Duplicate
		if w.Event != fault.None {
			if of := f.plans[p]; of != nil { // else its process has ended
				f.todo = append(f.todo, fatality{t: t, of: of, action: w.Event})
			}
			if w.Event != fault.GIDChange {
				v.Action, v.Event = fault.Drop, w.Event // what it began with is lost
			}
		}
		if w.Action != fault.None {
			v.Action = w.Action
			break
		}
	}
	f.at = nil
	return v
}

// apply does what the plans have decided about packet i of b. It returns true if the rest of b is lost, too.
func (f *faults) apply(t *task, known *faulted, b *transport.Burst, i uint32, out bool, v fault.Verdict) (end bool) {
	switch v.Action {
	case fault.Drop:
		f.record(b, i, out)
		known.deaf = known.deaf || v.Event != fault.None // until the event has happened
		return v.Event != fault.None
	case fault.Corrupt:
		if out {
			f.forward(t, b, i, 1, true, true)
		} else {
			t.adapter.part.Drop(nic.DropICRC, 1)
		}
		return false
	case fault.RNR, fault.NakSequence, fault.NakAccess:
		if out {
			f.record(b, i, true)
			f.later(t, known, v.Action)
			return true
		}
		return f.refuse(t, known, b, i, v.Action)
	case fault.RetryExceeded, fault.QPError:
		f.record(b, i, out)
		f.later(t, known, v.Action)
		return true
	}
	switch {
	case v.Reorder > 0 && known.after[side(out)] == nil:
		known.after[side(out)] = f.hold(t, b, i, out, ib.Time(v.Reorder+v.Delay), false)
		return false
	case v.Delay > 0:
		f.hold(t, b, i, out, ib.Time(v.Delay), v.Limited)
		if v.Duplicate {
			f.hold(t, b, i, out, ib.Time(v.Delay), v.Limited)
		}
	default:
		f.forward(t, b, i, 1, out, false)
		if v.Duplicate {
			f.forward(t, b, i, 1, out, false)
		}
	}
	if h := known.after[side(out)]; h != nil {
		known.after[side(out)] = nil
		if h.index >= 0 {
			stdheap.Remove(&f.held, h.index)
			f.release(h)
		}
	}
	return false
}

// forward passes n packets of b on, from packet at.
func (f *faults) forward(t *task, b *transport.Burst, at, n uint32, out, damaged bool) {
	if n == 0 || t.q.Gone() {
		return
	}
	p := b
	if n != b.Packets || damaged {
		p = &transport.Burst{Data: new(memory.Span)}
		b.Part(at, n, p)
		p.Damaged = damaged
	}
	f.through(t, p, out)
}

// through passes a burst on.
func (f *faults) through(t *task, b *transport.Burst, out bool) {
	f.pass = b
	if out {
		t.Send(b)
	} else {
		t.deliver(b)
	}
	f.pass = nil
}

// record adds a lost packet to a capture: the sender has sent it.
func (f *faults) record(b *transport.Burst, i uint32, out bool) {
	tap := f.e.net.tap
	if tap == nil || !out {
		return
	}
	p := &transport.Burst{Data: new(memory.Span)}
	b.Part(i, 1, p)
	tap.Burst(p)
}

// refuse makes the responder t answer packet i of b with a NAK. It returns true if it did: the rest of b is then out
// of sequence.
func (f *faults) refuse(t *task, known *faulted, b *transport.Burst, i uint32, a fault.Action) bool {
	p := &transport.Burst{Data: new(memory.Span)}
	b.Part(i, 1, p)
	if !t.q.Transport().RefuseRequest(f.e.clock.now, p, refusals[a], t.q.Env()) {
		f.through(t, p, false)
		return false
	}
	known.refuses = a == fault.RNR
	t.received(p)
	return true
}

var refusals = map[fault.Action]transport.Refusal{
	fault.RNR: transport.RefuseRNR, fault.NakSequence: transport.RefuseSequence, fault.NakAccess: transport.RefuseAccess,
}

// refusing reports whether t answers requests with RNR NAKs although it has receives.
func (f *faults) refusing(t *task) bool {
	s := f.tasks[t]
	return s != nil && s.refuses
}

// later queues an action on t.
func (f *faults) later(t *task, known *faulted, a fault.Action) {
	known.deaf = true
	f.todo = append(f.todo, fatality{t: t, action: a})
}

// hold keeps packet i of b for d. It returns nil if too many are kept: the packet is lost.
func (f *faults) hold(t *task, b *transport.Burst, i uint32, out bool, d ib.Time, paced bool) *heldBurst {
	if len(f.held) >= mostHeld {
		t.adapter.part.Drop(nic.DropBuffer, 1)
		return nil
	}
	f.serial++
	h := &heldBurst{due: f.e.clock.now + d, serial: f.serial, t: t, out: out, paced: paced}
	p := &transport.Burst{Data: new(memory.Span)}
	b.Part(i, 1, p)
	h.b = *p
	if h.b.Data != nil && h.b.Data.Len() > 0 {
		h.in, h.data = buffered(f.e.shared, h.b.Data)
	}
	h.b.Data, h.b.CE = nil, false
	stdheap.Push(&f.held, h)
	if known := f.of(t); paced && out {
		known.queued++
		if known.until = h.due; d > pacedMost {
			known.waits = true
			f.e.shared.Scratch().Held = true
		}
	}
	return h
}

// holds reports whether t has no turn because a rate holds back what it has sent.
func (f *faults) holds(t *task) bool {
	s := f.tasks[t]
	return s != nil && s.waits
}

// release passes on a burst that was held.
func (f *faults) release(h *heldBurst) {
	t := h.t
	known := f.tasks[t]
	if known == nil { // the queue pair is gone
		h.drop()
		return
	}
	if h.paced && h.out {
		if known.queued--; known.waits && (known.queued == 0 || known.until-f.e.clock.now < pacedFew) {
			known.waits = false
			t.schedule()
		}
	}
	if !t.q.Gone() && !t.q.Session().Down() {
		if len(h.data) > 0 {
			h.span.AddBuffer(h.in, h.data)
			h.b.Data = &h.span
		}
		if h.paced && h.out {
			t.q.Transport().Excuse(f.e.clock.now) // a slow link is no silent peer
		}
		f.through(t, &h.b, h.out)
	}
	h.drop()
	for i := range known.after {
		if known.after[i] == h {
			known.after[i] = nil
		}
	}
}

// drop releases the memory of a burst.
func (h *heldBurst) drop() {
	if h.in != nil {
		h.in.Drop()
	}
}

// faultsPerPass bounds the bursts that one pass releases.
const faultsPerPass = 256

// due is when run has something to do; 0: never.
func (f *faults) due() (at ib.Time) {
	if len(f.todo) > 0 {
		return f.e.clock.now
	}
	if len(f.held) > 0 {
		at = f.held[0].due
	}
	for p := range f.plans {
		at = sooner(at, ib.Time(p.Next()))
	}
	return sooner(at, f.e.shared.CompletionsDue())
}

// run does what is due. No call of a queue pair is in progress.
func (f *faults) run() bool {
	e, now := f.e, f.e.clock.now
	if due := f.due(); due == 0 || due > now {
		return false
	}
	for p, of := range f.plans {
		for _, happens := range p.Due(time.Duration(now)) {
			e.onFirst(func() { of.happen(happens, e) })
		}
	}
	for range min(faultsPerPass, len(f.held)) {
		if f.held[0].due > now {
			break
		}
		h := stdheap.Pop(&f.held).(*heldBurst)
		e.clock.worksFor(h.t.adapter)
		f.release(h)
		e.local.deliverReplies()
	}
	todo := f.todo
	f.todo = nil
	for _, d := range todo {
		if known := f.tasks[d.t]; known != nil {
			known.deaf = false
		}
		if d.of != nil {
			e.onFirst(func() { d.of.happen(fault.Event{Action: d.action}, e) })
			continue
		}
		if !d.t.q.Gone() {
			e.clock.worksFor(d.t.adapter)
			f.act(d)
			e.local.deliverReplies()
		}
	}
	e.shared.ReleaseCompletions(now)
	f.close()
	return true
}

// act does an action on a queue pair.
func (f *faults) act(d fatality) {
	t, m := d.t, d.t.q.Transport()
	switch d.action {
	case fault.QPError:
		t.q.Fail()
	case fault.RetryExceeded:
		t.q.ExceedRetries()
	default:
		m.ReceiveNak(f.e.clock.now, refusals[d.action], t.q.Env())
		t.changed()
		if m.RunPending() {
			t.schedule()
		}
	}
}

// packetOf describes the packets of a burst.
func packetOf(t *task, b *transport.Burst, out bool) fault.Packet {
	s := t.q.Session()
	x := fault.Packet{Op: opOf(b.Kind), Out: out, RC: b.Type == ib.RC, QP: t.q.Num(), Pid: s.Pid, Device: s.NIC().Name, Size: wire.BTHSize + wire.ICRCSize}
	if b.Packets > 0 && b.Data != nil {
		x.Size += min(b.Data.Len(), int(b.MTU))
	}
	if peer := &b.DGID; out {
		x.Peer = peer.Addr()
	} else {
		x.Peer = b.SGID.Addr()
	}
	return x
}

// opOf is the operation of a burst.
func opOf(k transport.Kind) fault.Ops {
	switch k {
	case transport.KindSend, transport.KindSendImm, transport.KindSendInv:
		return fault.Send
	case transport.KindWrite, transport.KindWriteImm, transport.KindAtomicWrite:
		return fault.Write
	case transport.KindReadReq:
		return fault.Read
	case transport.KindCmpSwap, transport.KindFetchAdd:
		return fault.Atomic
	case transport.KindFlush:
		return fault.Flush
	case transport.KindReadResp:
		return fault.ReadResponse
	}
	return fault.Ack
}
