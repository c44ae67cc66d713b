package peers

import (
	"math/rand/v2"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/net/wire"
)

const all = wire.FeatureRepair | wire.FeaturePacedReads | wire.FeatureShortIDs

// world has a few hosts and a network that loses messages on demand.
type world struct {
	t     *testing.T
	now   Time
	nodes map[GID]*node
	mail  []letter
	lose  func(letter) bool
	sent  int // messages offered to the network

	renumbers bool // the network changes identifications
}

type letter struct {
	from, to GID
	mad      []byte
}

// node is a host at one address. table is nil if it is not a vrdma host.
type node struct {
	w      *world
	gid    GID
	table  *Table
	refuse bool // answers as the Linux kernel does
	judged int
	used   []GID
	local  GID // the local address of used; zero: gid
	ports  []uint16
}

func newWorld(t *testing.T) *world { return &world{t: t, now: 1, nodes: map[GID]*node{}} }

func gid(i byte) GID { return GID{10: 0xff, 11: 0xff, 12: 10, 15: i} }

// add adds a host; without features it is not a vrdma host.
func (w *world) add(i byte, features uint32) *node {
	n := &node{w: w, gid: gid(i)}
	w.nodes[n.gid] = n
	n.start(features)
	return n
}

func (n *node) start(features uint32) {
	n.table = nil
	if features != 0 {
		r := rand.New(rand.NewPCG(uint64(n.gid[15]), uint64(n.w.now)))
		n.table = New(Config{Version: "1.2", Features: features, Random: r.Uint64, Env: n, Ports: func(GID) []uint16 { return n.ports }})
	}
}

func (n *node) SendMAD(from, to GID, mad []byte) {
	n.w.sent++
	n.w.mail = append(n.w.mail, letter{from, to, slices.Clone(mad)})
}

func (n *node) Judged(GID) { n.judged++ }

func (n *node) InUse(f func(local, remote GID)) {
	local := n.gid
	if n.local != (GID{}) {
		local = n.local
	}
	for _, g := range n.used {
		f(local, g)
	}
}

// meet makes a connection from n to o.
func (n *node) meet(o *node) uint32 {
	if !slices.Contains(n.used, o.gid) {
		n.used = append(n.used, o.gid)
	}
	return n.table.Meet(n.w.now, n.gid, o.gid)
}

// deliver delivers all messages.
func (w *world) deliver() {
	for range 10_000 {
		if len(w.mail) == 0 {
			return
		}
		l := w.mail[0]
		w.mail = w.mail[1:]
		n := w.nodes[l.to]
		if n == nil || w.lose != nil && w.lose(l) {
			continue
		}
		switch {
		case n.table != nil:
			n.table.Receive(w.now, l.from, l.to, l.mad, Arrival{LongID: w.renumbers})
		case n.refuse:
			m := wire.MAD(l.mad)
			if m.Method() == wire.MethodGet {
				m.SetMethod(wire.MethodGetResp)
				m.SetStatus(0x000c)
				w.mail = append(w.mail, letter{l.to, l.from, m})
			}
		}
	}
	w.t.Fatal("the hosts do not stop talking")
}

// run advances the time.
func (w *world) run(d Time) {
	end := w.now + d
	for range 100_000 {
		w.deliver()
		next := end
		for _, n := range w.nodes {
			if n.table != nil && n.table.Deadline() != 0 {
				next = min(next, n.table.Deadline())
			}
		}
		w.now = max(w.now, next)
		if w.now >= end {
			w.deliver()
			return
		}
		for _, n := range w.nodes {
			if n.table != nil && n.table.Deadline() != 0 && n.table.Deadline() <= w.now {
				n.table.Expire(w.now)
			}
		}
	}
	w.t.Fatal("time does not pass")
}

func (n *node) kind(o *node) Kind {
	for _, s := range n.table.List() {
		if s.GID == o.gid {
			return s.Kind
		}
	}
	return 255
}

func (w *world) want(n, o *node, k Kind, features uint32) {
	w.t.Helper()
	if got, f := n.kind(o), n.table.Features(o.gid); got != k || f != features {
		w.t.Errorf("host %d holds host %d for %v with features %#x, want %v with %#x", n.gid[15], o.gid[15], got, f, k, features)
	}
}

