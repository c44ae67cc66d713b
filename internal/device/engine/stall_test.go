package engine

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// reachable makes c's memory reachable aside, from the next queue pair on.
func (c *program) reachable() {
	c.space.SetForeign(&far{c: c})
}

// blame marks two queue pairs as a stall would, and forgive ends all marks.
func blame(a, b *testQP) {
	e := a.c.e
	e.Do(func() { e.first.shared.Blame(a.task().q, b.task().q, e.first.clock.now) })
}

func forgive(e *Engine) {
	e.Do(func() { e.first.shared.ReviewAside(e.first.clock.now + 2*3600e9) })
}

// TestAside: all operations, between memory of every kind, while queue pairs are marked in the middle of their work and
// the marks end.
func TestAside(t *testing.T) {
	kinds := map[string]func(*program){"mapped": (*program).reachable, "mixed": func(c *program) { c.mixed() }}
	for from, makeA := range kinds {
		for to, makeB := range kinds {
			for _, users := range []int{1, 2} {
				t.Run(fmt.Sprintf("%s to %s, users %d", from, to, users), func(t *testing.T) {
					e := foreignEngine(t, 60_000_000_000)
					ca, cb := newClientOf(t, e, 1), newClientOf(t, e, users)
					makeA(ca)
					makeB(cb)
					a, b := ca.newQP(rc), cb.newQP(rc)
					connect(a, b)
					stop := toggle(a, b)
					exchange(t, a, b)
					pipelined(t, a, b)
					atomics(t, a, b)
					stop()
					blame(a, b)
					exchange(t, a, b)
					pipelined(t, a, b)
					atomics(t, a, b)
				})
			}
		}
	}
}

// toggle marks both queue pairs and ends the marks, again and again.
func toggle(a, b *testQP) (stop func()) {
	var wg sync.WaitGroup
	end := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				blame(a, b)
				time.Sleep(100 * time.Microsecond)
				forgive(a.c.e)
				time.Sleep(100 * time.Microsecond)
			}
		}
	})
	return func() {
		close(end)
		wg.Wait()
	}
}

// TestAsideRemote is TestAside between two hosts.
func TestAsideRemote(t *testing.T) {
	for name, prepare := range map[string]func(*program){"mapped": (*program).reachable, "mixed": func(c *program) { c.mixed() }} {
		t.Run(name, func(t *testing.T) {
			a, b := twoHosts(t, prepare)
			for _, q := range []*testQP{a, b} {
				q.timeout = 19
				q.c.e.Do(func() { q.c.e.only().Config.Patience = 60_000_000_000 })
			}
			connect(a, b)
			ends := []func(){toggle(a, a), toggle(b, b)}
			exchange(t, a, b)
			pipelined(t, a, b)
			atomics(t, a, b)
			for _, end := range ends {
				end()
			}
		})
	}
}

// TestAsideAtomics: marked and unmarked queue pairs count in the same word, and no count is lost.
func TestAsideAtomics(t *testing.T) {
	e := newEngine(t)
	ca, cb := newClientOf(t, e, 1), newClientOf(t, e, 2)
	ca.reachable()
	cb.reachable()
	var from, to []*testQP
	for range 2 {
		from, to = append(from, ca.newQP(rc)), append(to, cb.newQP(rc))
	}
	for i := range from {
		connect(from[i], to[i])
	}
	blame(from[0], to[0])
	if to[1].task().q.Aside() {
		t.Fatal("a connection is marked that had no part in it")
	}
	const adds = 500
	for range adds {
		for i := range from {
			from[i].writeAtomic(wr{op: uint32(transport.WRFetchAdd), flags: signal, off: 128, n: 8, remote: cb.base + 4096, rkey: to[i].mr.RKey}, 1, 0)
		}
	}
	for i := range from {
		from[i].ring()
	}
	for range adds {
		for i := range from {
			if w := from[i].wait(); w.status != 0 {
				t.Fatalf("%+v", w)
			}
		}
	}
	if v := shared(cb.mem, 4096).Load(); v != 2*adds {
		t.Errorf("counted to %d, want %d", v, 2*adds)
	}
}

// TestBlame: which queue pairs are marked, and for how long.
func TestBlame(t *testing.T) {
	e := newEngine(t)
	mine, also, other := newClientOf(t, e, 1), newClientOf(t, e, 1), newClientOf(t, e, 2)
	lone := newClientOf(t, e, 3) // its memory cannot be reached aside
	for _, c := range []*program{mine, also, other} {
		c.reachable()
	}
	a, b, c, l := mine.newQP(rc), also.newQP(rc), other.newQP(rc), lone.newQP(rc)
	marked := func(q *testQP) (is bool) {
		e.Do(func() { is = q.task().q.Aside() })
		return is
	}
	expect := func(when string, want ...bool) {
		t.Helper()
		for i, q := range []*testQP{a, b, c, l} {
			if marked(q) != want[i] {
				t.Errorf("%s: queue pair %d is marked: %v, want %v", when, i, !want[i], want[i])
			}
		}
	}
	blame(a, c)
	expect("between users", true, false, true, false)
	forgive(e)
	expect("after it", false, false, false, false)
	blame(a, a)
	expect("within a user", true, true, false, false)
	late := newClientOf(t, e, 1)
	late.reachable()
	if !marked(late.newQP(rc)) {
		t.Error("a new process of the user is not marked")
	}
	e.Do(func() {
		for _, r := range also.s.Status().Regions {
			if r.Usage.Own != 0 || r.Usage.Foreign != clientMemory || r.Usage.Why != 1<<10 {
				t.Errorf("status says %+v", r.Usage)
			}
		}
	})
	forgive(e)
	expect("after that", false, false, false, false)

	var lasts []ib.Time
	var fails int
	e.Do(func() {
		for range 4 {
			lasts = append(lasts, e.first.shared.Blame(a.task().q, nil, e.first.clock.now).Lasts)
		}
		for range 3 {
			fails += len(e.first.shared.Blame(l.task().q, nil, e.first.clock.now).Fail)
		}
	})
	for i, want := range []ib.Time{1200e9, 2400e9, 3600e9, 3600e9} {
		if lasts[i] != want {
			t.Errorf("mark %d lasts %d, want %d", i+2, lasts[i], want)
		}
	}
	expect("memory that cannot be reached aside", true, true, false, false)
	if fails != 1 {
		t.Errorf("%d of 3 stalls make the queue pair fail, want the last", fails)
	}
	e.Do(l.task().q.Fail)
	if s := l.task().q.Transport().State(); s != ib.StateReset {
		t.Errorf("a queue pair in RESET is in state %v now", s)
	}
	connect(l, l)
	e.Do(l.task().q.Fail)
	if s := l.task().q.Transport().State(); s != ib.StateError {
		t.Errorf("state %v, want the error state", s)
	}
}

