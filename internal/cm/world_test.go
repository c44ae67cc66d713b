package cm

import (
	"fmt"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// A world has two hosts and the network between them, in virtual time.
type world struct {
	t     testing.TB
	steps int
	now   ib.Time
	nodes map[ib.GID]*node
	wire  []packet
	todo  []deed
	sent  int
	// fault returns the arrival times of the n-th message's copies; none means that it is lost.
	fault func(n int, m wire.MAD) []ib.Time
	trace []string
}

type packet struct {
	at       ib.Time
	from, to ib.GID
	mad      wire.MAD
}

type deed struct {
	at ib.Time
	do func()
}

// A node is a host. Its owner acts like a program: it accepts requests, confirms replies and agrees to a disconnect, each after a moment.
type node struct {
	w       *world
	name    string
	gid     ib.GID
	m       *Manager
	due     ib.Time // first argument of Due since Expire
	think   ib.Time
	log     []string
	conn    *Conn
	deaf    bool
	refuse  uint16 // reject reason for requests
	passive bool   // does not answer by itself
	rejects bool   // answers with a REJ
	private string // last private data received
}

const (
	ms      = ib.Time(1e6)
	second  = ib.Time(1e9)
	service = 0x01061c06
	latency = ms
)

func newWorld(t testing.TB) (w *world, a, b *node) {
	w = &world{t: t, nodes: map[ib.GID]*node{}}
	w.fault = func(int, wire.MAD) []ib.Time { return []ib.Time{latency} }
	return w, w.add("a", 1), w.add("b", 2)
}

func (w *world) add(name string, last byte) *node {
	n := &node{w: w, name: name, gid: ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: last}, think: 5 * ms}
	seed := uint32(last) * 1000
	n.m = New(Config{GUID: uint64(last), Env: n, Due: n.file, Random: func() uint32 { seed = seed*1664525 + 1013904223; return seed }})
	w.nodes[n.gid] = n
	return n
}

// file records a deadline, as a loop does.
func (n *node) file(at ib.Time) {
	if at != 0 && (n.due == 0 || at < n.due) {
		n.due = at
	}
}

func (w *world) after(d ib.Time, do func()) { w.todo = append(w.todo, deed{w.now + d, do}) }

// step executes the next event; it returns false if there is none.
func (w *world) step() bool {
	best := ib.Time(0)
	sooner := func(t ib.Time) bool {
		if t != 0 && (best == 0 || t < best) {
			best = t
			return true
		}
		return false
	}
	var act func()
	for i := range w.todo {
		if sooner(w.todo[i].at) {
			act = func() {
				d := w.todo[i]
				w.todo = slices.Delete(w.todo, i, i+1)
				d.do()
			}
		}
	}
	for i := range w.wire {
		if sooner(w.wire[i].at) {
			act = func() {
				p := w.wire[i]
				w.wire = slices.Delete(w.wire, i, i+1)
				if n := w.nodes[p.to]; n != nil && !n.deaf {
					n.m.Receive(w.now, p.from, p.to, p.mad)
				}
			}
		}
	}
	for _, n := range w.nodes {
		d := n.m.Deadline()
		if d != 0 && (n.due == 0 || n.due > d) {
			w.t.Fatalf("%s: the deadline is %d, and Due was called for %d", n.name, d, n.due)
		}
		if sooner(d) {
			act = func() {
				n.due = 0
				n.m.Expire(w.now)
				n.file(n.m.Deadline())
			}
		}
	}
	if act == nil {
		return false
	}
	w.now = max(w.now, best)
	w.refreeze()
	act()
	return true
}

// run continues until there are no more events, or until the given time.
func (w *world) run(until ib.Time) {
	w.t.Helper()
	for i := range 100000 {
		if i == 99999 {
			w.t.Fatalf("still busy at %v ms:\n%v", w.now/ms, w.trace)
		}
		if next := w.next(); next == 0 || next > until {
			w.now = max(w.now, until)
			return
		}
		w.step()
	}
}

func (w *world) next() (t ib.Time) {
	sooner := func(v ib.Time) {
		if v != 0 && (t == 0 || v < t) {
			t = v
		}
	}
	for _, d := range w.todo {
		sooner(d.at)
	}
	for _, p := range w.wire {
		sooner(p.at)
	}
	for _, n := range w.nodes {
		sooner(n.m.Deadline())
	}
	return t
}

