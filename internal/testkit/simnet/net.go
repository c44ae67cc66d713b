package simnet

import (
	"container/heap"
	"fmt"
	"math/rand/v2"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/state"
)

// A Config says how a network behaves.
type Config struct {
	Seed uint64
	// Local delivers as the link inside of one host does. Of the other fields only Freeze applies then.
	Local bool
	// Probabilities per delivery unit.
	Drop, Duplicate, Reorder float64
	// Delay of a delivery, and the largest random addition when it is reordered.
	Delay, Jitter ib.Time
	// Chunk is how many packets stay together at most; 0: bursts stay whole.
	Chunk uint32
	// Freeze is the probability that a queue pair is frozen and thawed before a call.
	Freeze float64
	// Budget of a call of Run or Respond; 0: 64 KiB.
	Budget int
	// Packets sends bursts as packets in wire format.
	Packets bool
	// Corrupt is the probability that a packet is damaged.
	Corrupt float64
	// Wire is the line to every node.
	Wire Wire
	// Later is the probability that memory is not available when it is accessed.
	Later float64
}

// A Net connects endpoints.
type Net struct {
	Config
	Rand *rand.Rand
	Now  ib.Time
	// Tap, when set, is called for every burst first, and may drop it.
	Tap func(from *Endpoint, b *transport.Burst) (lost bool)
	// Lose, when set, decides about every delivery unit instead of probabilities.
	Lose func(b *transport.Burst) bool

	endpoints []*Endpoint
	byNum     map[uint32]*Endpoint
	groups    map[ib.GID][]*Endpoint
	flights   flights
	order     uint64
	only      loop    // the loop of endpoints without a Host
	hosts     []*Host // see loops.go
	cutter    translator
	Counters
}

// Counters say what happened on a network.
type Counters struct {
	Sent    int // delivery units sent
	Lost    int
	Damaged int // packets that were rejected as damaged
	Delayed int // accesses to memory that was not available
	Frozen  int // freezes of a queue pair
	Moved   int // moves of a queue pair to another loop
	Across  int // delivery units that arrived at another loop than that of their queue pair
	Again   int // those among them that were handed over twice or more
}

// New makes an empty network.
func New(c Config) *Net {
	if c.Budget == 0 {
		c.Budget = 64 << 10
	}
	n := &Net{
		Config: c, Rand: rand.New(rand.NewPCG(c.Seed, 0x5eed)),
		byNum: map[uint32]*Endpoint{}, groups: map[ib.GID][]*Endpoint{}, Now: 1,
	}
	n.only.net, n.only.rand, n.only.count = n, n.Rand, &n.Counters
	return n
}

// A flight is a burst in transit.
type flight struct {
	at     ib.Time
	order  uint64
	to     *Endpoint
	b      transport.Burst
	data   []byte
	packet *datagram // in place of data
	hops   int       // how often it was handed over
}

type flights []flight

func (f flights) Len() int { return len(f) }
func (f flights) Less(i, j int) bool {
	return f[i].at < f[j].at || f[i].at == f[j].at && f[i].order < f[j].order
}
func (f flights) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flights) Push(x any)   { *f = append(*f, x.(flight)) }
func (f *flights) Pop() any {
	old := *f
	x := old[len(old)-1]
	old[len(old)-1] = flight{}
	*f = old[:len(old)-1]
	return x
}

// popFlight takes the next flight.
func (n *Net) popFlight() flight { return heap.Pop(&n.flights).(flight) }

// Add makes an endpoint with a new queue pair in state RESET.
func (n *Net) Add(node *Node, c transport.Config) *Endpoint {
	e := &Endpoint{Node: node, Num: c.Num, net: n, recvs: new([]transport.RecvWQE)}
	e.GID = ib.GID{10: 0xff, 11: 0xff, 12: 10, 14: byte(len(n.endpoints) >> 8), 15: byte(len(n.endpoints))}
	e.serve(&n.only)
	e.QP.Init(c)
	n.endpoints = append(n.endpoints, e)
	n.byNum[c.Num] = e
	return e
}

