package fault

import (
	"fmt"
	"net/netip"
	"time"
)

// A Named is a rule with the name that logs and metrics give it.
type Named struct {
	Name string
	Rule Rule
}

// A Plan is rules with their counters.
type Plan struct {
	// Report is called for every hit; nil: nothing is.
	Report func(Hit)

	start time.Duration
	rules []rule
	flows uint64
	gone  map[netip.Addr]int // peers that have vanished, and the rule that did it
}

// A rule is a compiled Rule.
type rule struct {
	Named
	traits Traits
	ops    Ops
	out    bool
	in     bool
	timed  bool // an event that no packet triggers
	fired  bool // an event has happened
	until  time.Duration
	hits   uint64
	calls  uint64        // calls and connections that matched
	free   time.Duration // when the link of a rate is free again
}

// New makes a Plan whose rules' times count from now on.
func New(rules []Named, now time.Duration) *Plan {
	p := &Plan{start: now, rules: make([]rule, len(rules))}
	for i, n := range rules {
		r := rule{Named: n, traits: n.Rule.Action.Traits(), ops: n.Rule.Ops}
		if r.ops == 0 {
			r.ops = defaultOps
		}
		if r.traits&isReliable != 0 {
			r.ops &= Requests
		}
		d := n.Rule.Direction
		r.out, r.in = d != In, d == In || d == Both
		if r.traits&isEvent != 0 {
			r.timed = n.Rule.Ops == 0 && n.Rule.Packet == Range{} && n.Rule.Message == Range{} && n.Rule.Every == 0 &&
				n.Rule.Probability == 0 && !n.Rule.Peer.IsValid() && n.Rule.QP == 0
		}
		p.rules[i] = r
	}
	return p
}

// A Flow counts the packets of one queue pair in one direction.
type Flow struct {
	number uint64
	of     []flowCount // by rule
	last   time.Duration
}

// flowCount is what of a flow a rule has matched.
type flowCount struct{ packets, messages uint64 }

// NewFlow makes a Flow. Flows have numbers in the order of their creation, which a replay repeats.
func (p *Plan) NewFlow() *Flow {
	p.flows++
	return &Flow{number: p.flows, of: make([]flowCount, len(p.rules))}
}

// A Packet is one packet of a queue pair.
type Packet struct {
	Op     Ops // one
	Out    bool
	First  bool // begins a message
	RC     bool
	QP     uint32 // the number of the own queue pair
	PSN    uint32
	Size   int
	Peer   netip.Addr
	Pid    int
	Device string
}

// A Verdict is what happens to a packet. The zero Verdict lets it pass.
type Verdict struct {
	Action    Action        // instead of passing it on; None: it passes
	Event     Action        // an event that it triggers, beside
	Rule      int           // of Action
	Delay     time.Duration // before it passes
	Limited   bool          // Delay comes from a rate: nothing is late
	Duplicate bool
	Reorder   time.Duration // hold it until the next has passed, at most so long
}

// A Hit is a packet, call or event that a rule has hit.
type Hit struct {
	Name    string // of the rule
	Action  Action
	Flow    uint64 // the number of the flow; 0: it is no packet
	Packet  uint64 // its number among those that the rule matches in the flow
	Message uint64
	Of      Packet
	At      time.Duration // since the plan began
}

// String says what was hit. The numbers are the same in a replay; the queue pair and the PSN are not.
func (h Hit) String() string {
	switch {
	case h.Flow > 0:
		way := "in"
		if h.Of.Out {
			way = "out"
		}
		return fmt.Sprintf("fault %s: %v flow %d packet %d message %d %v %s, qp %#x psn %d peer %v", h.Name, h.Action, h.Flow, h.Packet, h.Message, h.Of.Op, way, h.Of.QP, h.Of.PSN, h.Of.Peer)
	case h.Message > 0:
		return fmt.Sprintf("fault %s: %v number %d", h.Name, h.Action, h.Message)
	}
	return fmt.Sprintf("fault %s: %v", h.Name, h.Action)
}

