package engine

import (
	"testing"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/ib"
)

// seam does the work that tenants add to the loop for a message of t: t waits for a turn, gets it,
// and the turn is charged to its NIC. There are no caps. Work that the loop does without tenants, too,
// is included: queueing t and reading the clock.
func (e *Engine) seam(t *task) (moved bool) {
	t.schedule()
	e.first.clock.read()
	if due := e.first.sched.due(); due != 0 && due <= e.first.clock.now || e.first.sched.nics.Limited() || !e.first.sched.waiting() {
		return false
	}
	if e.first.sched.next(e.first.clock.now) != t {
		return false
	}
	e.first.clock.worksFor(t.adapter)
	e.first.clock.turn = true
	// Of a burst that is sent, and of one that arrives: of its acknowledgement as well.
	for range 2 {
		if e.first.sched.nics.Gated() || e.first.sched.nics.Limited() || t.adapter.nic.Guard() != nil {
			return false
		}
	}
	return true
}

// withoutSeam is the same work in a daemon with users and sessions only.
func (e *Engine) withoutSeam(t *task) (moved bool) {
	t.schedule()
	e.first.clock.now = e.first.clock.time()
	if due := e.first.sched.alarms.due(); due != 0 && due <= e.first.clock.now {
		return false
	}
	return e.first.sched.nextIn(e.first.sched.alone, e.first.clock.now) == t
}

// BenchmarkSeam measures what a message costs because tenants are possible, where none is declared. The difference
// should be at most 50 ns.
func BenchmarkSeam(b *testing.B) {
	e, t := alone(b)
	for _, c := range []struct {
		name string
		do   func(*task) bool
	}{{"with", e.seam}, {"without", e.withoutSeam}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !c.do(t) {
					b.Fatal("somebody is in the way")
				}
			}
		})
	}
}

// TestSeamDoesNotAllocate: the work of BenchmarkSeam allocates nothing.
func TestSeamDoesNotAllocate(t *testing.T) {
	e, task := alone(t)
	before := task.adapter.nic.Counters().LoopTime
	if n := testing.AllocsPerRun(1000, func() {
		if !e.seam(task) {
			t.Fatal("somebody is in the way")
		}
	}); n != 0 {
		t.Errorf("a message allocates %v times", n)
	}
	if after := task.adapter.nic.Counters().LoopTime; after == before {
		t.Error("nothing was counted")
	}
}

// alone is an engine that has ended, with one NIC, and a queue pair of it.
func alone(t testing.TB) (*Engine, *task) {
	q, _ := pair(t)
	e := q.c.e
	halt(e)
	now := e.first.clock.now
	e.first.clock.time = func() ib.Time { now++; return now }
	for e.first.sched.waiting() {
		e.first.sched.next(e.first.clock.now)
	}
	of := q.task()
	if e.first.sched.alone != &of.adapter.band {
		t.Fatal("the NIC is not alone")
	}
	return e, of
}

// TestWaits: a NIC that changes its class, and a removed one, leave their waiting times where they were counted.
func TestWaits(t *testing.T) {
	e, _, nics := twins(t, Options{}, address(1), address(2))
	check := func(what string, bulk, latency int) {
		t.Helper()
		b, l := e.Waits()
		if count(b) != bulk || count(l) != latency || b.Sum != ib.Time(bulk)*1000 || l.Sum != ib.Time(latency)*1000 {
			t.Errorf("%s: %d and %d requests waited for %v and %v; want %d and %d, of 1000 each", what, count(b), count(l), b.Sum, l.Sum, bulk, latency)
		}
	}
	latency := schedule.NICParams{Class: schedule.Latency, Rate: schedule.Rate{Out: 1e9}}
	halt(e)
	nics[0].Part().Waited(1000)
	check("one", 1, 0)
	e.SetShare(nics[0], "red", latency)
	check("after the change", 1, 0)
	nics[0].Part().Waited(1000)
	nics[1].Part().Waited(1000)
	check("two more", 2, 1)
	e.SetShare(nics[0], "red", schedule.NICParams{Class: schedule.Latency}) // bulk: it has no cap
	nics[0].Part().Waited(1000)
	check("without a cap", 3, 1)
	e.SetShare(nics[0], "red", latency)
	nics[0].Part().Waited(1000)
	check("again", 3, 2)
	e.Remove(nics[0])
	check("gone", 3, 2)
}

func count(w nic.Waits) (n int) {
	for _, c := range w.Delays {
		n += int(c)
	}
	return n
}
