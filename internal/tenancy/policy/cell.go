package policy

import (
	"cmp"
	"slices"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// services are the services that a rule names.
type services struct {
	every  bool // manual, too
	manual bool
	spans  []span // of service identifiers
}

// A span is service identifiers from first to last.
type span struct{ first, last uint64 }

// The port spaces of rdma_cm. A port's service identifier is space<<16 | port (IBA annex A11).
var spaces = map[string]uint64{"tcp": 0x0106, "udp": 0x0111, "ib": 0x013f}

const lastPort = 0xffff

func servicesOf(t *tenant.Service) (s services) {
	if t == nil {
		return services{every: true}
	}
	if t.Manual {
		return services{manual: true}
	}
	ports := t.Ports
	if len(ports) == 0 {
		ports = []tenant.PortRange{{First: 0, Last: lastPort}}
	}
	for name, space := range spaces {
		if t.Space != "" && t.Space != name {
			continue
		}
		for _, p := range ports {
			if p.First <= lastPort && p.First <= p.Last {
				s.spans = append(s.spans, span{space<<16 | p.First, space<<16 | min(p.Last, lastPort)})
			}
		}
	}
	return s
}

// matches reports whether a contact's service is among them.
func (s *services) matches(c *ib.Contact) bool {
	if s.every || c.By == ib.Nobody {
		return s.every || s.manual
	}
	return slices.ContainsFunc(s.spans, func(p span) bool { return p.first <= c.ID && c.ID <= p.last })
}

// A cell is the decision of a profile about the peers of a class, in one direction.
type cell struct {
	manual   opinion
	starts   []uint64 // where each segment of service identifiers begins; the first at 0
	segments []opinion
}

// An opinion is the operations that allow and deny rules name, for each type of queue pair.
type opinion struct{ allow, deny [types]ib.Operations }

const types = int(ib.UD) + 1 // ib.RC is 1

var silent = &cell{starts: []uint64{0}, segments: make([]opinion, 1)}

// find is the opinion on a service.
func (c *cell) find(k *ib.Contact) *opinion {
	if k.By == ib.Nobody {
		return &c.manual
	}
	lo, hi := 0, len(c.starts) // starts[lo] <= ID < starts[hi]
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; c.starts[mid] <= k.ID {
			lo = mid
		} else {
			hi = mid
		}
	}
	return &c.segments[lo]
}

// cell finds or makes the cell of a profile for a class.
func (n *network) cell(p *profile, d int, class int32) *cell {
	at := &p.cells[d][class]
	if c := at.Load(); c != nil {
		return c
	}
	bits := n.classes[class]
	var list []*rule
	for _, r := range p.rules[d] {
		if r.selector < 0 || bits[r.selector/64]&(1<<(r.selector%64)) != 0 {
			list = append(list, r)
		}
	}
	c := newCell(list)
	if n.held.Add(int64(len(c.segments))) > mostHeld {
		n.forget()
		n.held.Add(int64(len(c.segments)))
	}
	at.Store(c)
	return c
}

// mostHeld bounds the segments in the cells of a network, 24 bytes each. A tenant has as many cells as pairs of NICs,
// and each cell may have as many segments as the policies have ports.
const mostHeld = 1 << 20

// forget drops all cells. They are made again on use.
func (n *network) forget() {
	n.held.Store(0)
	for _, p := range n.profiles {
		for d := range p.cells {
			for i := range p.cells[d] {
				p.cells[d][i].Store(nil)
			}
		}
	}
}

// A tally counts the rules that name an operation, by list, type and operation.
type tally [2][types][4]int32

func (t *tally) count(r *rule, by int32) {
	list := 0
	if r.deny {
		list = 1
	}
	for q := int(ib.RC); q < types; q++ {
		if r.types&typeBit(ib.Service(q)) == 0 {
			continue
		}
		for o := range 4 {
			if r.ops&(1<<o) != 0 {
				t[list][q][o] += by
			}
		}
	}
}

func (t *tally) opinion() (v opinion) {
	for q := int(ib.RC); q < types; q++ {
		for o := range 4 {
			if t[0][q][o] > 0 {
				v.allow[q] |= 1 << o
			}
			if t[1][q][o] > 0 {
				v.deny[q] |= 1 << o
			}
		}
	}
	return v
}

// An edge is where the services of a rule begin or end.
type edge struct {
	at uint64
	by int32
	r  *rule
}

// newCell sweeps over the service identifiers that rules name.
func newCell(rules []*rule) *cell {
	if len(rules) == 0 {
		return silent
	}
	var base, manual tally
	var edges []edge
	for _, r := range rules {
		switch s := &r.services; {
		case s.every:
			base.count(r, 1)
			manual.count(r, 1)
		case s.manual:
			manual.count(r, 1)
		default:
			for _, p := range s.spans {
				edges = append(edges, edge{p.first, 1, r}, edge{p.last + 1, -1, r})
			}
		}
	}
	c := &cell{manual: manual.opinion(), starts: []uint64{0}, segments: []opinion{base.opinion()}}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	for i := 0; i < len(edges); {
		at := edges[i].at
		for ; i < len(edges) && edges[i].at == at; i++ {
			base.count(edges[i].r, edges[i].by)
		}
		if v := base.opinion(); v != c.segments[len(c.segments)-1] {
			c.starts, c.segments = append(c.starts, at), append(c.segments, v)
		}
	}
	return c
}