// TestRecognition checks that after one question both sides know each other, with the common features.
func TestRecognition(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, all), w.add(2, all&^wire.FeatureShortIDs|1<<20)
	if f := a.meet(b); f != 0 {
		t.Errorf("features %#x before anything was heard", f)
	}
	b.used = []GID{a.gid}
	p := b.table.add(b.gid, a.gid)
	p.kind, p.due = Foreign, 1<<60
	w.deliver()
	w.want(a, b, Own, all&^wire.FeatureShortIDs)
	w.want(b, a, Own, all&^wire.FeatureShortIDs)
	if w.sent != 3 || a.judged != 1 || b.judged != 1 {
		t.Errorf("%d messages, judged %d and %d times, want 3, 1, 1", w.sent, a.judged, b.judged)
	}
	if s := a.table.List(); len(s) != 1 || s[0].Version != "1.2" {
		t.Errorf("%+v, want version 1.2", s)
	}
	if f := a.meet(b); f != all&^wire.FeatureShortIDs {
		t.Errorf("features %#x for a host that has just answered", f)
	}
}

// TestForeign checks that a host that is silent or refuses is foreign, and rarely asked again.
func TestForeign(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		w := newWorld(t)
		a, b := w.add(1, all), w.add(2, 0)
		b.refuse = refuse
		a.meet(b)
		w.run(2 * second)
		w.want(a, b, Foreign, 0)
		first := a.table.count.Asked
		if most := uint64(firstTries); first > most || refuse && first != 1 {
			t.Errorf("refuses %v: asked %d times in two seconds", refuse, first)
		}
		w.run(600 * second)
		if n := a.table.count.Asked - first; n > 20 || n < 5 {
			t.Errorf("refuses %v: asked %d times in ten minutes, want a few", refuse, n)
		}
		// It becomes a vrdma host and asks first.
		b.start(all)
		b.meet(a)
		w.deliver()
		w.want(a, b, Own, all)
		w.want(b, a, Own, all)
	}
}

// TestReplaced replaces a vrdma host by another system: new connections do not use old knowledge, existing ones learn within seconds,
// and a packet that no vrdma host sends counts at once.
func TestReplaced(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, all), w.add(2, all)
	a.meet(b)
	w.deliver()
	w.want(a, b, Own, all)
	w.run(freshFor + 1)
	b.start(0)
	b.refuse = true
	if f := a.meet(b); f != 0 {
		t.Errorf("a new connection uses features %#x of a host not heard of for %v", f, freshFor)
	}
	w.want(a, b, Own, all)
	w.deliver()
	w.want(a, b, Foreign, 0)

	b.start(all)
	b.meet(a)
	w.deliver()
	w.want(a, b, Own, all)
	b.start(0)
	b.refuse = false
	before := a.judged
	a.table.Doubt(w.now, b.gid)
	w.want(a, b, Asking, 0)
	if a.judged != before+1 {
		t.Error("nobody was told of the doubt")
	}
	w.run(11 * second)
	w.want(a, b, Foreign, 0)

	// Silence is also noticed, without any packet.
	b.start(all)
	b.meet(a)
	w.deliver()
	b.start(0)
	w.run(refreshEvery + 11*second)
	w.want(a, b, Foreign, 0)
}

// TestAddressGone checks that questions are sent from an address in use, even if the original local address is gone.
func TestAddressGone(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, all), w.add(2, all)
	a.meet(b)
	w.deliver()
	w.want(a, b, Own, all)
	other := gid(3)
	w.nodes[other] = &node{w: w, gid: other, table: a.table}
	delete(w.nodes, a.gid)
	a.local = other
	w.run(10 * refreshEvery)
	if f := a.table.Features(b.gid); f != all || a.judged != 1 {
		t.Errorf("features %#x after the first address has gone, judged %d times; want %#x, once", f, a.judged, uint32(all))
	}
}

// TestAgain checks that a queue pair with a path keeps the known features, and that forgotten hosts are asked again.
func TestAgain(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, all), w.add(2, all)
	again := func(want uint32) {
		t.Helper()
		if f := a.table.Again(w.now, a.gid, b.gid); f != want {
			t.Errorf("features %#x, want %#x", f, want)
		}
	}
	a.used = []GID{b.gid}
	again(0)
	w.deliver()
	again(all)
	w.run(freshFor + 1)
	sent := w.sent
	again(all)
	if w.sent != sent {
		t.Error("a host was asked that is known")
	}
	if f := a.meet(b); f != 0 {
		t.Errorf("a new queue pair: features %#x", f)
	}
	again(0)
	w.deliver()
	again(all)
	a.table.Forget(func(g GID) bool { return g != b.gid })
	again(all)
	judged := a.judged
	a.table.Forget(func(g GID) bool { return g == b.gid })
	if a.judged != judged+1 || a.table.Knows(b.gid) {
		t.Error("not forgotten, or nobody was told")
	}
	again(0)
	w.deliver()
	again(all)
}

