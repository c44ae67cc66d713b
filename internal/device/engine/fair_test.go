package engine

import (
	"slices"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// halt ends the loop of e. From then on the test makes the passes and sets the time. Each reading of the clock takes a
// microsecond.
func halt(e *Engine) {
	e.Stop()
	e.first.clock.time = func() ib.Time { return e.first.clock.now + 1_000 }
	for _, b := range e.first.bells.of {
		b.client.flow.credit, b.client.flow.of.credit = 0, 0
		e.first.bells.activate(b, e.first.clock.now)
	}
}

// passes makes n passes, d apart.
func passes(e *Engine, n int, d ib.Time) {
	for range n {
		e.first.clock.now += d
		for _, b := range e.first.bells.of {
			if b.page.any.Load() != 0 {
				e.first.bells.activate(b, e.first.clock.now) // as its eventfd would
			}
		}
		e.first.step()
	}
}

// passesUntil makes passes until done, most at most, and returns how many.
func passesUntil(t *testing.T, e *Engine, most int, done func() bool) int {
	t.Helper()
	for i := range most {
		if done() {
			return i
		}
		passes(e, 1, 1_000)
	}
	t.Fatalf("not done after %d passes", most)
	return 0
}

// sent is how many packets the queue pairs of a session have sent.
func (c *program) sent() (n uint64) {
	c.e.only().EachQP(func(q *nic.QP) {
		if q.Session() == c.s {
			n += q.Transport().Counters().SentPackets
		}
	})
	return n
}

// small makes n queue pairs with the smallest queues, which share everything else.
func (c *program) small(n int) []*testQP {
	c.t.Helper()
	first := c.newQP(rc)
	qs := make([]*testQP, n)
	for i := range qs {
		qs[i] = c.sized(1, first.cq, first.mr)
	}
	return qs
}

// sized makes a queue pair with queues of n requests, which uses what another one has.
func (c *program) sized(n uint32, cq nic.CQInfo, mr nic.MRInfo) *testQP {
	c.t.Helper()
	q := &testQP{c: c, cq: cq, mr: mr, cqr: c.ring(cq.Ring)}
	c.do(func() (err error) {
		q.info, err = c.s.CreateQP(nic.QPParams{PD: 0, SendCQ: cq.Handle, RecvCQ: cq.Handle, Type: rc,
			Cap: nic.QPCap{SendWR: n, RecvWR: n, SendSGE: 1, RecvSGE: 1}})
		return err
	})
	q.sq, q.rq = c.ring(q.info.SQ), c.ring(q.info.RQ)
	return q
}

// storm makes n queue pairs that send for ever to peers without a receive, without further requests of their client.
func storm(t testing.TB, e *Engine, n int) *program {
	t.Helper()
	return stormOf(newClient(t, e), n)
}

// stormOf is storm for a client.
func stormOf(c *program, n int) *program {
	c.t.Helper()
	qs := c.small(2 * n)
	for i := range n {
		connect(qs[i], qs[n+i])
	}
	for _, q := range qs[:n] {
		q.post(wr{op: opSend, n: 0})
	}
	return c
}

// TestTurnsGoRoundSessions: however many queue pairs of another session want turns, and whatever their timers, a
// request waits for only a few of them.
func TestTurnsGoRoundSessions(t *testing.T) {
	for _, n := range []int{10, 1000} {
		a, b := pair(t)
		e := a.c.e
		s := storm(t, e, n)
		halt(e)
		passes(e, 3*n, 5_000)
		before := s.sent()
		a.post(wr{op: opWrite, flags: signal, n: 8, remote: b.c.base, rkey: b.mr.RKey})
		passesUntil(t, e, 4*n, func() bool { _, ok := a.try(); return ok })
		if others := s.sent() - before; others > turnsPerPass {
			t.Errorf("%d turns of a session with %d queue pairs before a request of another, want %d at most", others, n, turnsPerPass)
		}
		before = s.sent()
		passes(e, 100, 5_000)
		if s.sent() == before {
			t.Error("the session with many queue pairs has no turns at all")
		}
	}
}

// TestTurnsGoRoundUsers: however many sessions of another user want turns, a request waits for only a few of them.
func TestTurnsGoRoundUsers(t *testing.T) {
	const sessions = 100
	a, b := pair(t)
	e := a.c.e
	var many []*program
	for range sessions {
		many = append(many, stormOf(newClientOf(t, e, 7), 1))
	}
	sent := func() (n uint64) {
		for _, c := range many {
			n += c.sent()
		}
		return n
	}
	halt(e)
	passes(e, 10*sessions, 5_000)
	for i := range 20 {
		before := sent()
		a.post(wr{op: opWrite, flags: signal, n: 8, remote: b.c.base, rkey: b.mr.RKey})
		passesUntil(t, e, 4*sessions, func() bool { _, ok := a.try(); return ok })
		if others := sent() - before; others > 2*turnsPerPass {
			t.Errorf("request %d: %d turns of a user with %d sessions before it, want %d at most", i, others, sessions, 2*turnsPerPass)
		}
		passes(e, 7, 5_000)
	}
	before := sent()
	passes(e, 10*sessions, 5_000)
	for i, c := range many {
		if sent() == before {
			t.Fatal("the user with many sessions has no turns at all")
		}
		if c.sent() < 2 {
			t.Errorf("session %d had no turn", i)
		}
	}
}

// TestLongTurnsCost: a queue pair with long turns gets fewer of them.
func TestLongTurnsCost(t *testing.T) {
	e := newEngine(t)
	long, short := newClient(t, e).small(4), newClient(t, e).small(4)
	halt(e)
	var turns [2]int
	for _, q := range append(long, short...) {
		taskOf(e.only().QP(q.info.Num)).schedule()
	}
	for range 700 {
		q := e.first.sched.next(e.first.clock.now)
		i, cost := 0, ib.Time(6*quantum)
		if q.q.Session() == short[0].c.s {
			i, cost = 1, quantum
		}
		turns[i]++
		e.first.sched.charge(q, cost, false)
		q.schedule()
	}
	if turns[0] != 100 || turns[1] != 600 {
		t.Errorf("turns of six quanta: %d, of one: %d, want 100 and 600", turns[0], turns[1])
	}
}

// TestSlowTurnsShrink: a queue pair whose copies are slow gets shorter turns, until they are faster.
func TestSlowTurnsShrink(t *testing.T) {
	e := newEngine(t)
	c := newClient(t, e).small(1)[0]
	halt(e)
	q := taskOf(e.only().QP(c.info.Num))
	for i, s := range []struct {
		cost ib.Time
		all  bool
		want int
	}{
		{slowTurn, true, turnBytes}, {slowTurn + 1, false, turnBytes}, {slowTurn + 1, true, turnBytes / 2}, {slowTurn / 2, true, turnBytes / 2},
		{100 * slowTurn, true, turnBytes / 4}, {slowTurn + 1, true, turnBytes / 8}, {slowTurn + 1, true, turnBytes / 8},
		{slowTurn/2 - 1, false, turnBytes / 8}, {slowTurn/2 - 1, true, turnBytes / 4}, {0, true, turnBytes / 2}, {0, true, turnBytes}, {0, true, turnBytes},
	} {
		if e.first.sched.charge(q, s.cost, s.all); e.first.sched.allowance(q) != s.want {
			t.Fatalf("step %d: %d bytes are allowed, want %d", i, e.first.sched.allowance(q), s.want)
		}
	}
}

// TestTimersPerPass: one pass handles a bounded number of timers, and a session's timer does not wait for all earlier
// ones of another session.
func TestTimersPerPass(t *testing.T) {
	const n = 1000
	e := newEngine(t)
	s, c := storm(t, e, n), newClient(t, e)
	q := c.newQP(rc)
	nobody := &testQP{c: c}
	nobody.info.Num = 0xabcdef
	q.timeout = 5 // 131 us
	q.to(nobody)
	halt(e)
	passes(e, 3*n, 1_000)
	q.post(wr{op: opWrite, n: 8})
	passes(e, 4, 1_000)
	sent := c.sent()
	if sent == 0 {
		t.Fatal("nothing was sent")
	}
	timers := &s.flow().timers
	e.first.clock.now += ib.Time(time.Second)
	for i := 0; c.sent() == sent; i++ {
		before := len(*timers)
		e.first.step()
		if looked := before - len(*timers); looked > dueAtOnce*turnsPerPass {
			t.Fatalf("one pass took %d timers, want %d at most", looked, dueAtOnce*turnsPerPass)
		}
		if i == 4 {
			t.Fatalf("a timer waits for %d of another session", len(*timers))
		}
	}
}

// TestCommandsPerPass: one pass runs a bounded number of commands, by number and by time.
func TestCommandsPerPass(t *testing.T) {
	e := newEngine(t)
	halt(e)
	for e.first.cmds.pending.Load() {
		e.first.cmds.pop() // the loop may have ended before it saw Stop's own command
	}
	ran := 0
	for range 100 {
		*e.first.cmds.queue.Push() = func() { ran++ }
	}
	e.first.cmds.pending.Store(true)
	e.first.clock.time = func() ib.Time { return e.first.clock.now }
	if e.first.cmds.run(e.first.cmds.inOnePass(), &e.first.clock); ran != commandsPerPass {
		t.Errorf("%d commands ran in one pass, want %d", ran, commandsPerPass)
	}
	e.first.clock.time = func() ib.Time { return e.first.clock.now + commandTime/2 }
	if e.first.cmds.run(e.first.cmds.inOnePass(), &e.first.clock); ran != commandsPerPass+2 {
		t.Errorf("%d commands ran in the time for two", ran-commandsPerPass)
	}
	for e.first.cmds.pending.Load() {
		e.first.cmds.run(e.first.cmds.inOnePass(), &e.first.clock)
	}
	if ran != 100 {
		t.Errorf("%d commands ran, want 100", ran)
	}
}

// sick takes queue pairs to the error state.
func sick(qs ...*testQP) {
	for _, q := range qs {
		q.c.do(func() error {
			if err := q.c.s.ModifyQP(q.info.Handle, attrInit, &nic.QPAttr{State: 1, PortNum: 1}); err != nil {
				return err
			}
			return q.c.s.ModifyQP(q.info.Handle, 1, &nic.QPAttr{State: 6})
		})
	}
}

// TestErroredPerPass: a pass visits a bounded number of queue pairs in the error state. A session with very many delays
// only itself.
func TestErroredPerPass(t *testing.T) {
	const n = 3000
	e := newEngine(t)
	many, few := newClient(t, e).small(n), newClient(t, e).small(1)
	sick(many...)
	sick(few...)
	halt(e)
	// A round that is under way ends first: it began before the other session had anything.
	e.first.clock.now += tickEvery
	for before := e.first.chores.tick; e.first.chores.tick == before; {
		e.first.step()
	}
	for _, q := range many {
		q.recv(0, 0)
	}
	few[0].recv(0, 0)
	count := func(q *testQP) (n int) {
		for _, ok := q.try(); ok; _, ok = q.try() {
			n++
		}
		return n
	}
	done, early := 0, false
	for tick := range 10 {
		e.first.clock.now += tickEvery
		for i := 0; ; i++ {
			before := e.first.chores.tick
			e.first.step()
			k := count(many[0])
			if k > visitsPerPass+8 {
				t.Fatalf("%d receives were flushed in one pass, want %d at most", k, visitsPerPass+8)
			}
			done += k
			if tick == 0 && i < 4 {
				early = early || count(few[0]) == 1
			}
			if e.first.chores.tick != before {
				break // the round is over
			}
		}
	}
	if !early {
		t.Error("a session's receive waits until all those of another are flushed")
	}
	if done != n {
		t.Errorf("%d of %d receives were flushed", done, n)
	}
}

// TestFlushInPieces: everything posted to a queue pair is flushed, a bounded number in a pass, without waiting for the
// next visit.
func TestFlushInPieces(t *testing.T) {
	e := newEngine(t)
	q := newClient(t, e).newQP(rc)
	halt(e)
	for range 1000 {
		q.recv(0, 0)
	}
	sick(q)
	done := 0
	for range 1000 {
		k := 0
		for _, ok := q.try(); ok; _, ok = q.try() {
			k++
		}
		if done += k; k > 64*(turnsPerPass+1) {
			t.Fatalf("%d receives were flushed in one pass", k)
		}
		passes(e, 1, 1_000)
	}
	if done != 1000 {
		t.Errorf("%d of 1000 receives were flushed", done)
	}
}

// TestRingsPerPass: if a session rings for all its queue pairs all the time, a pass handles a bounded number of them,
// in turn, and no other session is delayed.
func TestRingsPerPass(t *testing.T) {
	const n = 1000
	e := newEngine(t)
	many := newClient(t, e).small(n)
	one := newClient(t, e).newQP(rc)
	connect(one, one)
	halt(e)
	f := many[0].c.flow()
	rang := map[*task]bool{}
	for pass := 0; len(rang) < n; pass++ {
		for _, q := range many {
			q.ring()
		}
		if pass == 3 {
			one.post(wr{op: opWrite, flags: signal, n: 8, remote: one.c.base, rkey: one.mr.RKey})
		}
		e.first.bells.poll(e.first.clock.now)
		if noticed := taskOf(e.only().QP(one.info.Num)).queued; noticed != (pass == 3) {
			t.Errorf("pass %d: the other session's ring noticed: %v", pass, noticed)
		}
		k := 0
		for q := f.first; q != nil; q = q.next {
			k++
			rang[q] = true
		}
		if k > ringsAtOnce {
			t.Fatalf("%d queue pairs rang in one pass, want %d at most", k, ringsAtOnce)
		}
		for e.first.sched.waiting() {
			e.first.sched.next(e.first.clock.now)
		}
		if pass > 2*n/ringsAtOnce {
			t.Fatalf("after %d passes only %d of %d queue pairs were noticed", pass, len(rang), n)
		}
	}
}

// TestStarvedPerPass: a sender whose peer has posted a receive continues soon, however many queue pairs of another
// session wait for peers that never post.
func TestStarvedPerPass(t *testing.T) {
	const n = 1000
	a, b := pair(t)
	e := a.c.e
	s := storm(t, e, n)
	a.post(wr{op: opSend, flags: signal, n: 8})
	halt(e)
	passes(e, n, 0)
	for _, c := range []*program{s, a.c} {
		if c.flow().starved.Len() == 0 {
			t.Fatal("nobody is starved")
		}
	}
	b.recv(0, 8)
	for i := range 8 {
		if _, ok := a.try(); ok {
			return
		}
		if i == 7 {
			t.Errorf("a sender waits, with %d of another session", s.flow().starved.Len())
		}
		passes(e, 1, 0)
	}
}

// sendToAndFro sends n messages to and fro and returns how long the one in the middle took.
func sendToAndFro(a, b *testQP, n int) time.Duration {
	took := make([]time.Duration, n)
	for i := range n {
		start := time.Now()
		from, to := a, b
		if i&1 != 0 {
			from, to = b, a
		}
		to.recv(0, 64)
		from.post(wr{op: opSend, n: 64})
		for _, ok := to.try(); !ok; _, ok = to.try() {
		}
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	return took[n/2]
}

// BenchmarkBeside measures how long a message takes beside others. On a busy machine only the median is meaningful.
func BenchmarkBeside(b *testing.B) {
	for _, c := range []struct {
		name  string
		storm int
		sick  int
	}{{"nobody", 0, 0}, {"rnr200", 200, 0}, {"rnr2000", 2000, 0}, {"error20000", 0, 20000}} {
		b.Run(c.name, func(b *testing.B) {
			x, y := pair(b)
			if c.storm > 0 {
				storm(b, x.c.e, c.storm)
			}
			if c.sick > 0 {
				sick(newClient(b, x.c.e).small(c.sick)...)
			}
			sendToAndFro(x, y, 100)
			b.ResetTimer()
			b.ReportMetric(float64(sendToAndFro(x, y, b.N)), "median-ns")
		})
	}
}

// TestCloseInPieces: a session with many queue pairs is closed a few at a time, and nothing
// of it is left.
func TestCloseInPieces(t *testing.T) {
	const n, piece = 500, 32
	e := newEngine(t)
	c := newClient(t, e)
	c.small(n)
	calls := 1
	e.Do(func() { e.Detach(c.s) })
	for more := true; more; calls++ {
		e.Do(func() {
			count := func() (n int) {
				e.only().EachQP(func(*nic.QP) { n++ })
				return n
			}
			before := count()
			more = c.s.CloseSome(piece)
			if ended := before - count(); ended > piece {
				t.Errorf("%d queue pairs were destroyed at once, want %d at most", ended, piece)
			}
		})
	}
	e.Do(func() {
		if s := e.only().Sessions(); s != 0 {
			t.Errorf("%d sessions are left", s)
		}
		e.only().EachQP(func(q *nic.QP) { t.Errorf("queue pair %d is left", q.Num()) })
	})
	if calls < n/piece {
		t.Errorf("closed in %d calls, want %d at least", calls, n/piece)
	}
}

// TestKeptBursts: bursts that wait in an inbox count for their user even if they have no data.
func TestKeptBursts(t *testing.T) {
	const (
		all  = 32 << 20 // what may be kept for a user
		each = 512      // what each of them counts apart from its data
	)
	a, _ := pair(t)
	e := a.c.e
	halt(e)
	k := a.task()
	for range inboxBursts {
		k.park(&transport.Burst{}, nil)
	}
	if k.q.Keep(all - (inboxBursts+1)*each + 1) {
		t.Error("bursts without data are kept for nothing")
	}
	k.unpark()
	if !k.q.Keep(all - each) {
		t.Error("bursts count that are kept no more")
	}
	k.q.Unkeep(all - each)
}
