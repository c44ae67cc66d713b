package engine

import "vrdma/internal/transport"

// The kernel spreads those who want a processor evenly, but takes a program that polls for
// one that works. Where it polls and two loops work, and there are two processors,
//
//	┌── CPU 0 ──┐ ┌─────── CPU 1 ────────┐
//	│ program   │ │ loop here, loop there │     that is even, and a quarter slower
//	└───────────┘ └───────────────────────┘     than either loop beside the program
//
// because a program that finds nothing gives the processor back at once and a loop does not.
// So a loop that yields and gets its processor back late, again and again, goes to another
// one. If that is no better it waits longer each time: the machine is full.
type crowd struct {
	since transport.Time // when the time looked at began
	away  transport.Time // how much of it others had the processor for long
	bad   uint32         // how many such times in a row were crowded
	need  uint32         // so many of them make the loop move
	moves uint32         // that did not help
}

const (
	// longAway is how long a yield takes after which somebody else has work to do. One
	// that only looks whether it has takes a few microseconds.
	longAway = transport.Time(50_000)
	// crowdSample is the time looked at. It is crowded if others had a quarter of it.
	crowdSample = transport.Time(1_000_000)
	// Between two moves are between crowdLeast and crowdLeast + crowdMask crowded times,
	// twice as many after each that did not help, up to crowdDoublings times.
	crowdLeast     = 2
	crowdMask      = 3
	crowdDoublings = 8
)

// back notes that the processor was given away at left and had again at now. It reports
// whether to go to another one.
func (c *crowd) back(left, now transport.Time) bool {
	if d := now - left; d > longAway {
		c.away += d
	}
	passed := now - c.since
	if passed < crowdSample {
		return false
	}
	crowded := c.away > passed/4
	c.since, c.away = now, 0
	if !crowded {
		c.bad, c.need, c.moves = 0, 0, 0
		return false
	}
	if c.need == 0 {
		// Two loops that are in each other's way must not move together. The
		// microseconds are as good as random; the nanoseconds are not, where a
		// clock counts in steps of 40 or 100 of them.
		c.need = (crowdLeast + uint32(now/1000)&crowdMask) << c.moves
	}
	if c.bad++; c.bad < c.need {
		return false
	}
	c.bad, c.need, c.moves = 0, 0, min(c.moves+1, crowdDoublings)
	return true
}

// giveWay lets others run. In the midst of a stream with another host it goes to another
// processor if they keep this one too long; elsewhere the kernel finds better places than it
// would.
func (e *Engine) giveWay() {
	if e.opts.NoMove || !e.traffic.mode(e.now).streams() {
		yield()
		return
	}
	e.clock()
	left := e.now
	yield()
	e.clock()
	if e.crowd.back(left, e.now) {
		move()
	}
}
