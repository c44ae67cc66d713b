package simnet

import (
	"math/rand/v2"
	"slices"
	"sync"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
)

// Hosts with several loops, as in package engine. A loop serves some of its host's queue pairs. Packets arrive at the loop that
// the host's steering table names, which hands them over if the queue pair is on another loop. Queue pairs of one host that are
// connected to each other are on one loop, and reach each other inside Send.
//
//	            ┌─ in ─▶ loop 0 ─┐ toward       Round:  network ─▶ in        one goroutine
//	net ─ table ┤                ├───────▶ …            loops work           one goroutine for each loop
//	            └─ in ─▶ loop 1 ─┘ out ─▶ net           out ─▶ network, moves     one goroutine
//
// While loops work, each has a goroutine of its own: the race detector sees state that two loops share. What they do depends on
// the seed alone, because each has its own source of random numbers, and what they exchange waits until all have ended.

// A Host has loops, and the queue pairs that were added to it.
type Host struct {
	// Unsteered delivers all packets to the first loop, as a kernel does that refuses the program.
	Unsteered bool

	net   *Net
	loops []*loop
	table roce.SteeringTable
	own   []*Endpoint
}

// A loop is what the queue pairs that it serves share.
type loop struct {
	net    *Net
	host   *Host // nil: the only loop of a network without hosts
	number int

	rand    *rand.Rand
	scratch transport.Scratch
	span    memory.Span
	joiner  translator
	acks    []flight // link inside a host: responses that wait for the end of the turn
	count   *Counters

	in     []flight   // has arrived, or was handed over
	toward [][]flight // for other loops of the host
	out    []flight   // for other hosts
}

const (
	// handedMost is how many deliveries may wait for a loop. More are lost.
	handedMost = 64
	// turnsPerRound is how many turns a loop gives in a round.
	turnsPerRound = 16
)

// NewHost adds a host with several loops.
func (n *Net) NewHost(loops int) *Host {
	h := &Host{net: n}
	for i := range loops {
		h.loops = append(h.loops, &loop{net: n, host: h, number: i, count: &Counters{}, toward: make([][]flight, loops),
			rand: rand.New(rand.NewPCG(n.Seed, uint64(1000*(1+len(n.hosts))+i)))})
	}
	n.hosts = append(n.hosts, h)
	return h
}

// Add gives an endpoint to a loop.
func (h *Host) Add(e *Endpoint, loop int) {
	h.own = append(h.own, e)
	e.serve(h.loops[loop])
}

// Loop is the number of the loop that serves e.
func (e *Endpoint) Loop() int { return e.loop.number }

// serve makes l the loop of e.
func (e *Endpoint) serve(l *loop) {
	e.loop, e.env = l, transport.NewEnv(e, e, &l.scratch)
}

// local reports whether the peer of e is on the same host.
func (e *Endpoint) local() bool {
	return e.net.Local || e.loop.host != nil && e.peer != nil && e.peer.loop.host == e.loop.host
}

// group is e, and its peer if that is on the same host.
func (e *Endpoint) group() []*Endpoint {
	if e.local() {
		return []*Endpoint{e, e.peer}
	}
	return []*Endpoint{e}
}

// Move moves the group of e to another loop of its host, unless bursts wait for memory: the loop that took them has to end them.
// The steering table stays as it is.
func (h *Host) Move(e *Endpoint, loop int) (moved bool) {
	g := e.group()
	if e.loop.number == loop || slices.ContainsFunc(g, func(o *Endpoint) bool { return len(o.inbox) > 0 || o.atomic != nil }) {
		return false
	}
	for _, o := range g {
		h.net.freeze(o)
		transport.LeaveLoop(&o.QP)
		o.serve(h.loops[loop])
		h.net.Moved++
	}
	return true
}

// Steer makes packets arrive at the loop that most queue pairs of their bucket have.
func (h *Host) Steer() {
	var counts [roce.Buckets][]int
	for _, e := range h.own {
		b := roce.BucketOf(e.Num)
		if counts[b] == nil {
			counts[b] = make([]int, len(h.loops))
		}
		counts[b][e.loop.number]++
	}
	for b, c := range counts {
		if c != nil {
			h.table[b] = uint8(slices.Index(c, slices.Max(c)))
		}
	}
}

