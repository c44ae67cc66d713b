package engine

import "vrdma/internal/transport"

// The kernel spreads those who want a processor evenly, but takes a program that polls for
// one that works. Where it polls and two loops work, and there are two processors,
//
//	┌── CPU 0 ──┐ ┌─────── CPU 1 ────────┐
//	│ program   │ │ loop here, loop there │     that is even, and half as fast as
//	└───────────┘ └───────────────────────┘     either loop beside the program
//
// because a program that finds nothing gives the processor back at once and a loop does not.
// So a loop that yields and gets its processor back late, again and again, goes to another
// one. If that is no better it stays there for longer each time: the machine is full.
type crowd struct {
	since  transport.Time // when the time looked at began
	away   transport.Time // how much of it others had the processor for long
	window transport.Time // how long it is
}

const (
	// longAway is how long a yield takes after which somebody else has work to do. One
	// that only looks whether it has takes a few microseconds.
	longAway = transport.Time(50_000)
	// crowdWindow and crowdMost are the least and the most time between two moves.
	crowdWindow = transport.Time(3_000_000)
	crowdMost   = transport.Time(1_000_000_000)
)

// back notes that the processor was given away at left and had again at now. It reports
// whether to go to another one.
func (c *crowd) back(left, now transport.Time) bool {
	if d := now - left; d > longAway {
		c.away += d
	}
	if c.window == 0 {
		c.begin(now, crowdWindow)
		return false
	}
	passed := now - c.since
	if passed < c.window {
		return false
	}
	crowded := c.away > passed/4
	next := crowdWindow
	if crowded {
		next = min(2*c.window, crowdMost)
	}
	c.begin(now, next)
	return crowded
}

// begin looks at the time from now on, for as long as window and up to half as much again:
// two loops that are in each other's way must not move together, and the last digits of the
// time are as good as random.
func (c *crowd) begin(now, window transport.Time) {
	c.since, c.away = now, 0
	c.window = window + window/2*(now&0xff)/0x100
}

// giveWay lets others run, and goes to another processor if they keep this one too long.
func (e *Engine) giveWay() {
	e.clock()
	left := e.now
	yield()
	e.clock()
	if e.crowd.back(left, e.now) {
		move()
	}
}
