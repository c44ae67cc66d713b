package engine

import "vrdma.dev/vrdma/internal/device/nic"

// waits are how long requests have waited for their turns, by the class of the NIC. Each NIC
// counts its own (nic.Part.Waited). waits has the counts of removed NICs, and of NICs that have
// changed their class. Waits adds the others.
type waits struct{ bulk, latency nic.Waits }

// of returns the counts of a NIC's class.
func (w *waits) of(b *band) *nic.Waits {
	if b.nic.Latency() {
		return &w.latency
	}
	return &w.bulk
}

// settle adds what a NIC has counted until now to a class that it leaves.
func (a *adapter) settle(class *nic.Waits) {
	now := a.part.Waits()
	class.Add(&now, a.band.settled)
	a.band.settled = &now
}

// Waits returns how long requests of NICs of both classes have waited for their turns. It runs on
// the loop.
func (e *Engine) Waits() (bulk, latency nic.Waits) {
	sum := e.first.removedWaits()
	for _, l := range e.loops.heldLoops() {
		for n, a := range l.adapters.of {
			now := a.part.Waits()
			sum.of(&e.first.adapters.of[n].band).Add(&now, a.band.settled)
		}
	}
	return sum.bulk, sum.latency
}

// removedWaits returns the counts of removed NICs, and of NICs that have changed their class, of all loops.
func (e *loop) removedWaits() waits {
	sum := e.sched.waited
	for _, o := range e.loops.others {
		sum.bulk.Add(&o.sched.waited.bulk, nil)
		sum.latency.Add(&o.sched.waited.latency, nil)
	}
	return sum
}
