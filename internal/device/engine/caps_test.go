package engine

import (
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/ib"
)

// A stream is a queue pair with a program that always has something posted.
type stream struct {
	q, to *testQP
	w     wr
	depth int
	out   int    // posted and not completed
	done  uint64 // bytes
	msgs  uint64
}

// post keeps depth requests posted.
func (s *stream) post() {
	for w, ok := s.q.try(); ok; w, ok = s.q.try() {
		if w.status != 0 {
			s.q.c.t.Fatalf("a request failed: %+v", w)
		}
		s.out--
		s.done += uint64(s.w.n)
		s.msgs++
	}
	if s.out < s.depth {
		for ; s.out < s.depth; s.out++ {
			s.q.write(s.w)
		}
		s.q.ring()
	}
}

// A bench is an engine whose passes the test makes, in virtual time: the clock advances with the moved data, 50 ps for
// a byte and 20 ns for a packet.
type bench struct {
	t       *testing.T
	e       *Engine
	nics    []*nic.NIC
	streams []*stream
	idle    ib.Time
	spent   ib.Time // that the test wants spent
	// requests makes the passes' commands; nil: there are none.
	requests func()
}

// newBench makes one with so many NICs, each of a tenant of its own.
func newBench(t *testing.T, nics int) *bench {
	t.Helper()
	b := &bench{t: t}
	var at = make([]ib.GID, nics)
	w := &ways{}
	e, err := New(Options{Resolver: w})
	if err != nil {
		t.Fatal(err)
	}
	for i := range nics {
		n := twin(string(rune('a'+i)), address(byte(1+i)))
		at[i] = n.GIDs[0].GID
		b.nics = append(b.nics, n)
		w.Add(n)
		if err := e.Add(n, nil); err != nil {
			t.Fatal(err)
		}
		e.SetShare(n, n.Name, schedule.NICParams{})
	}
	e.Start()
	t.Cleanup(e.Stop)
	b.e = e
	return b
}

// stream makes a queue pair of NIC from repeat w with one of NIC to.
func (b *bench) stream(from, to, depth int, w wr) *stream {
	b.t.Helper()
	gid := func(i int) ib.GID { return b.nics[i].GIDs[0].GID }
	x, y := newProgram(b.t, b.e, b.nics[from], gid(from), 0).newQP(rc), newProgram(b.t, b.e, b.nics[to], gid(to), 0).newQP(rc)
	connect(x, y)
	w.flags, w.remote, w.rkey = signal, y.c.base, y.mr.RKey
	s := &stream{q: x, to: y, w: w, depth: depth}
	b.streams = append(b.streams, s)
	return s
}

// begin replaces the loop.
func (b *bench) begin() {
	halt(b.e)
	moved := b.cost()
	b.e.first.clock.time = func() ib.Time {
		m := b.cost()
		d := m - moved
		moved = m
		return b.e.first.clock.now + 50 + d
	}
}

// cost returns the time of everything that was sent.
func (b *bench) cost() (c ib.Time) {
	for _, s := range b.streams {
		for _, q := range []*testQP{s.q, s.to} {
			n := q.c.s.QP(q.info.Handle).Transport().Counters()
			c += ib.Time(n.SentBytes/20) + ib.Time(n.SentPackets*20)
		}
	}
	return c + b.spent
}

// run makes passes until d is over.
func (b *bench) run(d time.Duration) {
	e := b.e
	for end := e.first.clock.now + ib.Time(d); e.first.clock.now < end; {
		for _, s := range b.streams {
			s.post()
			if bell := &clientOf(s.q.c.s).bell; !bell.active && bell.page.any.Load() != 0 {
				e.first.bells.activate(bell, e.first.clock.now) // as its eventfd would
			}
		}
		e.first.clock.read()
		if b.requests != nil {
			b.requests()
		}
		if !e.first.step() {
			e.first.clock.now += 1_000
			b.idle += 1_000
		}
	}
}

// within fails unless got is want, to so many percent.
func (b *bench) within(what string, got, want float64, percent float64) {
	b.t.Helper()
	if got < want*(1-percent/100) || got > want*(1+percent/100) {
		b.t.Errorf("%s: got %.4g, want %.4g ± %g %%", what, got, want, percent)
	}
}

