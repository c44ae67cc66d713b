package engine

import (
	"vrdma.dev/vrdma/internal/ib"
)

// contention decides whether the loop moves to another CPU because it gets its own back late.
//
// The kernel spreads runnable threads evenly, but cannot tell a program that polls from one that
// works. With a polling program, two working loops (of two daemons) and two CPUs it does this:
//
//	┌── CPU 0 ──┐ ┌─────── CPU 1 ────────┐
//	│ program   │ │ loop here, loop there │     even, but a quarter slower than one loop
//	└───────────┘ └───────────────────────┘     beside the program
//
// It is slower because a polling program yields its CPU at once and a working loop does not. A loop
// that yields and gets its CPU back late, again and again, therefore moves to another one. If that
// does not help it waits longer each time: the machine is fully loaded.
type contention struct {
	since ib.Time // when the sample began
	away  ib.Time // how much of it others had the CPU for long
	bad   uint32  // number of contended samples in a row
	need  uint32  // number of them that makes the loop move
	moves uint32  // moves that did not help
}

const (
	// longAway is the duration of a yield after which another thread has worked. A thread that only
	// polls once takes a few microseconds.
	longAway = ib.Time(50_000)
	// contendedSample is the length of a sample. It is contended if others had a quarter of it.
	contendedSample = ib.Time(1_000_000)
	// Between two moves there are contendedLeast to contendedLeast + contendedMask contended
	// samples. The number doubles after each move that did not help, contendedDoublings times at
	// most.
	contendedLeast     = 2
	contendedMask      = 3
	contendedDoublings = 8
)

// back notes that the loop yielded its CPU at left and got it back at now. It reports whether to move
// to another CPU.
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

// judge reports whether to move to another CPU, after a sample that was contended or not.
func (c *contention) judge(contended bool, now ib.Time) bool {
	if !contended {
		c.bad, c.need, c.moves = 0, 0, 0
		return false
	}
	if c.need == 0 {
		// Two contending loops must not move at the same time. The microseconds are random enough.
		// The nanoseconds are not: some clocks count in steps of 40 or 100.
		c.need = (contendedLeast + uint32(now/1000)&contendedMask) << c.moves
	}
	if c.bad++; c.bad < c.need {
		return false
	}
	c.bad, c.need, c.moves = 0, 0, min(c.moves+1, contendedDoublings)
	return true
}

// giveWay yields. Within a stream with another host the loop moves to another CPU if others keep
// this one too long. affinity.go handles one-sided streams (traffic.oneSided). In all other
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