func (n *node) Send(from, to ib.GID, mad wire.MAD) {
	w := n.w
	w.trace = append(w.trace, fmt.Sprintf("%6d ms %s: %v", w.now/ms, n.name, wire.CMMessage(mad.Attribute())))
	for _, d := range w.fault(w.sent, mad) {
		w.wire = append(w.wire, packet{w.now + d, from, to, slices.Clone(mad)})
	}
	w.sent++
}

func (n *node) say(format string, args ...any) { n.log = append(n.log, fmt.Sprintf(format, args...)) }

func (n *node) Request(c *Conn, p *Params) uint16 {
	if n.refuse != 0 {
		return n.refuse
	}
	n.say("request")
	n.private = string(p.Private[:5])
	c.Owner, n.conn = n, c
	if n.rejects {
		n.w.after(n.think, func() { n.m.Reject(n.w.now, c, RejectConsumer, nil) })
	} else if !n.passive {
		n.w.after(n.think, func() {
			n.m.Accept(n.w.now, c, &Params{QPN: 0x22, PSN: 0x222222, ResponderResources: 3, InitiatorDepth: 2, RNRRetryCount: 6, Private: []byte("reply")})
		})
	}
	return 0
}

func (n *node) Question(c *Conn, private []byte) uint8 {
	if n.refuse != 0 {
		return uint8(n.refuse)
	}
	n.say("question")
	n.private = string(private[:5])
	c.Owner, n.conn = n, c
	if n.rejects {
		n.w.after(n.think, func() { n.m.Reject(n.w.now, c, RejectConsumer, nil) })
	} else if !n.passive {
		n.w.after(n.think, func() { n.m.Answer(n.w.now, c, SidrSuccess, 0x33, 0x1234, []byte("reply")) })
	}
	return 0
}

var kindNames = map[EventKind]string{
	Replied: "replied", Connected: "connected", Rejected: "rejected", Unreachable: "unreachable", Disconnected: "disconnected",
	Vanished: "vanished", Exited: "exited", SidrReplied: "answered",
}

func (n *node) Notify(c *Conn, e *Event) {
	text := kindNames[e.Kind]
	if e.Reason != 0 {
		text += fmt.Sprintf(" %d", e.Reason)
	}
	n.say("%s", text)
	if len(e.Private) > 0 {
		n.private = string(e.Private[:5])
	}
	if n.passive {
		return
	}
	switch e.Kind {
	case Replied:
		n.w.after(n.think, func() {
			if n.rejects {
				n.m.Reject(n.w.now, c, RejectConsumer, nil)
			} else {
				n.m.Ready(c)
			}
		})
	case Disconnected:
		n.w.after(n.think, func() { n.m.Disconnect(n.w.now, c) })
	}
}

// connect makes n request a connection from to.
func (n *node) connect(to *node) *Conn {
	n.w.t.Helper()
	c, err := n.m.Connect(n.w.now, n, service, Path{SGID: n.gid, DGID: to.gid, MTU: 3, AckTimeout: 19},
		&Params{QPN: 0x11, PSN: 0x111111, ResponderResources: 5, InitiatorDepth: 4, RetryCount: 7, RNRRetryCount: 7, Private: []byte("hello")}, false)
	if err != nil {
		n.w.t.Fatal(err)
	}
	n.conn = c
	return c
}

func (n *node) expect(want ...string) {
	n.w.t.Helper()
	if !slices.Equal(n.log, want) {
		n.w.t.Errorf("%s saw %q, want %q\n%v", n.name, n.log, want, n.w.trace)
	}
}

// empty checks that nothing is left, long after.
func (w *world) empty() {
	w.t.Helper()
	w.run(w.now + 3600*second)
	for _, n := range w.nodes {
		orphans := len(n.m.leaving.at) + len(n.m.leaving.peers) + n.m.leaving.all.Len() + len(n.m.ended.at) + len(n.m.ended.peers) + n.m.ended.all.Len()
		if n.m.Len() != 0 || orphans != 0 || len(n.m.byRemote) != 0 || len(n.m.byQP) != 0 || len(n.m.questions) != 0 || n.m.Deadline() != 0 {
			w.t.Errorf("%s still has %d connections (%d in the lists of orphans, %d by remote, %d by QP, %d questions)\n%v",
				n.name, n.m.Len(), orphans, len(n.m.byRemote), len(n.m.byQP), len(n.m.questions), w.trace)
		}
	}
}
