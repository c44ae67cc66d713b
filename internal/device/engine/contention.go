package engine

import (
	"vrdma.dev/vrdma/internal/ib"
)

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
type contention struct {
	since ib.Time // when the time looked at began
	away  ib.Time // how much of it others had the processor for long
	bad   uint32  // how many such times in a row were contended
	need  uint32  // so many of them make the loop move
	moves uint32  // that did not help
}

const (
	// longAway is how long a yield takes after which somebody else has work to do. One
	// that only looks whether it has takes a few microseconds.
	longAway = ib.Time(50_000)
	// contendedSample is the time looked at. It is contended if others had a quarter of it.
	contendedSample = ib.Time(1_000_000)
	// Between two moves are between contendedLeast and contendedLeast + contendedMask contended times,
	// twice as many after each that did not help, up to contendedDoublings times.
	contendedLeast     = 2
	contendedMask      = 3
	contendedDoublings = 8
)

// back notes that the processor was given away at left and had again at now. It reports
// whether to go to another one.
func (c *contention) back(left, now ib.Time) bool {
	if d := now - left; d > longAway {
		c.away += d
	}
	passed := now - c.since
	if passed < contendedSample {
		return false
	}
	contended := c.away > passed/4
	c.since, c.away = now, 0
	return c.judge(contended, now)
}

// judge says, given whether the time that has just ended was contended, whether to go to another
// processor.
func (c *contention) judge(contended bool, now ib.Time) bool {
	if !contended {
		c.bad, c.need, c.moves = 0, 0, 0
		return false
	}
	if c.need == 0 {
		// Two loops that are in each other's way must not move together. The
		// microseconds are as good as random; the nanoseconds are not, where a
		// clock counts in steps of 40 or 100 of them.
		c.need = (contendedLeast + uint32(now/1000)&contendedMask) << c.moves
	}
	if c.bad++; c.bad < c.need {
		return false
	}
	c.bad, c.need, c.moves = 0, 0, min(c.moves+1, contendedDoublings)
	return true
}

// giveWay yields. Within a stream with another host the loop moves to another CPU if others keep
// this one too long. placement.go handles one-sided streams (traffic.oneSided). In all other
// cases the kernel chooses better than the loop would.
func (p *processor) giveWay() {
	p.rivals.yields++
	if p.opts.NoMove || !p.net.traffic.mode(p.clock.now).streams() || p.net.traffic.oneSided(p.clock.now) {
		yield()
		return
	}
	p.clock.read()
	left := p.clock.now
	yield()
	p.clock.read()
	if p.contention.back(left, p.clock.now) {
		leave()
	}
}
