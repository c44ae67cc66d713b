package engine

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// While a NIC of class latency is active, the loop has to look at its doorbell often. Turns of others
// are short then (schedule.Scheduler.Budget). Two things are not:
//
//   - Events, each of which wakes a program. Package nic keeps them until the end of the pass, and
//     the loop looks at doorbells after each: the first program may have answered already.
//   - Programs that wake up on the loop's CPU. Each preempts the loop until it sleeps again, for 10 or
//     20 µs, and the requests that it has posted wait as long. The kernel does not move the threads
//     even if another CPU is idle, because none of them runs for long. So the loop moves there.

// An eventSender sends the events that package nic keeps while a NIC of class latency is active.
type eventSender struct {
	clock  *clock
	bells  *doorbells
	sched  *scheduler
	proc   *processor
	shared *nic.Loop
}

// prepare decides for this pass whether events are kept and whether the loop leaves its CPU. It
// is called while a NIC has a cap or a class.
func (s *eventSender) prepare() {
	now := s.clock.now
	prompt := s.sched.nics.Prompt(now)
	s.shared.KeepEvents(prompt)
	if r := &s.proc.rivals; prompt && !s.proc.opts.NoMove && now-r.since >= contendedSample && r.look(now, switches()) {
		leave()
	}
}

// send sends kept events until a NIC of class latency rings: at least one.
func (s *eventSender) send() {
	if !s.sched.nics.Limited() {
		s.shared.KeepEvents(false) // the last NIC of class latency is gone
	}
	for s.shared.EventsKept() {
		before := s.clock.now
		if c := clientOf(s.shared.SendEvent()); c != nil {
			s.clock.worksFor(c.adapter)
			s.clock.read()
			s.sched.bill(&c.flow, s.clock.now-before)
		} else {
			s.clock.read()
		}
		if s.bells.promptRang(s.clock.now) {
			return
		}
	}
}

// rivals counts how often other threads preempt the loop while NICs of class latency are active.
type rivals struct {
	contention contention
	since      ib.Time // when the sample began; 0: never
	switches   int64   // how often the loop had lost its CPU by then
	yields     int64   // how often the loop has yielded
	yielded    int64   // yields when the sample began
}

// manyRivals is how often a loop may lose its CPU in contendedSample. Two programs that talk in turns
// preempt it about 30 times, other activity once or twice.
const manyRivals = 6

// look ends a sample, and reports whether to move to another CPU.
func (r *rivals) look(now ib.Time, switches int64) bool {
	lost := switches - r.switches - (r.yields - r.yielded)
	paused := now-r.since > 2*contendedSample
	if r.since, r.switches, r.yielded = now, switches, r.yields; paused {
		return false // class latency was not active all the time
	}
	return r.contention.judge(lost > manyRivals, now)
}
