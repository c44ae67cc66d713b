package fault

import "time"

// This file decides about what is no packet: calls, connections, completions and events.

// decide decides about the next call that a rule matches.
func (p *Plan) decide(now time.Duration, i int, x Packet) bool {
	r := &p.rules[i]
	r.calls++
	if !p.hit(now, r, i, 0, r.calls, r.calls) {
		return false
	}
	p.report(r, Hit{Name: r.Name, Action: r.Rule.Action, Message: r.calls, Of: x, At: now - p.start})
	return true
}

// RegMR reports whether a registration fails. p may be nil.
func (p *Plan) RegMR(now time.Duration, x Packet) (fails bool) {
	if p == nil {
		return false
	}
	for i := range p.rules {
		if p.rules[i].Rule.Action == RegMR && p.decide(now, i, x) {
			fails = true
		}
	}
	return fails
}

// Connect decides about a connection request to a peer (x.Out), or from one: None, CMReject or CMTimeout. p may be nil.
func (p *Plan) Connect(now time.Duration, x Packet) Action {
	if p == nil {
		return None
	}
	if p.Gone(now, x.Peer) {
		return CMTimeout
	}
	for i := range p.rules {
		r := &p.rules[i]
		if r.traits&isConnect == 0 || x.Out && !r.out || !x.Out && !r.in ||
			r.Rule.Peer.IsValid() && !r.Rule.Peer.Contains(x.Peer) {
			continue
		}
		if p.decide(now, i, x) {
			return r.Rule.Action
		}
	}
	return None
}

// Completion returns how long a completion is held back. p may be nil.
func (p *Plan) Completion(now time.Duration, x Packet) (d time.Duration) {
	if p == nil {
		return 0
	}
	for i := range p.rules {
		r := &p.rules[i]
		if r.Rule.Action == CompletionDelay && (r.Rule.QP == 0 || r.Rule.QP == x.QP) && p.decide(now, i, x) {
			d += r.delay(0, r.calls)
		}
	}
	return d
}

// Holds reports whether the plan has rules about completions.
func (p *Plan) Holds() bool {
	if p == nil {
		return false
	}
	for i := range p.rules {
		if p.rules[i].Rule.Action == CompletionDelay {
			return true
		}
	}
	return false
}

// fire records that an event happens now.
func (r *rule) fire(now time.Duration) {
	r.fired = true
	if r.Rule.For > 0 {
		r.until = now + r.Rule.For
	}
}

// An Event is something that happens to a device at a time.
type Event struct {
	Action Action
	Over   bool // it ends: the port is up again
}

// Due returns the events that are due at now, in order. The rest of their rules' lives is in Next.
func (p *Plan) Due(now time.Duration) (list []Event) {
	if p == nil {
		return nil
	}
	for i := range p.rules {
		r := &p.rules[i]
		if r.traits&isEvent == 0 {
			continue
		}
		if r.timed && !r.fired && now-p.start >= r.Rule.From {
			r.fire(now)
			list = append(list, Event{Action: r.Rule.Action})
			p.report(r, Hit{Name: r.Name, Action: r.Rule.Action, At: now - p.start})
		}
		if r.until > 0 && now >= r.until {
			r.until = 0
			list = append(list, Event{Action: r.Rule.Action, Over: true})
		}
	}
	return list
}

// Next is when Due has to be called; 0: never.
func (p *Plan) Next() (at time.Duration) {
	if p == nil {
		return 0
	}
	sooner := func(t time.Duration) {
		if at == 0 || t < at {
			at = t
		}
	}
	for i := range p.rules {
		r := &p.rules[i]
		if r.timed && !r.fired {
			sooner(p.start + r.Rule.From)
		}
		if r.until > 0 {
			sooner(r.until)
		}
	}
	return at
}

// End returns the events that end with the plan.
func (p *Plan) End() (list []Event) {
	if p == nil {
		return nil
	}
	for i := range p.rules {
		if r := &p.rules[i]; r.fired && (r.until > 0 || r.Rule.For == 0) {
			list = append(list, Event{Action: r.Rule.Action, Over: true})
		}
	}
	return list
}
