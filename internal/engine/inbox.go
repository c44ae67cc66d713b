package engine

import (
	"time"

	"vrdma/internal/ib"
	"vrdma/internal/memory"
	"vrdma/internal/nic"
	"vrdma/internal/transport"
)

// A queue pair whose memory is not at hand (foreign memory is fetched beside the loop, see
// nic/foreign.go) does not take what arrives for it. It is parked: the burst waits in its
// inbox, and all that come after it wait behind it, until it has been offered again and
// taken.
//
//	burst ──▶ Receive ── not taken ──▶ inbox ── memory has come ──▶ Receive …
//	                                     ▲
//	later bursts ────────────────────────┘
//
// An inbox has little room. What does not fit is lost, as on a wire. A queue pair of this
// host that sends to a parked one waits until it is parked no more.
type inbox struct {
	kept    queue[kept]
	bytes   int
	senders []*nic.QP
	span    memory.Span
}

// kept is a burst and its data.
type kept struct {
	b    transport.Burst
	data []byte
}

const (
	// inboxBursts and inboxBytes bound an inbox: two of the longest bursts, or what a
	// socket's buffer would hold of short ones.
	inboxBursts = 256
	inboxBytes  = 1 << 20
	// keptCost is what a burst takes beside its data, for its user's account: bursts
	// without data are kept, too.
	keptCost = 512
	// spareInboxes is how many are kept for the next queue pair, unless they hold much.
	spareInboxes    = 16
	spareInboxBytes = 64 << 10
)

// inboxes are those of parked queue pairs.
type inboxes struct {
	of    map[*nic.QP]*inbox
	spare []*inbox
}

// park keeps b, which q has not taken, and what comes after it.
func (e *Engine) park(q *nic.QP, b *transport.Burst) {
	in := e.inboxes.of[q]
	if in == nil {
		if n := len(e.inboxes.spare); n > 0 {
			in = e.inboxes.spare[n-1]
			e.inboxes.spare = e.inboxes.spare[:n-1]
		} else {
			in = &inbox{}
		}
		if e.inboxes.of == nil {
			e.inboxes.of = make(map[*nic.QP]*inbox)
		}
		e.inboxes.of[q] = in
		q.Sched.Parked = true
	}
	q.Scratch().Held = true
	size := 0
	if b.Data != nil {
		size = b.Data.Len()
	}
	if in.kept.n >= inboxBursts || in.bytes+size > inboxBytes || !q.Keep(size+keptCost) {
		return // lost
	}
	in.bytes += size
	k := in.kept.push()
	k.b = *b
	k.b.Data, k.b.CE = nil, false // it has been told of congestion
	k.data = k.data[:0]
	if size > 0 {
		for _, p := range b.Data.Pieces() {
			k.data = append(k.data, p.Mem...)
		}
	}
}

// offer gives a parked queue pair what waits for it, as far as it takes it.
func (e *Engine) offer(q *nic.QP) {
	in := e.inboxes.of[q]
	for in.kept.n > 0 && !q.Gone() {
		k := in.kept.first()
		in.span.Reset()
		in.span.Add(k.data)
		k.b.Data = &in.span
		if !q.Receive(e.now, &k.b) {
			return
		}
		e.received(q, &k.b)
		e.drop(q, in)
	}
	e.unpark(q)
}

// drop forgets the first burst in an inbox.
func (e *Engine) drop(q *nic.QP, in *inbox) {
	k := in.kept.pop()
	in.bytes -= len(k.data)
	q.Unkeep(len(k.data) + keptCost)
	k.b.Data = nil
}

// unpark ends it: what is still there is lost, and senders go on.
func (e *Engine) unpark(q *nic.QP) {
	in := e.inboxes.of[q]
	if in == nil {
		return
	}
	delete(e.inboxes.of, q)
	q.Sched.Parked = false
	for in.kept.n > 0 {
		e.drop(q, in)
	}
	in.span.Reset()
	for i, s := range in.senders {
		in.senders[i] = nil
		if s.Sched.Waits = false; !s.Gone() {
			e.schedule(s)
		}
	}
	in.senders = in.senders[:0]
	size := 0
	for i := range in.kept.buf {
		size += cap(in.kept.buf[i].data)
	}
	if len(e.inboxes.spare) < spareInboxes && size <= spareInboxBytes {
		e.inboxes.spare = append(e.inboxes.spare, in)
	}
}

// awaits has q, which sends to a parked queue pair, scheduled when that is parked no more.
func (e *Engine) awaits(q, peer *nic.QP) {
	if !q.Sched.Waits {
		q.Sched.Waits = true
		in := e.inboxes.of[peer]
		in.senders = append(in.senders, q)
	}
}

// parkedPeer is the queue pair of this host that q is connected to, if it is parked.
func parkedPeer(q *nic.QP) *nic.QP {
	if p := q.Sched.Peer; p != nil && p.Sched.Parked {
		return p
	}
	return nil
}

// excused reports whether q has no right to an answer yet: foreign memory, its own or that
// of its peer on this host, takes its time, which has a limit of its own.
func excused(q *nic.QP) bool {
	if q.Sched.Parked {
		return true
	}
	p := q.Sched.Peer
	return p != nil && (p.Sched.Parked || p.Delayed())
}

// Rouse implements nic.Link.
func (e *Engine) Rouse() {
	e.arrived.Store(true)
	if e.sleeping.Load() {
		e.kick()
	}
}

// asks bounds how many queue pairs are asked again, or given up, in one pass.
const asks = 64

// askAgain has those asked again whose foreign memory has come.
func (e *Engine) askAgain() {
	e.arrived.Store(false)
	e.nic.CollectForeign()
	for range asks {
		q := e.nic.NextAsk()
		if q == nil {
			return
		}
		e.schedule(q) // its turn begins with its inbox
	}
	e.arrived.Store(true)
}

// giveUp fails queue pairs whose foreign memory has taken too long, a few in a pass.
func (e *Engine) giveUp() {
	for range asks {
		q := e.nic.ExpireForeign(e.now)
		if q == nil {
			return
		}
		e.sayStuck(q)
		e.schedule(q) // its turn begins with its inbox
	}
}

// stuckSay is how often the log tells of memory that did not come.
const stuckSay = ib.Time(1_000_000_000)

// stuck is what the log has been told.
type stuck struct {
	said ib.Time
	more int // queue pairs since then
}

// sayStuck tells the log why q fails.
func (e *Engine) sayStuck(q *nic.QP) {
	if e.stuck.said != 0 && e.now-e.stuck.said < stuckSay {
		e.stuck.more++
		return
	}
	s := q.Session()
	e.opts.Log.Warn("a queue pair fails: memory that its program has registered does not come; the program, or a file system, has to provide it",
		"pid", s.Pid, "program", s.Program, "qp", q.Num(), "waited", time.Duration(e.nic.Patience()), "others", e.stuck.more)
	e.stuck = stuck{said: e.now}
}