// SignalAll makes every send of e signaled.
func (e *Endpoint) SignalAll() { e.signalAll = true }

// Join makes e a member of a multicast group.
func (n *Net) Join(g ib.GID, e *Endpoint) { n.groups[g] = append(n.groups[g], e) }

// send is the network's side of Host.Send.
func (n *Net) send(from *Endpoint, b *transport.Burst) {
	if b.Kind == transport.KindCNP {
		from.SentCNP++
	}
	if from.down || n.Tap != nil && n.Tap(from, b) {
		return
	}
	if from.loop.host != nil {
		from.loop.send(n.byNum[b.Dst], b)
		return
	}
	if members, ok := n.groups[b.DGID]; ok {
		for _, to := range members {
			n.carry(to, b)
		}
		return
	}
	if to := n.byNum[b.Dst]; to != nil {
		n.carry(to, b)
	}
}

func (n *Net) carry(to *Endpoint, b *transport.Burst) {
	switch {
	case n.Local:
		to.loop.carry(to, b)
	case n.Packets:
		n.launchPackets(to, b)
	default:
		n.cut(to, b)
	}
}

// carry is the link inside a host: acknowledgements wait for the end of the turn.
func (l *loop) carry(to *Endpoint, b *transport.Burst) {
	if b.Kind == transport.KindAck || b.Kind == transport.KindAtomicResp || b.Kind == transport.KindCNP {
		l.acks = append(l.acks, flight{to: to, b: *b})
		return
	}
	l.deliver(to, b)
}

// cut splits b into delivery units of at most Chunk packets and launches them.
func (n *Net) cut(to *Endpoint, b *transport.Burst) {
	data := flatten(b)
	one := b.Kind != transport.KindReadResp && !carriesData(b.Kind) || b.Packets == 1
	for at := uint32(0); at < b.Packets; {
		k := b.Packets - at
		if n.Chunk != 0 && k > n.Chunk {
			k = 1 + n.Rand.Uint32N(n.Chunk)
		}
		u := *b
		u.PSN, u.Packets = (b.PSN+at)&0xffffff, k
		u.First, u.Last = b.First && at == 0, b.Last && at+k == b.Packets
		u.AckReq = b.AckReq && at+k == b.Packets
		d := data
		if !one {
			d = data[min(len(data), int(at*b.MTU)):min(len(data), int((at+k)*b.MTU))]
		}
		n.launch(flight{to: to, b: u, data: d})
		at += k
	}
}

// launch sends one unit, or drops or duplicates it.
func (n *Net) launch(f flight) {
	n.Sent++
	copies := 1
	if n.Rand.Float64() < n.Drop || n.Lose != nil && n.Lose(&f.b) {
		copies = 0
		n.Lost++
	}
	if n.Rand.Float64() < n.Duplicate {
		copies++
	}
	for range copies {
		size := int64(len(f.data)) + int64(f.b.Packets)*overhead
		if f.packet != nil {
			size += int64(len(f.packet.data))
		}
		wait, mark, ok := n.Wire.pass(&f.to.Node.Line, n.Now, size)
		if !ok {
			n.Lost++
			continue
		}
		f.b.CE = f.b.CE || mark
		f.at = n.Now + wait + n.Delay
		if n.Rand.Float64() < n.Reorder {
			f.at += ib.Time(n.Rand.Int64N(int64(n.Jitter) + 1))
		}
		n.order++
		f.order = n.order
		heap.Push(&n.flights, f)
	}
}

func (l *loop) deliver(to *Endpoint, b *transport.Burst) {
	if to.down {
		return
	}
	if b.Kind == transport.KindCNP {
		to.RcvdCNP++
	} else if b.CE {
		to.RcvdMarked += int(b.Packets)
	}
	l.receive(to, b)
	to.rearm()
}

// Step executes one action and reports whether there was one before the time limit.
func (n *Net) Step(limit ib.Time) bool {
	if l := &n.only; len(l.acks) > 0 {
		f := l.acks[0]
		l.acks = l.acks[1:]
		n.freeze(f.to)
		l.deliver(f.to, &f.b)
		return true
	}
	if n.work() {
		return true
	}
	return n.advance(limit)
}