// TestDoubt checks that a host whose packets look foreign, but which answers as a vrdma host, stays one. A forger of such packets can
// neither weaken the ICRC check nor disable the host's features for long.
func TestDoubt(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, all), w.add(2, all)
	a.meet(b)
	w.deliver()
	sent := w.sent
	for i := range 100 {
		a.table.Doubt(w.now, b.gid)
		if !a.table.ShortIDs(b.gid) {
			t.Fatalf("doubt %d weakens the check", i)
		}
		w.deliver()
		w.want(a, b, Own, all)
		w.run(second / 10)
	}
	if n := a.table.count.Doubts; n != 1 || w.sent-sent > 4 {
		t.Errorf("100 forged packets in 10 s led to %d doubts and %d messages, want one and a few", n, w.sent-sent)
	}
	// Later it may be true.
	w.run(doubtEvery)
	b.start(0)
	b.refuse = true
	a.table.Doubt(w.now, b.gid)
	if !a.table.ShortIDs(b.gid) {
		t.Error("the check is weakened before anybody has answered")
	}
	w.deliver()
	w.want(a, b, Foreign, 0)
	if a.table.ShortIDs(b.gid) {
		t.Error("a foreign host is held to our identifications")
	}
}

// TestRenumbered checks a network that changes identifications: the answer shows it, and the check of identifications is disabled, even
// if that starts later.
func TestRenumbered(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, all), w.add(2, all)
	w.renumbers = true
	a.meet(b)
	w.deliver()
	w.want(a, b, Own, all&^wire.FeatureShortIDs)
	w.renumbers = false
	w.run(refreshEvery + second)
	w.want(a, b, Own, all)
	w.renumbers = true
	a.table.Doubt(w.now, b.gid)
	w.deliver()
	w.want(a, b, Own, all&^wire.FeatureShortIDs)
	if a.table.ShortIDs(b.gid) {
		t.Error("held to identifications that its packets do not have")
	}
}

// TestLoss loses every other message, one by one, and checks that all hosts are recognised in the end.
func TestLoss(t *testing.T) {
	for seed := range uint64(50) {
		w := newWorld(t)
		r := rand.New(rand.NewPCG(seed, 1))
		w.lose = func(letter) bool { return r.IntN(4) == 0 }
		a, b := w.add(1, all), w.add(2, all)
		a.meet(b)
		b.meet(a)
		w.run(60 * second)
		w.want(a, b, Own, all)
		w.want(b, a, Own, all)
	}
}

// TestForgery checks that unexpected answers change nothing and are counted.
func TestForgery(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.add(1, all), w.add(2, all), w.add(3, all)
	var question wire.Hello
	w.lose = func(l letter) bool { question = l.mad; return true }
	a.meet(b)
	w.deliver()
	answer := make(wire.Hello, wire.MADSize)
	answer.InitAnswer(question)
	answer.SetSender(all, 7, "x")
	wrong := slices.Clone(answer)
	wrong[40]++ // the nonce
	reflected := slices.Clone(question)
	wire.MAD(reflected).SetMethod(wire.MethodGetResp)
	steps := []struct {
		name string
		from GID
		mad  []byte
		at   Time
	}{
		{"another address", c.gid, answer, w.now},
		{"an unknown address", gid(9), answer, w.now},
		{"a wrong nonce", b.gid, wrong, w.now},
		{"the question itself", b.gid, reflected, w.now},
		{"too late", b.gid, answer, w.now + nonceLife + 1},
	}
	for i, s := range steps {
		a.table.Receive(s.at, s.from, a.gid, s.mad, Arrival{})
		if n := a.table.count.Ignored; n != uint64(i+1) {
			t.Errorf("%s: %d answers ignored, want %d", s.name, n, i+1)
		}
		w.want(a, b, Asking, 0)
	}
	a.table.Receive(w.now, b.gid, a.gid, answer, Arrival{})
	w.want(a, b, Own, all)
	a.table.Receive(w.now, b.gid, a.gid, answer, Arrival{}) // once more
	if n := a.table.count.Recognised; n != 1 {
		t.Errorf("an answer counted %d times", n)
	}
}

