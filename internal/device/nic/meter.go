package nic

import (
	"slices"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// Counters of a NIC that no queue pair has, for accounting, metrics and tools. They belong to the
// loops that serve the NIC.

// A Reason is why packets were dropped.
type Reason uint8

const (
	DropPolicy    Reason = iota // a rule forbids it
	DropSpoof                   // a wrong source address, or not from the peer
	DropNoNIC                   // no NIC has the address, or there is no route to it
	DropNoQP                    // the NIC has no such queue pair
	DropICRC                    // damaged on the way
	DropMalformed               // not a valid packet
	DropCap                     // more than a cap allows
	DropBuffer                  // no receive was posted, or a queue was full
	DropKey                     // P_Key or Q_Key is wrong
	DropStale                   // old, out of order, or not valid in the state of the queue pair
	NumReasons
)

var reasonNames = [NumReasons]string{"policy", "spoof", "no_nic", "no_qp", "icrc", "malformed", "cap", "buffer", "key", "stale"}

func (r Reason) String() string { return reasonNames[r] }

// tally has the counters of the NIC as a whole.
type tally struct {
	Part              // of the first loop
	connected  uint64 // connected queue pairs that there have been
	registered uint64 // bytes, now
	parts      []*Part
}

// A Part has the counters of a NIC that change on the data path. Each loop that serves the NIC has its own, so that
// loops share no memory that they write.
type Part struct {
	drops [NumReasons]uint64
	loop  ib.Time // of the loop, spent for this NIC
	waits Waits
}

// Part returns the counters of the first loop.
func (n *NIC) Part() *Part { return &n.tally.Part }

// NewPart returns the counters of another loop, which the NIC's counters include from now on.
func (n *NIC) NewPart() *Part {
	p := new(Part)
	n.tally.parts = append(n.tally.parts, p)
	return p
}

// EndPart ends NewPart: the NIC keeps what p has counted.
func (n *NIC) EndPart(p *Part) {
	n.tally.Part.add(p)
	n.tally.parts = slices.DeleteFunc(n.tally.parts, func(o *Part) bool { return o == p })
}

// add adds the counters of o.
func (p *Part) add(o *Part) {
	for r := range p.drops {
		p.drops[r] += o.drops[r]
	}
	p.loop += o.loop
	p.waits.Add(&o.waits, nil)
}

// sum is what all loops have counted.
func (t *tally) sum() Part {
	sum := t.Part
	for _, p := range t.parts {
		sum.add(p)
	}
	return sum
}

// Drop counts packets that were dropped before a queue pair saw them.
func (p *Part) Drop(r Reason, packets uint32) { p.drops[r] += uint64(packets) }

// Drop counts packets that the first loop has dropped before a queue pair saw them.
func (n *NIC) Drop(r Reason, packets uint32) { n.tally.Drop(r, packets) }

// Exceeded counts an object that its tenant's quota refused.
func (n *NIC) Exceeded() { n.rules.count[RefusedQuota]++ }

// Spend counts time of the loop that went into the NIC.
func (p *Part) Spend(d ib.Time) { p.loop += d }

// Spent is what Spend has counted.
func (p *Part) Spent() ib.Time { return p.loop }

// fill adds the NIC's own counters to c, and sorts the packets that queue pairs dropped by reason.
func (t *tally) fill(c *Counters) {
	p := t.sum()
	c.Drops, c.Connected, c.LoopTime, c.Delays = p.drops, t.connected, p.loop, p.waits.Delays
	c.Drops[DropSpoof] += c.WrongPeer
	c.Drops[DropBuffer] += c.NoReceive
	c.Drops[DropKey] += c.BadPKey + c.BadQKey
	c.Drops[DropStale] += c.Dropped - c.WrongPeer - c.NoReceive
	// Datagrams that a rule forbids are lost without an error for the sender.
	c.Drops[DropPolicy] += c.Refusals[RefusedSend] + c.Refusals[RefusedReceive]
	c.Refusals[RefusedAccess] += c.AccessErrors
}

// Holdings are what a NIC has now.
type Holdings struct {
	Sessions    int
	QPs         int
	Connections int    // queue pairs that have a peer
	Registered  uint64 // bytes of memory regions
}

// Holdings looks at every queue pair, as Counters does.
func (n *NIC) Holdings() Holdings {
	h := Holdings{Sessions: len(n.sessions), QPs: len(n.qps), Registered: n.tally.registered}
	for _, q := range n.qps {
		if q.connected() {
			h.Connections++
		}
	}
	return h
}

// A Mark is a short summary of the counters of a NIC without sessions. Two equal Marks of a NIC mean
// that it has counted nothing in between.
type Mark struct {
	loop            ib.Time
	serial          uint32
	drops, refusals uint64
}

// Mark returns the NIC's Mark; idle reports whether it has no sessions. A Mark is much cheaper than the
// counters: most of a thousand NICs are idle, and their counters are not read.
func (n *NIC) Mark() (m Mark, idle bool) {
	if len(n.sessions) > 0 || len(n.qps) > 0 {
		return m, false
	}
	p := n.tally.sum()
	m.loop, m.serial = p.loop, n.serial
	for _, d := range &p.drops {
		m.drops += d
	}
	for _, r := range &n.rules.count {
		m.refusals += r
	}
	return m, true
}

// QPs is how many queue pairs there are: reading Counters and Holdings takes time in proportion.
func (n *NIC) QPs() int { return len(n.qps) }

// connected reports whether q has a peer.
func (q *QP) connected() bool {
	s := q.tr.State()
	return q.typ != ib.UD && s >= ib.StateRTR && s < ib.StateError
}

// Add sums the counters of another NIC into c.
func (c *Counters) Add(o *Counters) {
	c.add(&o.Counters)
	for i := range o.Drops {
		c.Drops[i] += o.Drops[i]
	}
	for i := range o.Refusals {
		c.Refusals[i] += o.Refusals[i]
	}
	c.Connected += o.Connected
	c.LoopTime += o.LoopTime
	for i := range o.Delays {
		c.Delays[i] += o.Delays[i]
	}
}

// addMessages sums messages by operation.
func addMessages(sum, o *[transport.NumOps]uint64) {
	for i := range o {
		sum[i] += o[i]
	}
}