// work runs one endpoint that is ready.
func (n *Net) work() bool {
	if len(n.endpoints) == 0 {
		return false
	}
	first := n.Rand.IntN(len(n.endpoints))
	for i := range n.endpoints {
		if n.only.turn(n.endpoints[(first+i)%len(n.endpoints)]) {
			return true
		}
	}
	return false
}

// turn runs e if it is ready.
func (l *loop) turn(e *Endpoint) bool {
	if !e.wants() {
		return false
	}
	run, respond := e.ready || e.QP.RunPending(), e.QP.RespondPending()
	if l.host == nil {
		l.net.freeze(e)
	}
	if len(e.inbox) > 0 && (!run && !respond || l.rand.IntN(2) == 0) {
		l.offer(e)
		e.rearm()
		return true
	}
	l.scratch.Held, e.asked = false, false
	if respond && (!run || l.rand.IntN(2) == 0) {
		e.QP.Respond(e.now(), l.net.Budget, e.Env())
	} else {
		e.ready = false
		more := e.QP.Run(e.now(), l.net.Budget, e.Env())
		e.ready = e.ready || more || e.asked || l.scratch.Held
	}
	e.rearm()
	return true
}

// wants reports whether e has something to do.
func (e *Endpoint) wants() bool {
	return !e.down && (e.ready || len(e.inbox) > 0 || e.QP.RunPending() || e.QP.RespondPending())
}

// advance moves time to the next arrival or deadline.
func (n *Net) advance(limit ib.Time) bool {
	var late *Endpoint
	next := limit + 1
	for _, e := range n.endpoints {
		if e.deadline != 0 && e.deadline < next && !e.down {
			late, next = e, e.deadline
		}
	}
	if len(n.flights) > 0 && n.flights[0].at <= next {
		if n.flights[0].at > limit {
			return false
		}
		f := n.popFlight()
		n.Now = max(n.Now, f.at)
		n.freeze(f.to)
		n.only.arrive(&f)
		return true
	}
	if late == nil {
		return false
	}
	n.Now = max(n.Now, next)
	n.freeze(late)
	late.QP.Expire(late.now(), late.Env())
	late.rearm()
	return true
}

// Run executes at most this many steps until limit. It reports whether the network is idle.
func (n *Net) Run(limit ib.Time, steps int) bool {
	for range steps {
		if n.Step(limit) {
			continue
		}
		n.Now = max(n.Now, limit)
		for _, e := range n.endpoints {
			if e.deadline != 0 && !e.down {
				return false
			}
		}
		return len(n.flights) == 0
	}
	return false
}

// freeze sometimes serializes a queue pair and restores it on a loop with another clock.
func (n *Net) freeze(e *Endpoint) {
	if n.Freeze == 0 || n.Rand.Float64() >= n.Freeze {
		return
	}
	n.Frozen++
	var frozen, read transport.QPState
	e.QP.Freeze(&frozen, e.now())
	e.clock = ib.Time(n.Rand.Int64N(int64(clockSpan)))
	b, err := state.Marshal(&frozen)
	if err == nil {
		err = state.Unmarshal(b, &read)
	}
	if err == nil {
		e.QP, err = transport.Thaw(&read, e.now())
	}
	if err != nil {
		panic(fmt.Sprintf("qp %d: %v", e.Num, err))
	}
	e.rearm()
}

// clockSpan is the largest difference between the clocks of two loops.
const clockSpan = ib.Time(1e15)

func carriesData(k transport.Kind) bool {
	switch k {
	case transport.KindSend, transport.KindSendImm, transport.KindSendInv, transport.KindWrite, transport.KindWriteImm:
		return true
	}
	return false
}

// flatten copies a burst's data, which is valid during Send only.
func flatten(b *transport.Burst) []byte {
	if b.Data == nil || b.Data.Len() == 0 {
		return nil
	}
	d := make([]byte, b.Data.Len())
	r := reader{pieces: b.Data.Pieces()}
	r.read(d)
	return d
}
