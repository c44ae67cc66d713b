package engine

import (
	"testing"
	"time"
)

func TestRemedies(t *testing.T) {
	for _, c := range []struct {
		name string
		l    loads
		want remedy
	}{
		{"idle", loads{busy: []float64{0, 0}}, remedy{}},
		{"one busy, one idle", loads{busy: []float64{0.9, 0.1}}, remedy{from: 0, to: 1}},
		{"both busy", loads{busy: []float64{0.9, 0.8}}, remedy{}},
		{"little difference", loads{busy: []float64{0.9, 0.7}}, remedy{}},
		{"neither is full", loads{busy: []float64{0.6, 0.1}}, remedy{}},
		{"the last is busy", loads{busy: []float64{0.2, 0.1, 0.95}}, remedy{from: 2, to: 1}},
		{"auto, one busy, processors free", loads{busy: []float64{0.9}, free: 1, most: 4}, remedy{from: 0, to: 1, use: 2}},
		{"auto, one busy, no processor free", loads{busy: []float64{0.9}, free: 0.1, most: 4}, remedy{}},
		{"auto, all in use", loads{busy: []float64{0.9, 0.9}, free: 2, most: 2}, remedy{}},
		{"auto, one of two would do", loads{busy: []float64{0.2, 0.1}, free: 1, most: 4}, remedy{from: 1, to: 0, use: 1}},
		{"not auto: all stay in use", loads{busy: []float64{0.2, 0.1}, free: 1}, remedy{}},
	} {
		if got := c.l.advise(); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestParseIdle(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"cpu  1 2 3 900 90 6 7 8 9 10\ncpu0 1 2 3 400 50 6\ncpu1 1 2 3 100 20 6\ncpu2 1 2 3 400 20 6\nintr 5": 5700 * time.Millisecond,
		"cpu2 1 2 3 400 50 6\n":               0,
		"cpu  1 2 3 400 50 6\ncpu0 1 2 3 4\n": 0,
		"intr 1 2 3 4 5 6":                    0,
		"":                                    0,
		"cpu0 a b c d e f":                    0,
	} {
		if got, err := parseIdle([]byte(text), func(cpu int) bool { return cpu < 2 }); got != want || err == nil != (want != 0) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
}

// TestLoopWithStuckGroupStaysInUse: a loop stays in use until all its groups have moved away.
func TestLoopWithStuckGroupStaysInUse(t *testing.T) {
	e := severalLoops(t, 3)
	stuck, free := newClient(t, e), newClient(t, e)
	q := stuck.newQP(rc)
	waits := func(so bool) { e.Do(func() { q.task().waits = so }) }
	stuck.moveTo(2)
	free.moveTo(2)
	waits(true) // it cannot move
	defer waits(false)
	for _, c := range []struct {
		what                 string
		use, stuckOn, freeOn int
	}{{"one group cannot move", 3, 2, 0}, {"all can move", 2, 0, 0}} {
		e.Do(func() { e.loops.follow(remedy{from: 2, to: 0, use: 2}) })
		if use, k, n := int(e.loops.use.Load()), stuck.loop(), free.loop(); use != c.use || k != c.stuckOn || n != c.freeOn {
			t.Errorf("%s: %d loops are used, and the programs are on loops %d and %d, want %d, and %d and %d", c.what, use, k, n, c.use, c.stuckOn, c.freeOn)
		}
		waits(false)
	}
}

// TestAutoGrowsAndShrinks: with --loops auto one more loop is used each time that all are busy for balanceAfter looks and
// processors are free, and gets a group. After idleLooks looks with little work one less is used, and its groups come to
// the first loop. Looks with another result begin the count again.
func TestAutoGrowsAndShrinks(t *testing.T) {
	const loops, groups = 3, 4
	e := severalLoops(t, loops)
	e.Do(func() { e.loops.use.Store(1) }) // as with Auto, but nobody looks beside the test
	var pairs [groups][2]*testQP
	for i := range pairs {
		a, b := newClient(t, e).newQP(rc), newClient(t, e).newQP(rc)
		connect(a, b)
		pairs[i] = [2]*testQP{a, b}
	}
	work := func() {
		for _, p := range pairs {
			bounce(t, p[0], p[1], 2)
		}
	}
	count := func() (of [loops]int) {
		for _, p := range pairs {
			k, n := p[0].c.loop(), p[1].c.loop()
			if k != n {
				t.Fatalf("connected programs are on loops %d and %d", k, n)
			}
			of[k]++
		}
		return of
	}
	b := &balancer{loops: e.loops}
	// looks looks n times, and the number of loops in use changes after the last.
	looks := func(n int, busy, free float64, want int) {
		t.Helper()
		use := int(e.loops.use.Load())
		for i := range n {
			if now := int(e.loops.use.Load()); now != use {
				t.Fatalf("%d loops are used after %d looks, want %d until %d", now, i, use, n)
			}
			l := loads{free: free, most: loops}
			for range use {
				l.busy = append(l.busy, busy)
			}
			b.judge(l)
		}
		if now := int(e.loops.use.Load()); now != want {
			t.Fatalf("%d loops are used, want %d", now, want)
		}
	}
	work()
	looks(10*balanceAfter, 1, 0, 1) // no processor is free
	looks(balanceAfter-1, 1, 1, 1)
	looks(1, 0.5, 1, 1) // the count begins again
	if of := count(); of != [loops]int{groups} {
		t.Errorf("groups of the loops: %d", of)
	}
	for use := 2; use <= loops; use++ {
		work()
		looks(balanceAfter, 1, 1, use)
		if of := count(); of[use-1] == 0 || of[0] == 0 {
			t.Errorf("groups of the loops: %d", of)
		}
	}
	work()
	looks(10*balanceAfter, 1, 1, loops) // there are no more
	looks(idleLooks-1, 0, 1, loops)
	looks(1, 0.5, 1, loops)
	for use := loops - 1; use > 0; use-- {
		looks(idleLooks, 0, 1, use)
		for loop, n := range count() {
			if loop >= use && n > 0 {
				t.Errorf("%d groups are on loop %d, which is not used", n, loop)
			}
		}
	}
	looks(2*idleLooks, 0, 1, 1)
	work()
}
