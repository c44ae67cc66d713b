package engine

import "vrdma.dev/vrdma/internal/device/nic"

// waits are how long requests have waited for their turns, by the class of the NIC. A NIC counts
// its own (nic.NIC.Waited), which is all that a message costs. Here is what NICs had counted that
// are gone, or in a class that they are not in any more; the rest is added when somebody asks.
type waits struct{ bulk, latency nic.Waits }

// of is where the waits of a NIC count.
func (w *waits) of(b *band) *nic.Waits {
	if b.nic.Latency() {
		return &w.latency
	}
	return &w.bulk
}

// settle counts what c has waited until now for a class that it leaves.
func (c *card) settle(class *nic.Waits) {
	now := c.nic.Waits()
	class.Add(&now, c.band.settled)
	c.band.settled = &now
}

// Waits are how long requests of NICs of both classes have waited for their turns. It runs on the
// loop.
func (e *Engine) Waits() (bulk, latency nic.Waits) {
	sum := e.sched.waited
	for n, c := range e.cards.of {
		now := n.Waits()
		sum.of(&c.band).Add(&now, c.band.settled)
	}
	return sum.bulk, sum.latency
}
