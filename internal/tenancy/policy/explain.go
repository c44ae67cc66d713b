package policy

import (
	"fmt"
	"net/netip"
	"strings"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// An Answer says whether a connection is allowed, and why.
type Answer struct {
	Operations ib.Operations // allowed operations; none: the connection is refused
	Steps      []Step
}

// A Step is one decision on the way to an answer. It refuses the operations that are not in Operations.
type Step struct {
	Operations ib.Operations
	Who        string // the NIC that decides, TENANT/NAME
	Direction  tenant.Direction
	Why        string
}

// Allowed reports whether the connection is allowed.
func (a *Answer) Allowed() bool { return a.Operations != 0 }

// String is the answer on one line: the verdict, and the step that decided.
func (a *Answer) String() string {
	verdict := "allowed: " + Names(a.Operations)
	if !a.Allowed() {
		verdict = "denied"
	}
	if s := a.decisive(); s != nil {
		return verdict + ": " + s.String()
	}
	return verdict
}

func (s *Step) String() string {
	if s.Direction == "" {
		return s.Who + ": " + s.Why
	}
	return fmt.Sprintf("%s, %s: %s", s.Who, s.Direction, s.Why)
}

// decisive is the step that refused most operations.
func (a *Answer) decisive() (worst *Step) {
	for i := range a.Steps {
		s := &a.Steps[i]
		if s.Operations == ib.AllOperations {
			continue
		}
		if worst == nil || worst.Operations != 0 && s.Operations&worst.Operations != worst.Operations {
			worst = s
		}
	}
	if worst == nil && len(a.Steps) > 0 {
		return &a.Steps[len(a.Steps)-1]
	}
	return worst
}

// Names spells operations as a file does.
func Names(ops ib.Operations) string {
	if ops == 0 {
		return "none"
	}
	var list []string
	for _, o := range []tenant.Operation{tenant.Send, tenant.Write, tenant.Read, tenant.Atomic} {
		if ops&opBits[o] != 0 {
			list = append(list, string(o))
		}
	}
	return strings.Join(list, ", ")
}

// Explain decides a connection that from requests to to, or, if c.By is ib.Nobody, that the two make without rdma_cm.
// It makes the daemon's decision, and returns the rules behind it.
func (r *Rules) Explain(from, to tenant.Key, c ib.Contact) (*Answer, error) {
	g, h := r.guards[from], r.guards[to]
	switch {
	case g == nil:
		return nil, fmt.Errorf("there is no NIC %s", from.Path())
	case h == nil:
		return nil, fmt.Errorf("there is no NIC %s", to.Path())
	case g.net != h.net:
		return &Answer{Steps: []Step{{
			Who: from.Path(), Why: fmt.Sprintf("%s is in another network, which cannot be reached", to.Path()),
		}}}, nil
	}
	if c.By == ib.Them {
		return nil, fmt.Errorf("name the NIC that asks for the connection first")
	}
	a := g.explain(h.nic, c)
	a.Operations = g.net.judge(g.nic, h.nic, c)
	return a, nil
}

// Why returns why a connection with a peer is not allowed, or not with all operations.
func (g *Guard) Why(peer ib.GID, c ib.Contact) string {
	if why := g.staleness(peer); why != "" {
		return why
	}
	p, ok := g.net.byAddress[peer]
	switch {
	case ok:
		a := g.explain(p, c)
		if s := a.decisive(); s != nil {
			return s.String()
		}
		return ""
	case !peer.IsMulticast() && !g.net.open:
		return fmt.Sprintf("no NIC of network %s has this address", g.net.input.network.Key().Path())
	}
	if peer.IsMulticast() {
		c = ib.Contact{Type: ib.UD, By: ib.Nobody}
	}
	a := Answer{Steps: []Step{g.net.limits(g.nic, g.nic, c.Type)}}
	match := func(r *rule) bool { return r.matches(peer.Addr(), &c) }
	a.Steps = append(a.Steps, g.net.step(g.nic, out, match), g.net.step(g.nic, in, match))
	return a.decisive().String()
}

// explain makes the decisions of judge one by one.
func (g *Guard) explain(peer int32, c ib.Contact) *Answer {
	n := g.net
	a := &Answer{}
	// The NICs' own limits are a reason only where they refuse something.
	if s := n.limits(g.nic, peer, c.Type); g.nic == peer || s.Operations != ib.AllOperations {
		a.Steps = append(a.Steps, s)
	}
	if g.nic == peer {
		return a
	}
	side := func(m, peer int32, d int) {
		a.Steps = append(a.Steps, n.step(m, d, func(r *rule) bool {
			return r.peer.Matches(n.input.nics[peer]) && r.types&typeBit(c.Type) != 0 && r.services.matches(&c)
		}))
	}
	if c.By != ib.Them {
		side(g.nic, peer, out)
		side(peer, g.nic, in)
	}
	if c.By != ib.Us {
		side(peer, g.nic, out)
		side(g.nic, peer, in)
	}
	return a
}

// limits is what the types and operations of the two NICs leave.
func (n *network) limits(m, peer int32, t ib.Service) Step {
	s := Step{Operations: ib.AllOperations, Who: n.input.nics[m].Key().Path(), Why: "it reaches itself"}
	for _, i := range []int32{peer, m} {
		if k := &n.members[i]; k.types&typeBit(t) == 0 {
			return Step{Who: n.input.nics[i].Key().Path(), Why: "its types do not include " + strings.ToLower(t.String())}
		} else if k.ops != ib.AllOperations {
			s.Operations &= k.ops
			s.Who, s.Why = n.input.nics[i].Key().Path(), "its operations are "+Names(k.ops)
		}
	}
	return s
}

// step is one end's decision; match says which rules match.
func (n *network) step(m int32, d int, match func(*rule) bool) Step {
	p := n.profiles[n.members[m].profile]
	s := Step{Who: n.input.nics[m].Key().Path(), Direction: [2]tenant.Direction{in: tenant.In, out: tenant.Out}[d]}
	var allow, deny ib.Operations
	var allowed, denied *rule // the first rule that names a new operation
	for _, r := range p.rules[d] {
		switch {
		case !match(r):
		case r.deny:
			if r.ops&^deny != 0 && (denied == nil || r.ops == ib.AllOperations && denied.ops != ib.AllOperations) {
				denied = r
			}
			deny |= r.ops
		default:
			if allowed == nil {
				allowed = r
			}
			allow |= r.ops
		}
	}
	s.Operations = n.weigh(p, d, allow, deny)
	switch {
	case denied != nil:
		s.Why = denied.String()
	case allowed != nil && p.closed[d]:
		s.Why = allowed.String()
	case p.closed[d]:
		s.Why = "no allow rule of " + strings.Join(p.allowing(d), ", ") + " matches"
	case n.fallback == 0:
		s.Why = fmt.Sprintf("the default of network %s is deny", n.input.network.Key().Path())
	default:
		s.Why = "no policy says otherwise"
	}
	return s
}

// allowing names the policies whose allow lists name a direction.
func (p *profile) allowing(d int) (list []string) {
	const most = 3
	var last *tenant.Policy
	for _, r := range p.rules[d] {
		if r.deny || r.policy == last {
			continue
		}
		if last = r.policy; len(list) == most {
			return append(list, "…")
		}
		list = append(list, "policy "+r.policy.Key().Path())
	}
	return list
}

// String names the rule.
func (r *rule) String() string {
	list := "allow"
	if r.deny {
		list = "deny"
	}
	return fmt.Sprintf("policy %s, %s rule %d", r.policy.Key().Path(), list, r.index+1)
}

// ContactOf parses a contact: the type of queue pair (rc), and the service: "manual", or a port space and a port
// ("tcp:7471").
func ContactOf(t, service string) (c ib.Contact, err error) {
	switch tenant.QPType(strings.ToLower(t)) {
	case tenant.RC:
		c.Type = ib.RC
	case tenant.UC:
		c.Type = ib.UC
	case tenant.UD:
		c.Type = ib.UD
	default:
		return c, fmt.Errorf("%q is not a type of queue pair: write rc, uc or ud", t)
	}
	if service == "manual" {
		return c, nil
	}
	space, port, _ := strings.Cut(service, ":")
	id, ok := spaces[space]
	at, err := netip.ParseAddrPort("0.0.0.0:" + port)
	if !ok || err != nil {
		return c, fmt.Errorf("%q is not a service: write manual, or a port as in tcp:7471 (tcp, udp, ib)", service)
	}
	c.By, c.ID = ib.Us, id<<16|uint64(at.Port())
	return c, nil
}