// TestStallSeen: the loop attributes a stall to the queue pairs whose memory it touched.
func TestStallSeen(t *testing.T) {
	e := newEngine(t)
	ca, cb := newClientOf(t, e, 1), newClientOf(t, e, 2)
	ca.reachable()
	cb.reachable()
	a, b := ca.newQP(rc), cb.newQP(rc)
	connect(a, b)
	aside := func() (x, y bool) {
		e.Do(func() { x, y = a.task().q.Aside(), b.task().q.Aside() })
		return x, y
	}
	// Seen before a turn, it has nothing to do with the turn.
	e.first.stall.seen.Store(true)
	bounce(t, a, b, 1)
	if x, y := aside(); x || y {
		t.Errorf("marked %v and %v though the stall was before", x, y)
	}
	e.Do(func() {
		e.first.stall.turn = a.task()
		e.first.stall.seen.Store(true)
		e.first.stall.blame(b.task())
		e.first.stall.turn = nil
	})
	if x, y := aside(); !x || !y {
		t.Errorf("marked %v and %v, want both", x, y)
	}
	bounce(t, a, b, 10)
	// Memory that is reached aside was not touched: the next stall belongs to no queue pair.
	e.Do(func() {
		e.first.stall.turn = a.task()
		e.first.stall.seen.Store(true)
		e.first.stall.blame(b.task())
		e.first.stall.turn = nil
	})
	if n := e.Stalls(); n != 3 {
		t.Errorf("%d stalls counted, want 3", n)
	}
	var whole int
	e.Do(func() {
		for _, c := range []*program{ca, cb} {
			whole += int(c.s.Status().Usage.Foreign)
		}
	})
	if whole != 0 {
		t.Error("a user is marked as a whole, though two users had a part in it")
	}
}

// TestLookout: the watcher's verdict on sampled states of a thread.
func TestLookout(t *testing.T) {
	type look struct {
		progress uint32
		state    byte
		ticks    uint64
	}
	tests := map[string]struct {
		looks []look
		want  int // which look finds a stall; -1: none does
	}{
		"busy":               {[]look{{1, 'R', 0}, {2, 'R', 9}, {3, 'D', 20}, {4, 'D', 30}}, -1},
		"preempted":          {[]look{{1, 'R', 0}, {1, 'R', 0}, {1, 'R', 1}, {1, 'R', 1}, {1, 'S', 1}}, -1},
		"asleep for short":   {[]look{{1, 'R', 0}, {1, 'D', 0}, {2, 'D', 0}, {2, 'R', 0}}, -1},
		"asleep":             {[]look{{1, 'R', 0}, {1, 'R', 0}, {1, 'D', 0}, {1, 'D', 0}, {1, 'D', 0}}, 3},
		"clears a huge page": {[]look{{1, 'R', 0}, {1, 'R', 5}, {1, 'R', 6}, {1, 'R', 8}, {1, 'R', 9}}, 3},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var l lookout
			found := []int{}
			for i, k := range test.looks {
				if !l.fresh(k.progress, int64(i+1)) && l.judge(k.state, k.ticks) {
					found = append(found, i)
				}
			}
			if test.want < 0 && len(found) > 0 || test.want >= 0 && (len(found) != 1 || found[0] != test.want) {
				t.Errorf("found at %v, want %d", found, test.want)
			}
		})
	}
}

// TestThreadState asks for our own threads.
func TestThreadState(t *testing.T) {
	e := newEngine(t)
	e.Do(func() {})
	for _, tid := range []int32{threadID(), e.first.stall.tid.Load()} {
		if state, _, ok := threadState(tid); !ok || !strings.ContainsRune("RSD", rune(state)) {
			t.Errorf("thread %d: state %q, %v", tid, state, ok)
		}
	}
	if state, ticks, ok := parseStat([]byte("7 (a) Z 1 (b) D 1 2 3 4 5 6 7 8 9 10 11 12 13 14")); !ok || state != 'D' || ticks != 12 {
		t.Errorf("%q, %d, %v", state, ticks, ok)
	}
}

// The watcher samples while programs work: it allocates nothing either.
func TestThreadStateDoesNotAllocate(t *testing.T) {
	tid := threadID()
	if n := testing.AllocsPerRun(100, func() { threadState(tid) }); n > 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
