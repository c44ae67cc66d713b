package engine

import (
	"vrdma.dev/vrdma/internal/ib"
)

// affinity finds the CPU on which a loop streams best. That depends on the other threads there, and
// on the time that a cache line takes from one CPU to the other (near or far):
//
//	┌── CPU 0 ──┐ ┌──── CPU 1 ─────┐    fast where the CPUs are near, half as fast
//	│ loop here │ │ loop there,    │    where they are far
//	│           │ │ program        │
//	└───────────┘ └────────────────┘
//	┌── CPU 0 ──┐ ┌──── CPU 1 ─────┐    independent of the distance: no cache line
//	│ program   │ │ loop here,     │    moves, but the loops work in turns
//	│           │ │ loop there     │
//	└───────────┘ └────────────────┘
//
// The kernel knows neither, and cannot tell a program that polls from one that works. The CPUs of a
// virtual machine are near in one second and far in the next. A loop that streams therefore measures
// its rate in samples. Now and then, and when the rate falls, it tries another CPU. It stays if the
// rate is higher there, and goes back otherwise. Each try that did not help makes the time until the
// next four times as long.
type affinity struct {
	since    ib.Time // when the sample began
	moved    uint64  // bytes moved by then
	fresh    bool    // the loop has just changed its CPU: the sample begins after affinitySettle
	tries    bool    // the sample is of a CPU that is being tried
	rate     uint64  // bytes per millisecond on the CPU that it stays on
	fell     uint32  // samples in a row with a much lower rate
	wait     uint32  // samples until the next try
	interval uint32  // least number of samples between two tries
	left     int     // the CPU that the loop came from
}

const (
	// affinitySample is the length of a sample. After a pause of twice that a stream is new.
	affinitySample = ib.Time(3_000_000)
	// affinitySettle is how long a move disturbs the measurement: caches are cold, and the kernel
	// moves other threads.
	affinitySettle = ib.Time(500_000)
	// affinityShortest is the shortest interval between two tries, in samples. It is four times as
	// long after each try that did not help, up to affinityLongest: about a second.
	affinityShortest = 5
	affinityLongest  = affinityShortest << 6
)

// advice is what a loop should do about its CPU.
type advice uint8

const (
	stay   advice = iota
	try           // move to another CPU
	goBack        // move back to the former one
)

// judge returns what to do; moved is the number of bytes moved in all until now.
func (p *affinity) judge(now ib.Time, moved uint64) advice {
	passed := now - p.since
	switch {
	case p.since == 0 || passed > 2*affinitySample:
		tried := p.tries
		*p = affinity{since: now, moved: moved, interval: affinityShortest, left: p.left}
		p.wait = p.next()
		if tried {
			return goBack
		}
		return stay
	case p.fresh && passed >= affinitySettle:
		p.fresh, p.since, p.moved = false, now, moved
		return stay
	case p.fresh || passed < affinitySample:
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
		p.rate, p.fell, p.interval = rate, 0, affinityShortest
	}
	p.tries, p.fresh = true, true
	return try
}

// compare ends a try; rate is that of the CPU that was tried.
func (p *affinity) compare(rate uint64) advice {
	p.tries = false
	if rate > p.rate+p.rate/8 {
		p.rate, p.interval = rate, affinityShortest
		p.wait = p.next()
		return stay
	}
	p.interval = min(4*p.interval, affinityLongest)
	p.wait = p.next()
	p.fresh = true
	return goBack
}

// next is how many samples to wait: the interval, or up to twice as many, at random, because two
// loops must not always try together. The microseconds are random enough. The nanoseconds are not:
// some clocks count in steps of 40 or 100.
func (p *affinity) next() uint32 { return p.interval + uint32(p.since/1000)%p.interval }

// chooseCPU moves the loop to another CPU if it may work better there. It does so only within a
// one-sided stream: where programs work on both sides, all CPUs are busy and rates say little.
func (p *processor) chooseCPU() {
	now := p.clock.now
	if p.opts.NoMove || !p.net.traffic.mode(now).streams() || !p.net.traffic.oneSided(now) {
		return
	}
	switch p.affinity.judge(now, p.net.moved()) {
	case try:
		p.affinity.left = leave()
	case goBack:
		goTo(p.affinity.left)
	}
}
