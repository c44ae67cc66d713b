package engine

import (
	"testing"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/ib"
)

// answering is a sink of events whose program rings a doorbell when it is woken.
type answering struct {
	woken int
	rings func()
}

func (a *answering) Post([16]byte, int) bool {
	a.woken++
	if a.rings != nil {
		a.rings()
	}
	return true
}
func (a *answering) Withdraw() (e [16]byte, n int) { return e, 0 }
func (a *answering) HangupFd() int                 { return -1 }
func (a *answering) Close()                        {}

// TestEventsBesideLatency: while a NIC of class latency is active the loop looks at its doorbell after
// each event that it sends. A program that has rung it is served before the next event is sent.
func TestEventsBesideLatency(t *testing.T) {
	b := newBench(t, 4)
	lat, bulk := b.stream(0, 1, 1, wr{op: opWrite, n: 64}), b.stream(2, 3, 16, wr{op: opWrite, n: 64 << 10})
	var sinks [3]answering
	var qps [3]*testQP
	c := bulk.q.c
	for i := range sinks {
		var cq nic.CQInfo
		c.do(func() error {
			ch, err := c.s.CreateChannel(func() (nic.EventSink, error) { return &sinks[i], nil })
			if err != nil {
				return err
			}
			cq, err = c.s.CreateCQ(nic.CQParams{CQE: 4, Channel: int32(ch)})
			return err
		})
		qps[i] = c.sized(4, cq, bulk.q.mr)
		connect(qps[i], qps[i])
	}
	b.begin()
	b.e.SetShare(b.nics[0], "t", schedule.NICParams{Class: schedule.Latency, Rate: schedule.Rate{Out: 1 << 30}})
	b.run(1_000_000)
	e := b.e
	if !e.first.sched.nics.Prompt(e.first.clock.now) {
		t.Fatal("the NIC of class latency is not active")
	}
	e.first.clock.read()
	e.first.events.prepare()
	for _, q := range qps {
		if err := c.s.ReqNotify(q.cq.Handle, false); err != nil {
			t.Fatal(err)
		}
		q.post(wr{op: opWrite, n: 8, flags: signal, remote: c.base, rkey: bulk.q.mr.RKey})
		q.task().turn(64)
	}
	if sinks[0].woken+sinks[1].woken+sinks[2].woken != 0 || !e.first.shared.EventsKept() {
		t.Fatal("events are sent at once")
	}
	sinks[0].rings = lat.q.ring
	e.first.events.send()
	if sinks[0].woken != 1 || sinks[1].woken != 0 {
		t.Errorf("%d and %d events were sent, want 1 and 0: the NIC of class latency has rung", sinks[0].woken, sinks[1].woken)
	}
	e.first.clock.read()
	e.first.step()
	if sinks[1].woken != 1 || sinks[2].woken != 1 || e.first.shared.EventsKept() {
		t.Errorf("%d and %d events were sent in the next pass, want 1 and 1", sinks[1].woken, sinks[2].woken)
	}
}

// TestRivals: a loop that loses its processor again and again while class latency is active goes to
// another one; one that is alone, or gives it away itself, stays.
func TestRivals(t *testing.T) {
	const ms = ib.Time(1_000_000)
	for _, c := range []struct {
		name         string
		lost, yields int64
		moves        bool
	}{
		{"alone", 1, 0, false},
		{"with programs that are woken", 30, 0, true},
		{"yields itself", 30, 30, false},
	} {
		var r rivals
		r.look(1, 0)
		moved := false
		for i := ib.Time(1); i < 20; i++ {
			r.yields += c.yields
			moved = r.look(1+i*ms, int64(i)*c.lost) || moved
		}
		if moved != c.moves {
			t.Errorf("%s: moves %v, want %v", c.name, moved, c.moves)
		}
	}
	var r rivals
	for i := range ib.Time(20) {
		if r.look(1+i*3*ms, int64(i)*30) {
			t.Error("moves although it was active only now and then")
		}
	}
}
