package engine

import (
	"vrdma.dev/vrdma/internal/ib"
)

// On which processor a loop streams best depends on who else is there, and on how long a
// cache line takes from one processor to the other (near or far):
//
//	┌── CPU 0 ──┐ ┌──── CPU 1 ─────┐    fast where the processors are near, half as
//	│ loop here │ │ loop there,    │    fast where they are far
//	│           │ │ program        │
//	└───────────┘ └────────────────┘
//	┌── CPU 0 ──┐ ┌──── CPU 1 ─────┐    the same wherever they are: nothing has to be
//	│ program   │ │ loop here,     │    fetched, but the loops work in turns
//	│           │ │ loop there     │
//	└───────────┘ └────────────────┘
//
// The kernel knows neither, and takes a program that polls for one that works. A virtual
// machine's processors are near in one second and far in the next. So a loop that streams
// measures how much it moves in a time, the sample. Now and then, and when that falls, it tries
// another processor, stays if it moves more there, and else goes back. Every try that did not
// help makes the time until the next four times as long.
type placement struct {
	since    ib.Time // when the sample began
	moved    uint64  // bytes that had been moved by then
	fresh    bool    // the loop has just moved: the sample begins when that has settled
	tries    bool    // the sample is of a processor that is being tried
	rate     uint64  // bytes a millisecond on the processor that it stays on
	fell     uint32  // samples in a row that were much less than rate
	wait     uint32  // samples until the next try
	interval uint32  // least number of samples between two tries
	left     int     // the processor that the loop came from
}

const (
	// placementSample is how long a sample is. A stream of which nothing was seen for
	// twice as long is a new one.
	placementSample = ib.Time(3_000_000)
	// placementSettle is how long a move disturbs what is measured: caches are cold, and
	// the kernel makes room.
	placementSettle = ib.Time(500_000)
	// placementShortest is the least interval between two tries, in samples. After each
	// try that did not help it is four times as long, up to placementLongest: about a second.
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

// judge says what to do, given how many bytes have been moved in all until now.
func (p *placement) judge(now ib.Time, moved uint64) advice {
	passed := now - p.since
	switch {
	case p.since == 0 || passed > 2*placementSample:
		tried := p.tries
		*p = placement{since: now, moved: moved, interval: placementShortest, left: p.left}
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
		p.rate, p.fell, p.interval = rate, 0, placementShortest
	}
	p.tries, p.fresh = true, true
	return try
}

// compare ends a try; rate is that of the processor that was tried.
func (p *placement) compare(rate uint64) advice {
	p.tries = false
	if rate > p.rate+p.rate/8 {
		p.rate, p.interval = rate, placementShortest
		p.wait = p.next()
		return stay
	}
	p.interval = min(4*p.interval, placementLongest)
	p.wait = p.next()
	p.fresh = true
	return goBack
}

// next is how many samples to wait: the interval, or up to twice as many, at random, because
// two loops must not try together for ever. The microseconds are as good as random; the
// nanoseconds are not, where a clock counts in steps of 40 or 100 of them.
func (p *placement) next() uint32 { return p.interval + uint32(p.since/1000)%p.interval }

// place moves the loop to another CPU if it may work better there. It does so only within a
// one-sided stream: where programs work on both sides, all CPUs are busy and rates say little.
func (p *processor) place() {
	now := p.clock.now
	if p.opts.NoMove || !p.net.traffic.mode(now).streams() || !p.net.traffic.oneSided(now) {
		return
	}
	switch p.placement.judge(now, p.net.moved()) {
	case try:
		p.placement.left = leave()
	case goBack:
		goTo(p.placement.left)
	}
}