// TestCaps: the loop enforces caps in both directions, of NIC and tenant, for WRITEs and READs, and nothing fails.
func TestCaps(t *testing.T) {
	const rate, burst = 100_000_000, 64 << 10
	caps := func(out, in uint64) schedule.Rate { return schedule.Rate{Out: out, In: in, Burst: burst} }
	for _, c := range []struct {
		name string
		op   uint32
		n    uint32
		nic  int // that is capped: 0 asks, 1 is asked
		rate schedule.Rate
	}{
		{"write/out", opWrite, 64 << 10, 0, caps(rate, 0)},
		{"write/in", opWrite, 64 << 10, 1, caps(0, rate)},
		{"write of 1 MiB/out", opWrite, 1 << 20, 0, caps(rate, 0)},
		{"write of 1 MiB/in", opWrite, 1 << 20, 1, caps(0, rate)},
		{"write of 64/out", opWrite, 64, 0, caps(rate/10, 0)},
		{"write of 64/in", opWrite, 64, 1, caps(0, rate/10)},
		{"read/out of who answers", opRead, 64 << 10, 1, caps(rate, 0)},
		{"read/in of who asks", opRead, 64 << 10, 0, caps(0, rate)},
		{"read of 1 MiB/out of who answers", opRead, 1 << 20, 1, caps(rate, 0)},
		{"read of 1 MiB/in of who asks", opRead, 1 << 20, 0, caps(0, rate)},
	} {
		for _, tenant := range []bool{false, true} {
			name := c.name
			if tenant {
				name += " of tenant"
			}
			t.Run(name, func(t *testing.T) {
				b := newBench(t, 4)
				s := b.stream(0, 1, 16, wr{op: c.op, n: c.n})
				other := b.stream(2, 3, 16, wr{op: opWrite, n: 64 << 10})
				b.begin()
				if tenant {
					b.e.SetTenant(b.nics[c.nic].Name, schedule.TenantParams{Rate: c.rate})
				} else {
					b.e.SetShare(b.nics[c.nic], b.nics[c.nic].Name, schedule.NICParams{Rate: c.rate})
				}
				b.run(20 * time.Millisecond) // a READ of 1 MiB completes only now and then
				before, others := b.moved(s), other.done
				b.run(50 * time.Millisecond)
				b.within("bytes", float64(b.moved(s)-before), float64(c.rate.Out+c.rate.In)/20, 2)
				if got := float64(other.done - others); got < 5e8 {
					t.Errorf("the other NICs moved %.4g bytes", got)
				}
				u := b.e.Usage(b.nics[c.nic])
				if u.Throttled+u.Held < ib.Time(30*time.Millisecond) {
					t.Errorf("%v of 70 ms were throttled", time.Duration(u.Throttled+u.Held))
				}
				// Without a cap it continues at once.
				b.e.SetTenant(b.nics[c.nic].Name, schedule.TenantParams{})
				b.e.SetShare(b.nics[c.nic], b.nics[c.nic].Name, schedule.NICParams{})
				before = b.moved(s)
				if b.run(10 * time.Millisecond); float64(b.moved(s)-before) < float64(c.rate.Out+c.rate.In)/50 {
					t.Errorf("without a cap: %d bytes in 10 ms", b.moved(s)-before)
				}
			})
		}
	}
}

// moved is the data that a stream has moved.
func (b *bench) moved(s *stream) uint64 {
	n := s.q.c.s.QP(s.q.info.Handle).Transport().Counters()
	return max(n.SentBytes, n.RcvdBytes)
}

// TestCapMessages: the same for caps in messages.
func TestCapMessages(t *testing.T) {
	for i, p := range []schedule.NICParams{{Rate: schedule.Rate{MessagesOut: 50_000}}, {Rate: schedule.Rate{MessagesIn: 50_000}}} {
		b := newBench(t, 2)
		s := b.stream(0, 1, 128, wr{op: opWrite, n: 8})
		b.begin()
		b.e.SetShare(b.nics[i], "t", p)
		b.run(10 * time.Millisecond)
		before := s.msgs
		b.run(100 * time.Millisecond)
		b.within("messages", float64(s.msgs-before), 5000, 2)
	}
}

// TestTenantShares: tenants get their shares of the loop's time, for any number of NICs, sessions and queue pairs, and
// any size of messages.
func TestTenantShares(t *testing.T) {
	b := newBench(t, 6)
	sizes := []uint32{64, 4 << 10, 1 << 20}
	for i, n := range sizes {
		for range 1 << (2 * i) {
			b.stream(2*i, 2*i+1, 64, wr{op: opWrite, n: n})
		}
	}
	b.begin()
	for i := range sizes {
		name := b.nics[2*i].Name
		b.e.SetShare(b.nics[2*i+1], name, schedule.NICParams{})
		b.e.SetTenant(name, schedule.TenantParams{Weight: 1 << i})
	}
	time := func() (times []ib.Time) {
		for i := range sizes {
			times = append(times, b.nics[2*i].Counters().LoopTime)
		}
		return times
	}
	b.run(10_000_000)
	before := time()
	b.run(50_000_000)
	sum := ib.Time(0)
	after := time()
	for i := range after {
		after[i] -= before[i]
		sum += after[i]
	}
	for i, d := range after {
		b.within("time of a tenant", float64(d), float64(sum)*float64(int(1)<<i)/7, 5)
	}
}

// TestLatencyNIC: a message of a NIC of class latency waits for one short turn of another.
func TestLatencyNIC(t *testing.T) {
	b := newBench(t, 4)
	s := b.stream(0, 1, 1, wr{op: opWrite, n: 64})
	b.stream(2, 3, 16, wr{op: opWrite, n: 1 << 20})
	b.begin()
	b.e.SetShare(b.nics[0], "t", schedule.NICParams{Class: schedule.Latency, Rate: schedule.Rate{Out: 1 << 30}})
	b.run(20 * time.Millisecond)
	d := b.nics[0].Counters().Delays
	slow := uint64(0)
	for i, n := range d {
		if d.Below(i) > 8<<10 {
			slow += n
		}
	}
	if s.msgs < 1000 || slow > s.msgs/100 {
		t.Errorf("%d of %d messages waited for 8 µs or more: %v", slow, s.msgs, d)
	}
}

