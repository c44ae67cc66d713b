package engine

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// While a NIC of class latency is active, what keeps the loop from the next look at its doorbell
// has to be short. Turns of others are (schedule.Scheduler.Budget). Two things are not:
//
//   - Events, of which each wakes a program. They are kept until the end of the pass, and the
//     loop looks at the doorbells after each: who was woken first may have answered.
//   - Programs that are woken on the loop's processor. Each takes it away from the loop until it
//     sleeps again, 10 or 20 µs, and what it has posted waits as long. The kernel leaves it at
//     that also where another processor has nothing to do, because nobody runs for long. So the
//     loop goes there.

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

// rivals are others that run on the loop's processor while class latency is active.
type rivals struct {
	contention contention
	since      ib.Time // when the time looked at began; 0: never
	switches   int64   // how often the loop had lost its processor by then
	yields     int64   // how often it has given it away, and
	yielded    int64   // how often it had by then
}

// manyRivals is how often a loop may lose its processor in contendedSample. Two programs that talk in
// turns take it away some 30 times, what else a machine does takes it once or twice.
const manyRivals = 6

// look notes how often the loop has lost its processor until now, and reports whether to go to another.
func (r *rivals) look(now ib.Time, switches int64) bool {
	lost := switches - r.switches - (r.yields - r.yielded)
	paused := now-r.since > 2*contendedSample
	if r.since, r.switches, r.yielded = now, switches, r.yields; paused {
		return false // class latency was not active all the time
	}
	return r.contention.judge(lost > manyRivals, now)
}
