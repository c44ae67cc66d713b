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
	senders []*task
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
	// spareInboxes is how many are kept for the next queue pair, unless they hold much.
	spareInboxes    = 16
	spareInboxBytes = 64 << 10
)

// inboxes are those of parked queue pairs.
type inboxes struct {
	of    map[*task]*inbox
	spare []*inbox
}

// park keeps b, which t has not taken, and what comes after it.
func (e *Engine) park(t *task, b *transport.Burst) {
	l := &e.local.inboxes
	in := l.of[t]
	if in == nil {
		if n := len(l.spare); n > 0 {
			in = l.spare[n-1]
			l.spare = l.spare[:n-1]
		} else {
			in = &inbox{}
		}
		if l.of == nil {
			l.of = make(map[*task]*inbox)
		}
		l.of[t] = in
		t.parked = true
	}
	e.shared.Scratch().Held = true
	size := 0
	if b.Data != nil {
		size = b.Data.Len()
	}
	if in.kept.n >= inboxBursts || in.bytes+size > inboxBytes || !t.q.Keep(size) {
		t.card.nic.Drop(nic.DropBuffer, b.Packets)
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
func (e *Engine) offer(t *task) {
	in := e.local.inboxes.of[t]
	for in.kept.n > 0 && !t.q.Gone() {
		k := in.kept.first()
		in.span.Reset()
		in.span.Add(k.data)
		k.b.Data = &in.span
		if !t.receive(&k.b) {
			return
		}
		e.received(t, &k.b)
		in.drop(t)
	}
	e.unpark(t)
}

// drop forgets the first burst in the inbox of t.
func (in *inbox) drop(t *task) {
	k := in.kept.pop()
	in.bytes -= len(k.data)
	t.q.Unkeep(len(k.data))
	k.b.Data = nil
}

// unpark ends it: what is still there is lost, and senders go on.
func (e *Engine) unpark(t *task) {
	l := &e.local.inboxes
	in := l.of[t]
	if in == nil {
		return
	}
	delete(l.of, t)
	t.parked = false
	for in.kept.n > 0 {
		in.drop(t)
	}
	in.span.Reset()
	for i, s := range in.senders {
		in.senders[i] = nil
		if s.waits = false; !s.q.Gone() {
			e.schedule(s)
		}
	}
	in.senders = in.senders[:0]
	size := 0
	for i := range in.kept.buf {
		size += cap(in.kept.buf[i].data)
	}
	if len(l.spare) < spareInboxes && size <= spareInboxBytes {
		l.spare = append(l.spare, in)
	}
}

// awaits has t, which sends to a parked queue pair, scheduled when that is parked no more.
func (e *Engine) awaits(t, peer *task) {
	if !t.waits {
		t.waits = true
		in := e.local.inboxes.of[peer]
		in.senders = append(in.senders, t)
	}
}

// parkedPeer is the queue pair of this host that t is connected to, if it is parked.
func (t *task) parkedPeer() *task {
	if p := t.peer; p != nil && p.parked {
		return p
	}
	return nil
}

// excused reports whether t has no right to an answer yet: foreign memory, its own or that
// of its peer on this host, takes its time, which has a limit of its own. As long as t fetches
// what it sends it may have sent nothing that asks for an answer, and of what it sends again
// nothing at all: a retry must not be spent on that.
func (t *task) excused() bool {
	if t.parked || t.q.Fetching() {
		return true
	}
	p := t.peer
	return p != nil && (p.parked || p.q.Delayed() || p.throttled())
}

// asks bounds how many queue pairs are asked again, or given up, in one pass.
const asks = 64

// askAgain has those asked again whose foreign memory has come.
func (e *Engine) askAgain() {
	e.cmds.arrived.Store(false)
	e.shared.CollectForeign()
	for range asks {
		q := e.shared.NextAsk()
		if q == nil {
			return
		}
		e.schedule(taskOf(q)) // its turn begins with its inbox
	}
	e.cmds.arrived.Store(true)
}

// giveUp fails queue pairs whose foreign memory has taken too long, a few in a pass.
func (e *Engine) giveUp() {
	for range asks { // the others in the next pass: they stay due
		q := e.shared.ExpireForeign(e.now)
		if q == nil {
			return
		}
		e.sayStuck(q)
		e.schedule(taskOf(q)) // its turn begins with its inbox
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
	if e.local.stuck.said != 0 && e.now-e.local.stuck.said < stuckSay {
		e.local.stuck.more++
		return
	}
	s := q.Session()
	e.opts.Log.Warn("a queue pair fails: memory that its program has registered does not come; the program, or a file system, has to provide it",
		"pid", s.Pid, "program", s.Program, "qp", q.Num(), "waited", time.Duration(s.NIC().Patience()), "others", e.local.stuck.more)
	e.local.stuck = stuck{said: e.now}
}