// Decide decides about a packet of a flow.
func (p *Plan) Decide(now time.Duration, f *Flow, x *Packet) (v Verdict) {
	if len(p.gone) > 0 {
		if i, is := p.gone[x.Peer]; is && p.rules[i].active(now-p.start) {
			return Verdict{Action: Drop, Rule: i}
		}
	}
	for i := range p.rules {
		r := &p.rules[i]
		if !r.matches(x) {
			continue
		}
		c := &f.of[i]
		c.packets++
		if x.First || c.messages == 0 {
			c.messages++
		}
		if !p.hit(now, r, i, f.number, c.packets, c.messages) {
			continue
		}
		h := Hit{Name: r.Name, Action: r.Rule.Action, Flow: f.number, Packet: c.packets, Message: c.messages, Of: *x, At: now - p.start}
		switch a := r.Rule.Action; a {
		case Duplicate:
			v.Duplicate = true
		case Reorder:
			if v.Reorder = r.Rule.Time; v.Reorder == 0 {
				v.Reorder = defaultReorder
			}
		case Delay:
			v.Delay += r.delay(f.number, c.packets)
		case Limit:
			r.free = max(r.free, now) + r.Rule.Rate.transmit(x.Size)
			v.Delay = max(v.Delay, r.free-now)
			v.Limited = true
			r.hits++
			continue // every packet is hit: to log it says nothing
		case DeviceFatal, PortDown, GIDChange, Suspend:
			if r.fired {
				continue
			}
			r.fire(now)
			v.Event = a
			h.Of.Op = x.Op
		default:
			v.Action, v.Rule = a, i
			if a == Vanish {
				p.vanish(x.Peer, i)
				v.Action = Drop
			}
		}
		p.report(r, h)
		if v.Action != None {
			return v
		}
	}
	if v.Delay > 0 { // in order: jitter is not reordering
		at := max(now+v.Delay, f.last)
		v.Delay, f.last = at-now, at
	}
	return v
}

// defaultReorder is how long a packet waits for a later one to overtake it.
const defaultReorder = time.Millisecond

// vanish makes a peer lose everything.
func (p *Plan) vanish(peer netip.Addr, by int) {
	if p.gone == nil {
		p.gone = make(map[netip.Addr]int)
	}
	p.gone[peer] = by
}

// Gone reports whether a peer has vanished.
func (p *Plan) Gone(now time.Duration, peer netip.Addr) bool {
	if p == nil || len(p.gone) == 0 {
		return false
	}
	i, is := p.gone[peer]
	return is && p.rules[i].active(now-p.start)
}

// matches reports whether a rule is about a packet.
func (r *rule) matches(x *Packet) bool {
	return r.traits&isPacket != 0 && !r.timed && r.ops&x.Op != 0 && (x.Out && r.out || !x.Out && r.in) &&
		(x.RC || r.traits&isReliable == 0) &&
		(r.Rule.QP == 0 || r.Rule.QP == x.QP) && (!r.Rule.Peer.IsValid() || r.Rule.Peer.Contains(x.Peer))
}

// active reports whether a rule is in its time window, so long after the plan began. An event that has happened lasts
// for its own time.
func (r *rule) active(since time.Duration) bool {
	return since >= r.Rule.From && (r.Rule.For == 0 || since < r.Rule.From+r.Rule.For)
}

// hit decides about the n-th packet, of the m-th message, that a rule matches in a flow.
func (p *Plan) hit(now time.Duration, r *rule, index int, flow, n, m uint64) bool {
	since := now - p.start
	if r.traits&isEvent != 0 {
		if since < r.Rule.From {
			return false
		}
	} else if !r.active(since) {
		return false
	}
	nth := n
	if r.Rule.Message != (Range{}) {
		nth = m
	}
	return r.Rule.Packet.has(n) && r.Rule.Message.has(m) && (r.Rule.Every == 0 || nth%r.Rule.Every == 0) &&
		(r.Rule.Count == 0 || r.hits < r.Rule.Count) &&
		(r.Rule.Probability == 0 || r.Rule.Probability.hits(chance(r.Rule.Seed, uint64(index), flow, n)))
}

// delay is the time of a hit: the rule's, and a part of its jitter.
func (r *rule) delay(flow, n uint64) time.Duration {
	d := r.Rule.Time
	if j := uint64(r.Rule.Jitter); j > 0 {
		d += time.Duration(chance(^r.Rule.Seed, 0, flow, n) % (j + 1))
	}
	return d
}

func (p *Plan) report(r *rule, h Hit) {
	r.hits++
	if p.Report != nil {
		p.Report(h)
	}
}

// chance is a random number that is the same for the same arguments.
func chance(seed, rule, flow, n uint64) uint64 {
	h := mix(seed ^ 0x9e3779b97f4a7c15)
	h = mix(h ^ rule)
	h = mix(h ^ flow)
	return mix(h ^ n)
}

// mix is the finalizer of SplitMix64: each bit of the result depends on each bit of x.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// A Status is a rule and how often it has hit.
type Status struct {
	Named
	Hits uint64
}

// Status returns the rules in their order.
func (p *Plan) Status() []Status {
	if p == nil {
		return nil
	}
	list := make([]Status, len(p.rules))
	for i := range p.rules {
		list[i] = Status{p.rules[i].Named, p.rules[i].hits}
	}
	return list
}
