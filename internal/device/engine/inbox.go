package engine

import (
	"time"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
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
// An inbox is small. What does not fit is lost, as on a wire. A queue pair of this host that
// sends to a parked one goes on until aheadBytes or aheadBursts wait there, so that the next
// data is at hand when the first has been placed. Then it waits until half of that is taken.
type inbox struct {
	kept    queue[kept]
	bytes   int
	lost    bool // the last burst did not fit
	senders []*task
	span    memory.Span
}

// kept is a burst and its data, which lies in a Buffer that it is a user of.
type kept struct {
	b    transport.Burst
	data []byte
	in   *memory.Buffer // nil: there is no data
}

const (
	// inboxBursts and inboxBytes bound an inbox: two of the longest bursts, or what a
	// socket's buffer would hold of short ones.
	inboxBursts = 256
	inboxBytes  = 1 << 20
	// aheadBursts and aheadBytes are what senders of this host fill of it: the burst that they
	// send then still fits.
	aheadBursts = 32
	aheadBytes  = 512 << 10
	// spareInboxes is how many are kept for the next queue pair.
	spareInboxes = 16
)

// inboxes are those of parked queue pairs.
type inboxes struct {
	of    map[*task]*inbox
	spare []*inbox
}

// park keeps b, which t has not taken, and what comes after it. copied is where the data of b
// was copied to already; nil: nowhere.
func (e *Engine) park(t *task, b *transport.Burst, copied *memory.Buffer) {
	in := e.inboxOf(t)
	size := 0
	if b.Data != nil {
		size = b.Data.Len()
	}
	in.lost = in.kept.n >= inboxBursts || in.bytes+size > inboxBytes || !e.keep(t, in, b, size, copied)
	if in.lost {
		t.card.nic.Drop(nic.DropBuffer, b.Packets)
	}
	if in.full() || t.q.Crowded() {
		e.shared.Scratch().Held = true
	}
}

// inboxOf is the inbox of t, which is parked from now on.
func (e *Engine) inboxOf(t *task) *inbox {
	l := &e.local.inboxes
	if in := l.of[t]; in != nil {
		return in
	}
	var in *inbox
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
	return in
}

// keep puts b, with so many bytes of data, into the inbox of t; false if the user of t has too
// much there.
func (e *Engine) keep(t *task, in *inbox, b *transport.Burst, size int, copied *memory.Buffer) bool {
	var data []byte
	buf := copied
	switch {
	case size == 0:
	case buf != nil:
		buf.Hold()
		data = buf.Bytes()[:size]
	default:
		buf, data = e.buffered(b.Data) // it may fault, in a peer's memory
	}
	k := kept{b: *b, data: data, in: buf}
	k.b.Data, k.b.CE = nil, false // it has been told of congestion
	if !t.q.Keep(k.size()) {
		if buf != nil {
			buf.Drop()
		}
		return false
	}
	in.bytes += size
	*in.kept.push() = k
	return true
}

// size is how much memory k takes.
func (k *kept) size() int {
	if k.in == nil {
		return 0
	}
	return len(k.in.Bytes())
}

// buffered brings data to a Buffer, unless it lies in one, and becomes a user of it.
func (e *Engine) buffered(data *memory.Span) (in *memory.Buffer, mem []byte) {
	n := data.Len()
	// A small part of a large Buffer is copied: the rest can be used again sooner.
	if in = data.Buffer(); in != nil && len(data.Pieces()) == 1 && 2*n >= len(in.Bytes()) {
		in.Hold()
		return in, data.Pieces()[0].Mem
	}
	in = e.shared.Buffers().Get(n)
	mem = in.Bytes()[:n]
	rest := mem
	for _, p := range data.Pieces() {
		rest = rest[copy(rest, p.Mem):]
	}
	return in, mem
}

// full reports whether senders of this host have to wait.
func (in *inbox) full() bool { return in.kept.n >= aheadBursts || in.bytes >= aheadBytes || in.lost }

// half reports whether they may go on.
func (in *inbox) half() bool { return in.kept.n <= aheadBursts/2 && in.bytes <= aheadBytes/2 }

// offer gives a parked queue pair what waits for it, as far as it takes it.
func (e *Engine) offer(t *task) {
	in := e.local.inboxes.of[t]
	for in.kept.n > 0 && !t.q.Gone() {
		k := in.kept.first()
		in.span.Reset()
		in.span.AddBuffer(k.in, k.data)
		k.b.Data = &in.span
		if !t.receive(&k.b) {
			if in.half() {
				e.resume(in)
			}
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
	in.lost = false
	t.q.Unkeep(k.size())
	if k.in != nil {
		k.in.Drop()
	}
	k.b.Data, k.data, k.in = nil, nil, nil
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
	in.lost = false
	in.span.Reset()
	e.resume(in)
	if len(l.spare) < spareInboxes {
		l.spare = append(l.spare, in)
	}
}

// resume lets the senders that wait for the inbox go on.
func (e *Engine) resume(in *inbox) {
	for i, s := range in.senders {
		in.senders[i] = nil
		if s.waits = false; !s.q.Gone() {
			e.schedule(s)
		}
	}
	in.senders = in.senders[:0]
}

// awaits schedules t, which sends to a parked queue pair, when that one's inbox has space again.
func (e *Engine) awaits(t, peer *task) {
	if !t.waits {
		t.waits = true
		in := e.local.inboxes.of[peer]
		in.senders = append(in.senders, t)
	}
}

// fullPeer is the queue pair of this host that t is connected to, if it is parked and its inbox
// is full.
func (e *Engine) fullPeer(t *task) *task {
	if p := t.peer; p != nil && p.parked && (e.local.inboxes.of[p].full() || p.q.Crowded()) {
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
