package engine

import (
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/ib"
)

// A road is a loop that streams at a rate, in bytes a microsecond, that depends on its processor.
type road struct {
	p     affinity
	now   ib.Time
	moved uint64
	at    int // processor
	left  int
	tries []ib.Time
}

// drive goes on for d.
func (r *road) drive(d ib.Time, rate func(cpu int) uint64) {
	const us = 1000
	for end := r.now + d; r.now < end; {
		r.now += 10 * us
		r.moved += 10 * rate(r.at)
		switch r.p.judge(r.now, r.moved) {
		case try:
			r.tries = append(r.tries, r.now)
			r.left, r.at = r.at, 1-r.at
		case goBack:
			r.at = r.left
		}
	}
}

// TestPlacement: a loop finds the better of two processors soon, comes back from the worse
// one, and notices when they change.
func TestPlacement(t *testing.T) {
	const ms = ib.Time(1_000_000)
	better := func(cpu int, by uint64) func(int) uint64 {
		return func(at int) uint64 {
			if at == cpu {
				return 1000 + by
			}
			return 1000
		}
	}
	r := &road{now: 1}
	r.drive(50*ms, better(1, 900))
	if r.at != 1 {
		t.Error("not at the better processor after 50 ms")
	}
	r.tries = nil
	r.drive(4000*ms, better(1, 900))
	if n := len(r.tries); n < 2 || n > 12 {
		t.Errorf("%d tries in 4 s at the better one, want few", n)
	}
	if r.at != 1 && !r.p.tries {
		t.Error("did not come back to the better processor")
	}
	r.drive(20*ms, better(1, 900)) // the end of a try
	r.drive(40*ms, better(0, 900))
	if r.at != 0 {
		t.Error("not at the other processor 40 ms after it became the better one")
	}
}

// TestPlacementAlike: where all processors are alike, attempts become rare.
func TestPlacementAlike(t *testing.T) {
	const ms = ib.Time(1_000_000)
	r := &road{now: 1}
	r.drive(10_000*ms, func(int) uint64 { return 1000 })
	if n := len(r.tries); n < 5 || n > 20 {
		t.Errorf("%d tries in 10 s, want some, ever more rarely", n)
	}
	if last := r.tries[len(r.tries)-1] - r.tries[len(r.tries)-2]; last < 900*ms {
		t.Errorf("%d ms between the last two tries, want a second or two", last/ms)
	}
}

// TestPlacementPause: a pause of the stream resets what is known of it, and a loop in an attempt goes back.
func TestPlacementPause(t *testing.T) {
	const ms = ib.Time(1_000_000)
	r := &road{now: 1}
	for !r.p.tries {
		r.drive(ms, func(int) uint64 { return 1000 })
	}
	r.now += 100 * ms
	r.drive(ms, func(int) uint64 { return 1000 })
	if r.at != 0 || r.p.tries {
		t.Errorf("at processor %d after a pause amid a try, still trying %v", r.at, r.p.tries)
	}
	r.tries = nil
	r.drive(3*affinityShortest*affinitySample, func(int) uint64 { return 1000 })
	if len(r.tries) == 0 {
		t.Error("no try in a new stream")
	}
}

// TestOneSided: a stream of WRITEs is one-sided: no program gets completions for it. A stream of SENDs is
// not, neither at the sender nor at the receiver.
func TestOneSided(t *testing.T) {
	as, bs := byHand(t, 1, Options{})
	a, b := as[0], bs[0]
	for _, c := range []struct {
		name string
		w    wr
		want bool
	}{
		{"WRITE", wr{op: opWrite, flags: signal, n: 3 * 4096, remote: b.c.base, rkey: b.mr.RKey}, true},
		{"SEND", wr{op: opSend, flags: signal, n: 3 * 4096}, false},
	} {
		b.recv(0, 4*4096)
		a.post(c.w)
		for range 3 {
			a.pass(time.Microsecond)
			b.pass(time.Microsecond)
		}
		for _, q := range []*testQP{a, b} {
			if got := q.c.e.first.net.traffic.oneSided(q.c.e.first.clock.now); got != c.want {
				t.Errorf("%s: one-sided %v, want %v", c.name, got, c.want)
			}
		}
	}
	for _, q := range []*testQP{a, b} {
		if q.c.e.first.clock.now += toldFor + 1; !q.c.e.first.net.traffic.oneSided(q.c.e.first.clock.now) {
			t.Error("long after a SEND, what streams is not one-sided")
		}
	}
}