// at is the loop at which packets for a queue pair arrive.
func (h *Host) at(num uint32) *loop {
	if h.Unsteered {
		return h.loops[0]
	}
	return h.loops[h.table[roce.BucketOf(num)]]
}

// Round lets every loop work once, and moves time on if none has anything to do. It reports whether there was anything to do
// until limit.
func (n *Net) Round(limit ib.Time) bool {
	for !n.busy() {
		next := limit + 1
		for _, e := range n.endpoints {
			if e.deadline != 0 && e.deadline < next && !e.down {
				next = e.deadline
			}
		}
		if len(n.flights) > 0 {
			next = min(next, n.flights[0].at)
		}
		if next > limit {
			n.Now = max(n.Now, limit)
			return false
		}
		n.Now = max(n.Now, next)
		n.land()
	}
	var working sync.WaitGroup
	for _, h := range n.hosts {
		for _, l := range h.loops {
			working.Go(l.work)
		}
	}
	working.Wait()
	n.collect()
	n.land()
	return true
}

// busy reports whether a loop has something to do now.
func (n *Net) busy() bool {
	for _, h := range n.hosts {
		for _, l := range h.loops {
			if len(l.in) > 0 {
				return true
			}
		}
	}
	return slices.ContainsFunc(n.endpoints, func(e *Endpoint) bool { return e.wants() || e.late() })
}

// late reports whether a deadline of e has passed.
func (e *Endpoint) late() bool { return e.deadline != 0 && e.deadline <= e.net.Now && !e.down }

// land gives loops what has arrived.
func (n *Net) land() {
	for len(n.flights) > 0 && n.flights[0].at <= n.Now {
		f := n.popFlight()
		l := f.to.loop.host.at(f.to.Num)
		l.in = append(l.in, f)
	}
}

// collect gives the network what the loops have sent, and the loops what others have handed over.
func (n *Net) collect() {
	for _, h := range n.hosts {
		for _, l := range h.loops {
			for i := range l.out {
				f := &l.out[i]
				n.only.span.Reset()
				n.only.span.Add(f.data)
				f.b.Data = &n.only.span
				n.carry(f.to, &f.b)
			}
			clear(l.out)
			l.out = l.out[:0]
			for i, list := range l.toward {
				to := h.loops[i]
				for _, f := range list {
					if f.hops++; f.hops > 1 {
						n.Again++
					}
					if n.Across++; len(to.in) >= handedMost {
						n.Lost++
						continue
					}
					to.in = append(to.in, f)
				}
				clear(list)
				l.toward[i] = list[:0]
			}
			n.Counters.add(l.count)
			*l.count = Counters{}
		}
	}
}

// add adds the counters of a loop.
func (c *Counters) add(o *Counters) {
	c.Lost += o.Lost
	c.Damaged += o.Damaged
	c.Delayed += o.Delayed
}

// work is a loop's part of a round.
func (l *loop) work() {
	for i := range l.in {
		f := &l.in[i]
		if at := f.to.loop; at != l {
			l.toward[at.number] = append(l.toward[at.number], *f)
			continue
		}
		l.arrive(f)
	}
	clear(l.in)
	l.in = l.in[:0]
	l.answer()
	if len(l.host.own) == 0 {
		return
	}
	for range turnsPerRound {
		first, turned := l.rand.IntN(len(l.host.own)), false
		for i := range l.host.own {
			e := l.host.own[(first+i)%len(l.host.own)]
			if e.loop == l && l.turn(e) {
				turned = true
				break
			}
		}
		l.answer()
		if !turned {
			break
		}
	}
	for _, e := range l.host.own {
		if e.loop == l && e.late() {
			e.QP.Expire(e.now(), e.Env())
			e.rearm()
		}
	}
}

// answer delivers the responses inside the host.
func (l *loop) answer() {
	for len(l.acks) > 0 {
		f := l.acks[0]
		l.acks = l.acks[1:]
		l.deliver(f.to, &f.b)
	}
}

// send takes a burst of a queue pair of l. A peer on the same host gets it at once.
func (l *loop) send(to *Endpoint, b *transport.Burst) {
	switch {
	case to == nil:
	case to.loop == l:
		l.carry(to, b)
	case to.loop.host == l.host:
		l.count.Lost++ // a group is on one loop
	default:
		f := flight{to: to, b: *b, data: flatten(b)}
		f.b.Data = nil
		l.out = append(l.out, f)
	}
}
