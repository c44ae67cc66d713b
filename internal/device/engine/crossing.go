package engine

import (
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/device/memory"
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
// A crossing is bounded. A burst that does not fit is lost, as on a wire, and counted. One tenant has a part of it only, and at
// most as much as is free: one tenant that floods it leaves three quarters to others, and several leave some.
type crossing struct {
	waiting atomic.Bool   // the queue is not empty
	lost    atomic.Uint64 // packets that did not fit

	mu    sync.Mutex
	queue crossQueue
	used  map[crosser]int // bytes of each in queue

	// The loop's, while it takes them.
	taken   crossQueue
	next    int // index in taken.list
	at      int // offset in taken.data
	span    memory.Span
	current *crossed // the one that is being received; nil: none
}

// A crosser is whose bursts a crossing counts together: a tenant, or a user at NICs without a tenant. The zero crosser is the
// connection manager.
type crosser struct {
	tenant string
	user   int
}

// crosser is that of bursts for t, which another loop has; a is this loop's record of its NIC.
func (a *adapter) crosser(t *task) crosser {
	c := crosser{tenant: a.band.nic.Tenant()}
	if c.tenant == defaultTenant {
		c.user = t.q.Session().User
	}
	return c
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
	// crossingMost is how many bytes wait for a loop, and crossingPart how many of them may be of one crosser. Each burst counts
	// crossingCost more.
	crossingMost = 4 << 20
	crossingPart = 1 << 20
	crossingCost = 512
	// crossedPerPass is how many bytes one pass receives.
	crossedPerPass = 256 << 10
)

// cross hands a burst over to the loop of its queue pair.
func (n *network) cross(to *loop, of crosser, c crossed) {
	n.local.across += uint64(c.b.Packets)
	x := &to.inward
	if c.b.Data != nil {
		c.length = c.b.Data.Len()
	}
	cost := c.length + crossingCost
	x.mu.Lock()
	free := crossingMost - len(x.queue.data) - len(x.queue.list)*crossingCost
	if x.used[of]+cost > min(crossingPart, free) {
		x.mu.Unlock()
		x.lost.Add(uint64(c.b.Packets))
		return
	}
	if x.used == nil {
		x.used = make(map[crosser]int)
	}
	x.used[of] += cost
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
