package engine

import (
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/device/fifo"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// An inbox holds the bursts for a queue pair that cannot take them yet, because its memory is
// foreign and a thread beside the loop has to reach it (nic/foreign.go). The queue pair is parked:
// the burst waits in the inbox, and all later ones behind it, until the memory has arrived.
//
//	burst ──▶ Receive ── not taken ──▶ inbox ── memory has arrived ──▶ Receive …
//	                                     ▲
//	later bursts ────────────────────────┘
//
// An inbox is small. Bursts that do not fit are lost, as on a wire. A queue pair of this host that
// sends to a parked one continues until aheadBytes or aheadBursts wait there, so that the next
// data is ready when the first has been placed. Then it waits until half of that is taken.
type inbox struct {
	kept    fifo.Queue[kept]
	bytes   int
	lost    bool    // the last burst did not fit
	senders []*task // queue pairs of this host that wait until there is space
	span    memory.Span
}

// kept is a burst with its data, and the Buffer that the data lies in.
type kept struct {
	b    transport.Burst
	data []byte
	in   *memory.Buffer // it holds a reference to it; nil: there is no data
}

const (
	// inboxBursts and inboxBytes bound an inbox: two of the longest bursts, or as many short
	// ones as a socket's buffer would hold.
	inboxBursts = 256
	inboxBytes  = 1 << 20
	// aheadBursts and aheadBytes are what senders of this host may fill of it: the burst that
	// they are sending then still fits.
	aheadBursts = 32
	aheadBytes  = 512 << 10
	// spareInboxes is how many unused ones are kept.
	spareInboxes = 16
)

// inboxes are those of parked queue pairs.
type inboxes struct {
	of    map[*task]*inbox
	spare []*inbox
}

// park keeps b, which t has not taken, and makes later bursts wait behind it. copied is the
// Buffer that the data of b was copied to already; nil: it was not.
func (t *task) park(b *transport.Burst, copied *memory.Buffer) {
	e := t.e
	in := e.local.inboxes.open(t)
	size := 0
	if b.Data != nil {
		size = b.Data.Len()
	}
	in.lost = in.kept.Len() >= inboxBursts || in.bytes+size > inboxBytes || !in.keep(t, b, size, copied)
	if in.lost {
		t.adapter.part.Drop(nic.DropBuffer, b.Packets)
	}
	if in.full() || t.q.Crowded() {
		e.shared.Scratch().Held = true
	}
}

// open returns the inbox of t, which is parked from now on.
func (l *inboxes) open(t *task) *inbox {
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

// keep puts b, with size bytes of data, into the inbox of t. It returns false if the user of t
// has too much in inboxes.
func (in *inbox) keep(t *task, b *transport.Burst, size int, copied *memory.Buffer) bool {
	var data []byte
	buf := copied
	switch {
	case size == 0:
	case buf != nil:
		buf.Hold()
		data = buf.Bytes()[:size]
	default:
		buf, data = buffered(t.e.shared, b.Data) // it may fault, in a peer's memory
	}
	k := kept{b: *b, data: data, in: buf}
	k.b.Data, k.b.CE = nil, false // the mark was reported already
	if !t.q.Keep(k.size()) {
		if buf != nil {
			buf.Drop()
		}
		return false
	}
	in.bytes += size
	*in.kept.Push() = k
	return true
}

// size is how much memory k takes.
func (k *kept) size() int {
	if k.in == nil {
		return 0
	}
	return len(k.in.Bytes())
}

// buffered returns data in a Buffer, with a reference to it. It copies data that does not lie in
// one already.
func buffered(shared *nic.Loop, data *memory.Span) (in *memory.Buffer, mem []byte) {
	n := data.Len()
	// A small part of a large Buffer is copied, so that the rest can be reused sooner.
	if in = data.Buffer(); in != nil && len(data.Pieces()) == 1 && 2*n >= len(in.Bytes()) {
		in.Hold()
		return in, data.Pieces()[0].Mem
	}
	in = shared.Buffers().Get(n)
	mem = in.Bytes()[:n]
	rest := mem
	for _, p := range data.Pieces() {
		rest = rest[copy(rest, p.Mem):]
	}
	return in, mem
}

// full reports whether senders of this host have to wait.
func (in *inbox) full() bool {
	return in.kept.Len() >= aheadBursts || in.bytes >= aheadBytes || in.lost
}

// half reports whether they may continue.
func (in *inbox) half() bool { return in.kept.Len() <= aheadBursts/2 && in.bytes <= aheadBytes/2 }

// offer gives a parked queue pair the bursts in its inbox, as many as it takes.
func (t *task) offer() {
	in := t.e.local.inboxes.of[t]
	for in.kept.Len() > 0 && !t.q.Gone() {
		k := in.kept.First()
		in.span.Reset()
		in.span.AddBuffer(k.in, k.data)
		k.b.Data = &in.span
		if !t.receive(&k.b) {
			if in.half() {
				in.resume()
			}
			return
		}
		t.received(&k.b)
		in.drop(t)
	}
	t.unpark()
}

// drop removes the first burst from the inbox of t.
func (in *inbox) drop(t *task) {
	k := in.kept.Pop()
	in.bytes -= len(k.data)
	in.lost = false
	t.q.Unkeep(k.size())
	if k.in != nil {
		k.in.Drop()
	}
	k.b.Data, k.data, k.in = nil, nil, nil
}

// unpark undoes park: bursts that are still in the inbox are lost, and senders continue.
func (t *task) unpark() {
	l := &t.e.local.inboxes
	in := l.of[t]
	if in == nil {
		return
	}
	delete(l.of, t)
	t.parked = false
	for in.kept.Len() > 0 {
		in.drop(t)
	}
	in.lost = false
	in.span.Reset()
	in.resume()
	if len(l.spare) < spareInboxes {
		l.spare = append(l.spare, in)
	}
}

// resume schedules the senders that wait for the inbox.
func (in *inbox) resume() {
	for i, s := range in.senders {
		in.senders[i] = nil
		if s.waits = false; !s.q.Gone() {
			s.schedule()
		}
	}
	in.senders = in.senders[:0]
}

// await schedules t when the inbox of peer, which is parked, has space again.
func (t *task) await(peer *task) {
	if !t.waits {
		t.waits = true
		in := t.e.local.inboxes.of[peer]
		in.senders = append(in.senders, t)
	}
}

// fullPeer returns the queue pair of this host that t is connected to, if it is parked and its
// inbox is full.
func (t *task) fullPeer() *task {
	if p := t.peer; p != nil && p.parked && (t.e.local.inboxes.of[p].full() || p.q.Crowded()) {
		return p
	}
	return nil
}

// excused reports whether t cannot expect an answer yet: foreign memory, its own or that of its
// peer on this host, takes its time, which has a limit of its own. While t fetches what it sends,
// it may have sent nothing that asks for an answer. A retry must not be spent on that.
func (t *task) excused() bool {
	if t.parked || t.q.Fetching() {
		return true
	}
	p := t.peer
	return p != nil && (p.parked || p.q.Delayed() || p.throttled())
}

// foreignPerPass bounds how many queue pairs one pass retries, or fails.
const foreignPerPass = 64

// retryForeign schedules queue pairs whose foreign memory has arrived. arrived is set again if
// there are more.
func (l *local) retryForeign(arrived *atomic.Bool) {
	arrived.Store(false)
	l.shared.CollectForeign()
	for range foreignPerPass {
		q := l.shared.NextAsk()
		if q == nil {
			return
		}
		taskOf(q).schedule() // its turn begins with its inbox
	}
	arrived.Store(true)
}

// expireForeign fails queue pairs whose foreign memory has taken too long, a few in a pass. The
// others stay due.
func (l *local) expireForeign(now ib.Time) {
	for range foreignPerPass {
		q := l.shared.ExpireForeign(now)
		if q == nil {
			return
		}
		l.reportStuck(q, now)
		taskOf(q).schedule() // its turn begins with its inbox
	}
}

// stuckEvery is the shortest time between two log messages about memory that does not arrive.
const stuckEvery = ib.Time(1_000_000_000)

// stuck limits those log messages.
type stuck struct {
	said ib.Time // when the last one was written; 0: never
	more int     // queue pairs that failed since then
}

// reportStuck logs why q fails.
func (l *local) reportStuck(q *nic.QP, now ib.Time) {
	if l.stuck.said != 0 && now-l.stuck.said < stuckEvery {
		l.stuck.more++
		return
	}
	s := q.Session()
	l.log.Warn("a queue pair fails: memory that its program has registered does not come; the program, or a file system, has to provide it",
		"pid", s.Pid, "program", s.Program, "qp", q.Num(), "waited", time.Duration(s.NIC().Patience()), "others", l.stuck.more)
	l.stuck = stuck{said: now}
}
