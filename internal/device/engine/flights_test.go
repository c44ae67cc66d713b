package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// inFlight is what the queue pairs of e have in flight, counted anew.
func inFlight(e *Engine) (f flights) {
	e.only().EachQP(func(q *nic.QP) {
		if t := q.Transport(); t.Path().Remote && t.InFlight() > 0 {
			f.busy++
			f.bytes += t.InFlight()
		}
	})
	return f
}

// TestFlightOfReset: a reset forgets what a queue pair had in flight, also if its timer then finds nothing to do and it
// is destroyed.
func TestFlightOfReset(t *testing.T) {
	as, bs := byHand(t, 1, Options{InFlight: 1 << 20})
	a, b := as[0], bs[0]
	e := a.c.e
	a.post(wr{op: opWrite, flags: signal, n: 100_000, remote: b.c.base, rkey: b.mr.RKey})
	a.pass(time.Microsecond)
	if e.first.net.flights.busy != 1 {
		t.Fatalf("in flight: %+v, want one queue pair", e.first.net.flights)
	}
	a.c.do(func() error { return a.c.s.ModifyQP(a.info.Handle, 1, &nic.QPAttr{State: uint8(ib.StateReset)}) })
	if e.first.net.flights != (flights{}) {
		t.Errorf("in flight after RESET: %+v", e.first.net.flights)
	}
	a.pass(2 * time.Second)
	a.c.do(func() error {
		_, err := a.c.s.DestroyQP(a.info.Handle)
		return err
	})
	a.pass(2 * time.Second)
	if e.first.net.flights != (flights{}) {
		t.Errorf("in flight after the end: %+v", e.first.net.flights)
	}
}

// TestFlightsAlwaysAddUp makes queue pairs send, and resets, fails, destroys and recreates them at random. The sum in
// flight always equals that of the queue pairs, and is 0 in the end.
func TestFlightsAlwaysAddUp(t *testing.T) {
	const pairs = 4
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	as, bs := byHand(t, pairs, Options{InFlight: 256 << 10})
	qs := [2][]*testQP{as, bs}
	state := func(q *testQP, s ib.State) {
		q.c.do(func() error { return q.c.s.ModifyQP(q.info.Handle, 1, &nic.QPAttr{State: uint8(s)}) })
	}
	first := [2]*testQP{as[0], bs[0]} // in protection domain 0
	for step := range 3000 {
		side, i := rng.IntN(2), rng.IntN(pairs)
		q, peer := qs[side][i], qs[1-side][i]
		switch op := rng.IntN(20); {
		case op < 7:
			if q.posted < 1000 {
				q.post(wr{op: opWrite, n: uint32(rng.IntN(200_000)), remote: peer.c.base, rkey: peer.mr.RKey})
			}
		case op < 9:
			if q.posted < 1000 {
				q.post(wr{op: opRead, n: uint32(rng.IntN(200_000)), remote: peer.c.base, rkey: peer.mr.RKey})
			}
		case op < 16:
			for range 1 + rng.IntN(8) {
				q.pass(time.Duration(rng.IntN(50_000)))
			}
		case op < 17:
			q.pass(time.Duration(rng.IntN(2_000_000_000)))
		case op < 18:
			state(q, ib.StateError)
		default:
			if op == 18 {
				state(q, ib.StateReset)
				if rng.IntN(2) == 0 {
					q.pass(2 * time.Second)
				}
			}
			q.c.do(func() error {
				_, err := q.c.s.DestroyQP(q.info.Handle)
				return err
			})
			state(peer, ib.StateReset)
			fresh := q.c.sized(1023, first[side].cq, first[side].mr)
			qs[side][i] = fresh
			peer.posted = shared(peer.sq.mem, 256).Load() // RESET dropped the rest
			connect(fresh, peer)
		}
		for _, c := range []*program{as[0].c, bs[0].c} {
			if got, want := c.e.first.net.flights, inFlight(c.e); got != want {
				t.Fatalf("step %d: in flight %+v, want %+v (seed %d)", step, got, want, seed)
			}
		}
	}
	for _, c := range []*program{as[0].c, bs[0].c} {
		c.e.Detach(c.s)
		c.s.Close()
		if c.e.first.net.flights != (flights{}) {
			t.Errorf("in flight after all: %+v (seed %d)", c.e.first.net.flights, seed)
		}
	}
}