// TestFlood checks that each question gets at most one answer, at a limited rate, and that no answer is longer than its question.
func TestFlood(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, all), w.add(2, all)
	w.lose = func(letter) bool { return true }
	a.meet(b) // so that the questions are answered with a challenge
	w.mail, w.sent = nil, 0
	q := make(wire.Hello, wire.MADSize)
	q.Init(1, 2)
	q.SetSender(all, 3, "x")
	const flood = 100_000
	for i := range flood {
		a.table.Receive(w.now+Time(i)*10_000, b.gid, a.gid, q, Arrival{})
		if w.sent > i+1 {
			t.Fatalf("%d messages for %d questions", w.sent, i+1)
		}
	}
	for _, l := range w.mail {
		if len(l.mad) > len(q) {
			t.Fatalf("an answer of %d bytes to a question of %d", len(l.mad), len(q))
		}
	}
	if w.sent > answersMost+2000+1 || w.sent < 1000 {
		t.Errorf("%d answers in a second, want at most %d", w.sent, answersMost+2000)
	}
	if a.table.count.Limited != uint64(flood-w.sent) {
		t.Errorf("%d counted as limited, want %d", a.table.count.Limited, flood-w.sent)
	}
}

// stranger returns the i-th of many addresses without a host.
func stranger(i int) GID {
	return GID{10: 0xff, 11: 0xff, 12: 20, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}
}

// TestBound checks that the table is bounded and forgets unused hosts.
func TestBound(t *testing.T) {
	w := newWorld(t)
	a := w.add(1, all)
	for i := range maxNamed + 100 {
		a.table.Meet(w.now+Time(i), a.gid, stranger(i))
	}
	if n := len(a.table.peers); n != maxNamed || a.judged != 0 {
		t.Errorf("%d hosts known, %d judged, want %d and none", n, a.judged, maxNamed)
	}
	if a.table.peers[stranger(99)] != nil || a.table.peers[stranger(100)] == nil {
		t.Error("it is not the oldest names that were forgotten")
	}
	w.mail = nil
	w.run(200 * second)
	if n := len(a.table.peers); n != 0 || a.table.named != (list{}) || a.table.Deadline() != 0 {
		t.Errorf("%d hosts known that nobody uses, next look at %d", n, a.table.Deadline())
	}
	if a.judged != 0 {
		t.Errorf("%d judgements of hosts that were foreign all the time", a.judged)
	}
}

// TestDisplaced checks that naming many addresses displaces no host that has answered. A displaced host in use is asked again when there
// is space.
func TestDisplaced(t *testing.T) {
	w := newWorld(t)
	a, b, c, d := w.add(1, all), w.add(2, all), w.add(3, all), w.add(4, 0)
	a.meet(b)
	a.meet(c)
	w.deliver()
	c.start(0)
	w.run(refreshEvery + 11*second)
	w.want(a, c, Foreign, 0) // it has answered once
	a.meet(d)
	w.run(2 * second)
	flood := func(from, to int) {
		for i := from; i < to; i++ {
			a.table.Meet(w.now, a.gid, stranger(i))
		}
		w.mail = nil
	}
	flood(0, 3*maxNamed)
	w.want(a, b, Own, all)
	w.want(a, c, Foreign, 0)
	w.want(a, d, 255, 0)
	// These addresses are not used any more; d becomes a vrdma host without a new connection to it.
	d.start(all)
	w.run(200 * second)
	w.want(a, d, Own, all)
	// Another new host is recognised meanwhile.
	e := w.add(5, all)
	flood(0, maxNamed)
	a.meet(e)
	flood(maxNamed, 2*maxNamed-1)
	a.table.Expire(a.table.Deadline())
	w.deliver()
	w.want(a, e, Own, all)
}

// TestAnsweredBound checks that the number of hosts that have answered is bounded too; further hosts are foreign and displace none.
func TestAnsweredBound(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, all), w.add(2, all)
	a.meet(b)
	w.deliver()
	answer := make(wire.Hello, wire.MADSize)
	for i := range maxAnswered {
		a.table.Meet(w.now, a.gid, stranger(i))
		answer.InitAnswer(wire.Hello(w.mail[0].mad))
		answer.SetSender(all, 9, "x")
		w.mail = nil
		a.table.Receive(w.now, stranger(i), a.gid, answer, Arrival{})
	}
	if f := a.table.Features(stranger(maxAnswered - 2)); f != all {
		t.Errorf("host %d has features %#x, want %#x", maxAnswered, f, all)
	}
	if f := a.table.Features(stranger(maxAnswered - 1)); f != 0 {
		t.Errorf("host %d has features %#x, want none", maxAnswered+1, f)
	}
	w.want(a, b, Own, all)
}

