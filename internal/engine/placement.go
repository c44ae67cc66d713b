package engine

import (
	"vrdma/internal/ib"
)

// On which processor a loop streams best depends on who else is there, and on how far apart
// the processors are:
//
//	┌── CPU 0 ──┐ ┌──── CPU 1 ─────┐    fast where what one loop writes is near the
//	│ loop here │ │ loop there,    │    other; where it is far, half as fast
//	│           │ │ program        │
//	└───────────┘ └────────────────┘
//	┌── CPU 0 ──┐ ┌──── CPU 1 ─────┐    the other way round: nothing has to be fetched
//	│ program   │ │ loop here,     │    from afar, but the loops work in turns
//	│           │ │ loop there     │
//	└───────────┘ └────────────────┘
//
// The kernel knows neither, and takes a program that polls for one that works. A virtual
// machine's processors are near in one second and far in the next. So a loop that streams
// measures how much it moves where it is. Now and then, and when that falls, it tries another
// processor, stays if it moves more there, and else goes back. Every try that did not help
// makes the time until the next four times as long.
type placement struct {
	since ib.Time // when the time looked at began
	moved uint64  // bytes, at that time
	fresh bool    // it began with a move, whose effect has to pass first
	tries bool    // the loop is where it does not know yet
	rate  uint64  // bytes a millisecond where it was settled last
	fell  uint32  // how many times in a row it was much less
	wait  uint32  // so many times more until the next try
	hope  uint32  // how many were waited before the last one
	left  int     // the processor that the loop came from
}

const (
	// placementSample is the time looked at. A stream that pauses for longer is a new one.
	placementSample = ib.Time(3_000_000)
	// placementSettle is how long a move takes effect: caches are cold, and the kernel
	// makes room.
	placementSettle = ib.Time(500_000)
	// Between two tries are as many times as this and up to twice as many, four times as
	// many after each that did not help; in the end one to two seconds.
	placementShortest = 5
	placementLongest  = placementShortest << 6
)

// advice is what a loop should do about its place.
type advice uint8

const (
	stay   advice = iota
	try           // go to another processor
	goBack        // go back to the one before
)

// judge looks at what was moved until now.
func (p *placement) judge(now ib.Time, moved uint64) advice {
	passed := now - p.since
	switch {
	case p.since == 0 || passed > 2*placementSample:
		tried := p.tries
		*p = placement{since: now, moved: moved, hope: placementShortest, left: p.left}
		p.wait = p.next()
		if tried {
			return goBack
		}
		return stay
	case p.fresh && passed >= placementSettle:
		p.fresh, p.since, p.moved = false, now, moved
		return stay
	case p.fresh || passed < placementSample:
		return stay
	}
	rate := (moved - p.moved) * 1_000_000 / uint64(passed)
	p.since, p.moved = now, moved
	if p.tries {
		return p.compare(rate)
	}
	if rate < p.rate*5/8 {
		p.fell++
	} else {
		p.fell, p.rate = 0, rate
	}
	if p.wait--; p.wait > 0 && p.fell < 2 {
		return stay
	}
	if p.fell > 0 {
		p.rate, p.fell, p.hope = rate, 0, placementShortest
	}
	p.tries, p.fresh = true, true
	return try
}

// compare ends a try, during which the rate was this.
func (p *placement) compare(rate uint64) advice {
	p.tries = false
	if rate > p.rate+p.rate/8 {
		p.rate, p.hope = rate, placementShortest
		p.wait = p.next()
		return stay
	}
	p.hope = min(4*p.hope, placementLongest)
	p.wait = p.next()
	p.fresh = true
	return goBack
}

// next is when to try again: two loops must not try together for ever. The microseconds are
// as good as random; the nanoseconds are not, where a clock counts in steps of 40 or 100 of
// them.
func (p *placement) next() uint32 { return p.hope + uint32(p.since/1000)%p.hope }

// place goes to another processor if the loop may work better there. Only in the midst of a
// stream of which no program is told: where programs work on both sides, all processors are
// taken and rates say little.
func (e *Engine) place() {
	if e.opts.NoMove || !e.net.traffic.mode(e.now).streams() || !e.net.traffic.oneSided(e.now) {
		return
	}
	p := &e.placement
	switch p.judge(e.now, e.net.port.Moved()) {
	case try:
		p.left = leave()
	case goBack:
		goTo(p.left)
	}
}
