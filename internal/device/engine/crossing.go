package engine

import (
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/peers"
)

// A crossing holds bursts from other hosts that arrived at another loop than that of their queue pair: the sender mixes packets
// for several loops in a train, a session has just moved, or more sessions than buckets need several loops. The loop that
// receives a burst has checked it, and copies it.
//
//	loop that receives ── cross ──▶ crossing of the other loop ──▶ take: Receive, once a pass
//
// A crossing is bounded. A burst that does not fit is lost, as on a wire, and counted. One NIC has a part of it only, so a
// flood for one NIC does not displace the bursts of others.
type crossing struct {
	waiting atomic.Bool   // the queue is not empty
	lost    atomic.Uint64 // packets that did not fit

	mu    sync.Mutex
	queue crossQueue
	used  map[*nic.NIC]int // bytes of each NIC in queue; nil: of the connection manager

	// The loop's, while it takes them.
	taken   crossQueue
	next    int // index in taken.list
	at      int // offset in taken.data
	span    memory.Span
	current *crossed // the one that is being received; nil: none
}

// due reports whether the loop has something to take.
func (x *crossing) due() bool { return x.waiting.Load() || x.next < len(x.taken.list) }

// A crossQueue is bursts in order, their bytes one behind the other.
type crossQueue struct {
	list []crossed
	data []byte
}

// A crossed is a burst, or a CNP.
type crossed struct {
	network   ib.NetworkID
	b         transport.Burst // without its data
	length    int
	ce        bool
	congested bool // a CNP for queue pair b.Dst
	arrival   peers.Arrival
}

const (
	// crossingMost is how many bytes wait for a loop, and crossingPart how many of them may be for one NIC. Each burst counts
	// crossingCost more.
	crossingMost = 4 << 20
	crossingPart = 1 << 20
	crossingCost = 512
	// crossedPerPass is how many bytes one pass receives.
	crossedPerPass = 256 << 10
)

// cross hands a burst over to the loop of its queue pair.
func (n *network) cross(to *loop, dev *nic.NIC, c crossed) {
	n.local.across += uint64(c.b.Packets)
	x := &to.inward
	if c.b.Data != nil {
		c.length = c.b.Data.Len()
	}
	cost := c.length + crossingCost
	x.mu.Lock()
	if len(x.queue.data)+len(x.queue.list)*crossingCost+cost > crossingMost || x.used[dev]+cost > crossingPart {
		x.mu.Unlock()
		x.lost.Add(uint64(c.b.Packets))
		return
	}
	if x.used == nil {
		x.used = make(map[*nic.NIC]int)
	}
	x.used[dev] += cost
	if c.b.Data != nil {
		for _, p := range c.b.Data.Pieces() {
			x.queue.data = append(x.queue.data, p.Mem...)
		}
		c.b.Data = nil
	}
	x.queue.list = append(x.queue.list, c)
	first := !x.waiting.Swap(true)
	x.mu.Unlock()
	if first {
		to.cmds.wake()
	}
}

// takeCrossed receives bursts that other loops have handed over.
func (e *loop) takeCrossed() {
	x, n := &e.inward, &e.net
	if x.next == len(x.taken.list) {
		x.refill()
	}
	defer func() { x.current = nil }() // also if the memory of a program faults
	for begin := x.at; x.next < len(x.taken.list) && x.at-begin < crossedPerPass; {
		c := &x.taken.list[x.next]
		x.span.Reset()
		x.span.Add(x.taken.data[x.at : x.at+c.length])
		x.next++
		x.at += c.length
		if x.current = c; c.congested {
			n.Congested(c.network, c.b.Dst, c.b.SGID, c.b.DGID)
			continue
		}
		c.b.Data = &x.span
		if n.tap != nil {
			n.tap.Burst(&c.b)
		}
		n.Receive(c.network, &c.b, c.ce)
	}
	n.traffic.wake(n.clock.now)
}

// refill takes what waits.
func (x *crossing) refill() {
	clear(x.taken.list)
	x.taken.list, x.taken.data, x.next, x.at = x.taken.list[:0], x.taken.data[:0], 0, 0
	x.mu.Lock()
	x.queue, x.taken = x.taken, x.queue
	clear(x.used)
	x.waiting.Store(false)
	x.mu.Unlock()
}
