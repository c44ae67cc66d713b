package policy

import (
	"fmt"
	"slices"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A Stretch is a range of services with the same answer.
type Stretch struct {
	Manual      bool
	Space       string // tcp, udp, ib
	First, Last uint16 // ports
	Answer      *Answer
}

// String names the services, as ContactOf reads them.
func (s *Stretch) String() string {
	switch {
	case s.Manual:
		return "manual"
	case s.First == 0 && s.Last == lastPort:
		return s.Space
	case s.First == s.Last:
		return fmt.Sprintf("%s:%d", s.Space, s.First)
	}
	return fmt.Sprintf("%s:%d-%d", s.Space, s.First, s.Last)
}

// mostStretches bounds the cost of one question.
const mostStretches = 1000

// Survey explains every service: manual first, then the ports of each space, in stretches.
func (r *Rules) Survey(from, to tenant.Key, t ib.Service) ([]Stretch, error) {
	a, err := r.Explain(from, to, ib.Contact{Type: t})
	if err != nil {
		return nil, err
	}
	list := []Stretch{{Manual: true, Answer: a}}
	if g, h := r.guards[from], r.guards[to]; g.net != h.net {
		return list, nil
	}
	for _, space := range []string{"tcp", "udp", "ib"} {
		begin := len(list)
		ports := r.edges(spaces[space], from, to)
		if len(ports) > mostStretches {
			return nil, fmt.Errorf("the rules of the two NICs name too many ports to answer for all of them: ask for one")
		}
		for _, port := range ports {
			a, err := r.Explain(from, to, ib.Contact{Type: t, By: ib.Us, ID: spaces[space]<<16 | uint64(port)})
			if err != nil {
				return nil, err
			}
			if last := len(list) - 1; last >= begin {
				if list[last].Last = port - 1; list[last].Answer.String() == a.String() {
					list[last].Last = lastPort
					continue
				}
			}
			list = append(list, Stretch{Space: space, First: port, Last: lastPort, Answer: a})
		}
	}
	return list, nil
}

// edges are the ports of a space at which the answer for two NICs may change, in order.
func (r *Rules) edges(space uint64, from, to tenant.Key) []uint16 {
	ports := []uint16{0}
	for _, key := range []tenant.Key{from, to} {
		g := r.guards[key]
		p := g.net.profiles[g.net.members[g.nic].profile]
		for _, rules := range p.rules {
			for _, rule := range rules {
				for _, s := range rule.services.spans {
					if s.first>>16 != space {
						continue
					}
					if ports = append(ports, uint16(s.first)); s.last&lastPort != lastPort {
						ports = append(ports, uint16(s.last)+1)
					}
				}
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}