// FuzzReceive checks that no message makes an unasked host known, and that no answer is longer than its question.
func FuzzReceive(f *testing.F) {
	q := make(wire.Hello, wire.MADSize)
	q.Init(1, 1<<63|5)
	q.SetSender(all, 3, "version\x00\xffx")
	f.Add([]byte(q))
	a := make(wire.Hello, wire.MADSize)
	a.InitAnswer(q)
	a.SetSender(all, 3, "v")
	a.SetChallenge(9)
	f.Add([]byte(a))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, mad []byte) {
		w := newWorld(t)
		n, o := w.add(1, all), w.add(2, all)
		n.meet(o)
		n.table.peers[o.gid].nonce = 1<<63 | 5
		w.mail, w.sent = nil, 0
		before := slices.Clone(mad)
		n.table.Receive(w.now, gid(3), n.gid, mad, Arrival{}) // from somebody else
		if len(n.table.peers) != 1 || n.kind(o) != Asking || w.sent > 1 {
			t.Fatalf("a stranger's message made %+v and %d messages", n.table.List(), w.sent)
		}
		n.table.Receive(w.now, o.gid, n.gid, mad, Arrival{})
		if w.sent > 2 || !slices.Equal(before, mad) {
			t.Fatalf("%d messages for two", w.sent)
		}
		if n.kind(o) == Own {
			h := wire.MAD(mad).Hello()
			if h == nil || !h.IsAnswer() || h.Nonce() != 1<<63|5 {
				t.Fatalf("recognised by % x", mad)
			}
		}
		for _, s := range n.table.List() {
			if len(s.Version) > 32 {
				t.Fatalf("version %q", s.Version)
			}
		}
	})
}

// TestPorts checks that a vrdma host's answer tells its source ports, that a question does not, and that a packet from
// another port makes the table ask again: the daemon there may have started again with other ports.
func TestPorts(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, 3), w.add(2, 3)
	a.ports, b.ports = []uint16{50000, 50001}, []uint16{60000}
	a.meet(b)
	if got := a.table.Ports(b.gid); got != nil {
		t.Errorf("ports %v before an answer", got)
	}
	w.deliver()
	if got := a.table.Ports(b.gid); !slices.Equal(got, b.ports) {
		t.Errorf("the ports of b are %v, want %v", got, b.ports)
	}
	if got := b.table.Ports(a.gid); got != nil {
		t.Errorf("b has not asked, and knows %v", got)
	}
	b.meet(a)
	w.deliver()
	if got := b.table.Ports(a.gid); !slices.Equal(got, a.ports) {
		t.Errorf("the ports of a are %v, want %v", got, a.ports)
	}
	// b starts again with other ports, and a hears of it by a packet.
	b.ports = []uint16{61000}
	b.start(3)
	w.run(2 * second)
	judged, sent := a.judged, w.sent
	for range 5 {
		a.table.Strange(w.now, b.gid)
		w.deliver()
	}
	if got := a.table.Ports(b.gid); !slices.Equal(got, b.ports) || a.judged == judged {
		t.Errorf("after the restart the ports of b are %v, want %v; judged %d times", got, b.ports, a.judged-judged)
	}
	if w.sent-sent > 3 {
		t.Errorf("five strange packets cause %d messages, want one exchange", w.sent-sent)
	}
	// The state has them.
	st := a.table.Freeze(w.now)
	c := w.add(1, 3)
	if err := c.table.Thaw(st, w.now); err != nil {
		t.Fatal(err)
	}
	if got := c.table.Ports(b.gid); !slices.Equal(got, b.ports) {
		t.Errorf("the restored ports of b are %v, want %v", got, b.ports)
	}
	// A host that does not answer any more is unknown, and so are its ports.
	delete(w.nodes, b.gid)
	c.used = []GID{b.gid}
	w.run(120 * second)
	if got := c.table.Ports(b.gid); got != nil {
		t.Errorf("the ports of a host that is gone are %v", got)
	}
}

// TestForgedQuestions checks that a flood of questions from forged ports leaves the answers to a vrdma host's own questions.
func TestForgedQuestions(t *testing.T) {
	w := newWorld(t)
	a, b := w.add(1, 3), w.add(2, 3)
	a.ports, b.ports = []uint16{50000}, []uint16{60000}
	a.meet(b)
	b.meet(a)
	w.deliver()
	var out [wire.MADSize]byte
	q := wire.Hello(out[:])
	q.Init(7, 9)
	q.SetSender(3, 4, "x")
	for range 10_000 {
		a.table.Receive(w.now, b.gid, a.gid, q, Arrival{Strange: true})
	}
	if a.table.Counters().Limited == 0 {
		t.Fatal("the flood was not limited")
	}
	w.mail = nil
	a.table.Receive(w.now, b.gid, a.gid, q, Arrival{})
	if len(w.mail) != 1 {
		t.Errorf("%d answers to the host itself, want 1", len(w.mail))
	}
	if got := a.table.Ports(b.gid); !slices.Equal(got, b.ports) {
		t.Errorf("the ports of b are %v, want %v", got, b.ports)
	}
}
