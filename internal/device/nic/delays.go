package nic

import (
	"math/bits"

	"vrdma.dev/vrdma/internal/ib"
)

// Delays counts how long requests waited from the doorbell to the beginning of the turn that
// serves them, four counts for each doubling from 1 µs on:
//
//	below  256  512  768 ns  1.0  1.3  1.5  1.8  2.0  2.6  3.1 µs … 59 ms; and more
//
// The doorbell is taken to have rung right after it was looked at last, so they are upper
// bounds.
type Delays [68]uint64

const (
	delayUnit = 8 // bits: 256 ns
	delayFine = 4 // counts for each doubling
)

// add counts a request that waited for t.
func (d *Delays) add(t ib.Time) {
	x := uint64(t) >> delayUnit
	if x >= delayFine {
		o := bits.Len64(x) - 3
		x = uint64(o*delayFine) + x>>o
	}
	d[min(x, uint64(len(d)-1))]++
}

// Below is the bound of count i: those it has waited for less.
func (d *Delays) Below(i int) ib.Time {
	if i < delayFine {
		return ib.Time(i+1) << delayUnit
	}
	o := i/delayFine - 1
	return ib.Time(i-delayFine*o+1) << o << delayUnit
}

// Waits are delays, and how long all of them were together.
type Waits struct {
	Delays Delays
	Sum    ib.Time
}

// Count counts a request that waited for t.
func (w *Waits) Count(t ib.Time) {
	w.Delays.add(t)
	w.Sum += t
}

// Add adds o, less what of it is in w already; nil: nothing is.
func (w *Waits) Add(o, in *Waits) {
	if in == nil {
		in = &Waits{}
	}
	for i := range w.Delays {
		w.Delays[i] += o.Delays[i] - in.Delays[i]
	}
	w.Sum += o.Sum - in.Sum
}

// Waited counts a request of the NIC that waited for t from its doorbell to its turn. It runs on the loop.
func (p *Part) Waited(t ib.Time) { p.waits.Count(t) }

// Waits are what Waited has counted.
func (p *Part) Waits() Waits { return p.waits }