// TestMisbehavingTenant: a tenant with very many queue pairs, and one with failing requests, leave others their share.
func TestMisbehavingTenant(t *testing.T) {
	b := newBench(t, 4)
	s := b.stream(0, 1, 16, wr{op: opWrite, n: 64 << 10})
	for range 8 {
		bad := b.stream(2, 3, 512, wr{op: opWrite, n: 1})
		for range 64 {
			x, y := bad.q.c.sized(64, bad.q.cq, bad.q.mr), bad.to.c.sized(64, bad.to.cq, bad.to.mr)
			connect(x, y)
			x.mr, y.mr = bad.q.mr, bad.to.mr
			w := bad.w
			w.flags = 0 // nobody looks, and nothing ends
			for range 32 {
				x.write(w)
			}
			x.ring()
		}
	}
	b.begin()
	b.run(10 * time.Millisecond)
	before, bad := b.nics[0].Counters().LoopTime, b.nics[2].Counters().LoopTime
	b.run(50 * time.Millisecond)
	mine, theirs := b.nics[0].Counters().LoopTime-before, b.nics[2].Counters().LoopTime-bad
	if mine < (mine+theirs)*45/100 {
		t.Errorf("has %v of loop time beside %v", mine, theirs)
	}
	if s.done == 0 {
		t.Error("nothing was sent")
	}
}

// TestCapFromElsewhere: a cap on incoming data applies to data from another host, and nothing fails.
func TestCapFromElsewhere(t *testing.T) {
	for _, c := range []struct {
		name  string
		op    uint32
		asker bool // the requester has the cap
	}{{"write", opWrite, false}, {"read", opRead, true}} {
		t.Run(c.name, func(t *testing.T) {
			a, b := overUDP(t)
			const rate, n, each = 20_000_000, 64, 64 << 10
			e := b.c.e
			if c.asker {
				e = a.c.e
			}
			e.Do(func() { e.SetShare(e.only(), "t", schedule.NICParams{Rate: schedule.Rate{In: rate}}) })
			begin := time.Now()
			for range n {
				a.post(wr{op: c.op, flags: signal, n: each, remote: b.c.base, rkey: b.mr.RKey})
			}
			for range n {
				if w := a.wait(); w.status != 0 {
					t.Fatalf("%+v", w)
				}
			}
			// On a busy machine it may take longer, but never less. READs may exceed the cap by what fits the window.
			least := time.Duration(n*each-2<<20) * time.Second / rate
			if took := time.Since(begin); took < least {
				t.Errorf("%d bytes took %v, want %v at least", n*each, took, least)
			} else {
				t.Logf("%d bytes took %v, at the cap it would be %v", n*each, took, n*each*time.Second/rate)
			}
		})
	}
}

// slowHandler takes so long for each request.
type slowHandler struct {
	b      *bench
	n      *nic.NIC
	takes  ib.Time
	served int
}

func (l *slowHandler) Serve() {
	l.b.e.Bill(l.n)
	l.b.spent += l.takes
	l.served++
}

func (l *slowHandler) Fail(err error) { l.b.t.Error(err) }

// TestCommandsInShare: requests count against the share of their tenant, and wait when it is used up. A tenant that
// sends commands all the time leaves others their share, and still gets its own turns. Without competition requests do
// not wait.
func TestCommandsInShare(t *testing.T) {
	b := newBench(t, 4)
	s := b.stream(0, 1, 64, wr{op: opWrite, n: 64 << 10})
	own := b.stream(2, 3, 64, wr{op: opWrite, n: 64 << 10})
	b.begin()
	l := &slowHandler{b: b, n: b.nics[2], takes: 8_000}
	const fd = 1 << 20 // nobody's
	b.e.first.handlers.of[fd] = watched{l, l.n}
	b.requests = func() {
		b.e.first.handlers.ready[0], b.e.first.handlers.at, b.e.first.handlers.n = readyHandler{fd: fd, handler: l}, 0, 1
		b.e.first.serveHandlers()
	}
	time := func(i int) ib.Time { return b.nics[i].Counters().LoopTime }
	b.run(10_000_000)
	mine, theirs, moved, moved2, served := time(0), time(2), s.done, own.done, l.served
	b.run(50_000_000)
	mine, theirs = time(0)-mine, time(2)-theirs
	b.within("time of a tenant beside one that makes commands", float64(mine), float64(mine+theirs)/2, 5)
	if s.done == moved || own.done == moved2 || l.served-served < 500 {
		t.Errorf("messages moved: %d, and %d of the tenant that made %d commands", s.done-moved, own.done-moved2, l.served-served)
	}
	s.depth = 0
	b.run(10_000_000) // what is posted
	served = l.served
	own.depth = 0
	if b.run(10_000_000); l.served-served < 1_000 {
		t.Errorf("%d commands of 8 µs in 10 ms that nobody else wanted", l.served-served)
	}
}
