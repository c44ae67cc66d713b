package engine

import "vrdma.dev/vrdma/internal/device/nic"

// waits are how long requests have waited for their turns, by the class of the NIC. Each NIC
// counts its own (nic.NIC.Waited). waits has the counts of removed NICs, and of NICs that have
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
	now := a.nic.Waits()
	class.Add(&now, a.band.settled)
	a.band.settled = &now
}

// Waits returns how long requests of NICs of both classes have waited for their turns. It runs on
// the loop.
func (e *Engine) Waits() (bulk, latency nic.Waits) {
	sum := e.sched.waited
	for n, a := range e.adapters.of {
		now := n.Waits()
		sum.of(&a.band).Add(&now, a.band.settled)
	}
	return sum.bulk, sum.latency
}
