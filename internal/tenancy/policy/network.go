package policy

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A network is the rules inside one network.
type network struct {
	input     input
	open      bool          // it reaches addresses that no NIC has
	fallback  ib.Operations // what is allowed without a policy
	members   []member
	guards    []Guard
	byName    map[string]int32
	byAddress map[ib.GID]int32
	profiles  []*profile
	classes   [][]uint64    // for each class the selectors that match: a bit each
	patience  time.Duration // the shortest of its profiles; 0: none has one
	held      atomic.Int64  // segments of its cells, approximately
	age       atomic.Int64  // how old the rules may be; only where there is patience
}

// A member is a NIC of the network.
type member struct {
	profile int32
	class   int32
	types   uint8 // a bit each
	ops     ib.Operations
}

// A profile is the rules of the policies that select a NIC. NICs that the same policies select share a profile.
type profile struct {
	rules  [2][]*rule // by direction, in the order of policies: first its deny, then its allow list
	closed [2]bool    // an allow list names the direction
	cells  [2][]atomic.Pointer[cell]
	// patience is how old the rules may be for new connections; 0: of any age.
	patience time.Duration
}

// Directions of a connection, as the NIC that decides sees it.
const (
	in = iota
	out
)

// A rule is one rule of a policy.
type rule struct {
	policy   *tenant.Policy
	deny     bool
	index    int // in its list
	peer     *tenant.Peer
	selector int32 // -1: every peer
	types    uint8
	ops      ib.Operations
	services services
	blind    bool // the addresses of NICs are not known
}

func typeBit(t ib.Service) uint8 { return 1 << t }

var typeBits = map[tenant.QPType]uint8{tenant.RC: typeBit(ib.RC), tenant.UC: typeBit(ib.UC), tenant.UD: typeBit(ib.UD)}

func typesOf(list []tenant.QPType) (bits uint8) {
	if len(list) == 0 {
		return 0xff
	}
	for _, t := range list {
		bits |= typeBits[t]
	}
	return bits
}

var opBits = map[tenant.Operation]ib.Operations{
	tenant.Send: ib.OpSend, tenant.Write: ib.OpWrite, tenant.Read: ib.OpRead, tenant.Atomic: ib.OpAtomic,
}

func opsOf(list []tenant.Operation) (ops ib.Operations) {
	if len(list) == 0 {
		return ib.AllOperations
	}
	for _, o := range list {
		ops |= opBits[o]
	}
	return ops
}

// compile compiles a network.
func compile(from input) *network {
	n := &network{
		input: from, fallback: ib.AllOperations, byName: make(map[string]int32), byAddress: make(map[ib.GID]int32),
		open:    from.network.Spec.Way == tenant.WayHost || from.network.Spec.Way == tenant.WayNamespace,
		members: make([]member, len(from.nics)), guards: make([]Guard, len(from.nics)),
	}
	if from.network.Spec.Default == tenant.Deny {
		n.fallback = 0
	}
	for i, o := range from.nics {
		n.members[i] = member{types: typesOf(o.Spec.Types), ops: opsOf(o.Spec.Operations)}
		n.guards[i] = Guard{n, int32(i)}
		n.byName[o.Metadata.Name] = int32(i)
		for _, a := range o.Spec.Addresses {
			n.byAddress[ib.GIDOf(a)] = int32(i)
		}
	}
	s := newSelectors(from.nics, n.byName)
	rules := make([][2][]*rule, len(from.policies))
	for i, p := range from.policies {
		rules[i] = s.rules(p, from.network)
	}
	n.classify(s)
	n.profile(rules)
	return n
}

// profile finds the policies that select each NIC.
func (n *network) profile(rules [][2][]*rule) {
	known := make(map[string]int32)
	lists := make([][]byte, len(n.members)) // the indexes of the policies about each
	about := newLookup(n.input.nics, n.byName)
	for i, p := range n.input.policies {
		s := &p.Spec.NICs
		for _, m := range about.selected(s.Names, s.Labels) {
			if s.Selects(n.input.nics[m]) {
				lists[m] = binary.LittleEndian.AppendUint32(lists[m], uint32(i))
			}
		}
	}
	for m, list := range lists {
		i, ok := known[string(list)]
		if !ok {
			i = int32(len(n.profiles))
			known[string(list)] = i
			n.profiles = append(n.profiles, n.newProfile(list, rules))
		}
		n.members[m].profile = i
	}
}

func (n *network) newProfile(list []byte, rules [][2][]*rule) *profile {
	p := &profile{}
	for ; len(list) > 0; list = list[4:] {
		i := binary.LittleEndian.Uint32(list)
		for d := range p.rules {
			p.rules[d] = append(p.rules[d], rules[i][d]...)
		}
		p.patience = shorter(p.patience, time.Duration(n.input.policies[i].Spec.MaxStaleness))
	}
	n.patience = shorter(n.patience, p.patience)
	for d := range p.rules {
		p.closed[d] = slices.ContainsFunc(p.rules[d], func(r *rule) bool { return !r.deny })
		if len(p.rules[d]) > 0 {
			p.cells[d] = make([]atomic.Pointer[cell], len(n.classes))
		}
	}
	return p
}

// classify finds the class of each NIC.
func (n *network) classify(s *selectors) {
	words := (len(s.members) + 63) / 64
	bits := make([]uint64, words*len(n.members))
	for i, members := range s.members {
		for _, m := range members {
			bits[int(m)*words+i/64] |= 1 << (i % 64)
		}
	}
	known := make(map[string]int32)
	key := make([]byte, 8*words)
	for m := range n.members {
		mine := bits[m*words : (m+1)*words]
		for i, w := range mine {
			binary.LittleEndian.PutUint64(key[8*i:], w)
		}
		i, ok := known[string(key)]
		if !ok {
			i = int32(len(n.classes))
			known[string(key)] = i
			n.classes = append(n.classes, mine)
		}
		n.members[m].class = i
	}
}

// A lookup finds NICs.
type lookup struct {
	nics   []*tenant.NIC
	byName map[string]int32
	labels map[[2]string][]int32
	all    []int32
}

func newLookup(nics []*tenant.NIC, byName map[string]int32) *lookup {
	l := &lookup{nics: nics, byName: byName, labels: make(map[[2]string][]int32)}
	for i, n := range nics {
		l.all = append(l.all, int32(i))
		for k, v := range n.Metadata.Labels {
			l.labels[[2]string{k, v}] = append(l.labels[[2]string{k, v}], int32(i))
		}
	}
	return l
}

// selected are the NICs that may have one of the names, if there are any, and all labels. Not all of them match.
func (l *lookup) selected(names []string, labels map[string]string) (list []int32) {
	if len(names) > 0 {
		for _, name := range names {
			if i, ok := l.byName[name]; ok && !slices.Contains(list, i) {
				list = append(list, i)
			}
		}
		return list
	}
	list = l.all
	for k, v := range labels {
		if some := l.labels[[2]string{k, v}]; len(some) < len(list) {
			list = some
		}
	}
	return list
}

// selectors are the different peers that rules name, and the NICs that each matches.
type selectors struct {
	lookup
	known     map[selectorKey]int32
	members   [][]int32
	byAddress []endpoint
}

type selectorKey struct {
	nic, labels string
	prefix      netip.Prefix
}

// An endpoint is an address and the NIC that has it.
type endpoint struct {
	at  netip.Addr
	nic int32
}

func newSelectors(nics []*tenant.NIC, byName map[string]int32) *selectors {
	s := &selectors{lookup: *newLookup(nics, byName), known: make(map[selectorKey]int32)}
	for i, n := range nics {
		for _, a := range n.Spec.Addresses {
			s.byAddress = append(s.byAddress, endpoint{a, int32(i)})
		}
	}
	slices.SortFunc(s.byAddress, func(a, b endpoint) int { return a.at.Compare(b.at) })
	return s
}

// find is the number of the selector of p; -1: every peer.
func (s *selectors) find(p *tenant.Peer) int32 {
	k := selectorKey{nic: p.NIC, labels: labelsKey(p.Labels), prefix: p.Prefix.Masked()}
	if k == (selectorKey{}) {
		return -1
	}
	i, ok := s.known[k]
	if !ok {
		i = int32(len(s.members))
		s.known[k] = i
		s.members = append(s.members, s.matches(p))
	}
	return i
}

func labelsKey(m map[string]string) string {
	if len(m) == 0 {
		return ""
	}
	list := make([]string, 0, len(m))
	for k, v := range m {
		list = append(list, k+"\x00"+v+"\x00")
	}
	slices.Sort(list)
	return strings.Join(list, "")
}

// matches are the NICs that p matches.
func (s *selectors) matches(p *tenant.Peer) (list []int32) {
	var names []string
	if p.NIC != "" {
		names = []string{p.NIC}
	}
	some := s.selected(names, p.Labels)
	if p.Prefix.IsValid() {
		if within := s.within(p.Prefix.Masked()); len(within) < len(some) {
			some = within
		}
	}
	for _, i := range some {
		if p.Matches(s.nics[i]) {
			list = append(list, i)
		}
	}
	return list
}

// within are the NICs that have an address in a prefix.
func (s *selectors) within(p netip.Prefix) (list []int32) {
	i, _ := slices.BinarySearchFunc(s.byAddress, p.Addr(), func(a endpoint, to netip.Addr) int { return a.at.Compare(to) })
	for ; i < len(s.byAddress) && p.Contains(s.byAddress[i].at); i++ {
		list = append(list, s.byAddress[i].nic)
	}
	return list
}

// rules are the rules of a policy, by direction.
func (s *selectors) rules(p *tenant.Policy, of *tenant.Network) (list [2][]*rule) {
	add := func(from []tenant.Rule, deny bool) {
		for i := range from {
			t := &from[i]
			if t.Peer.Network != "" && t.Peer.Network != of.Metadata.Name {
				t = &tenant.Rule{Direction: t.Direction, Types: []tenant.QPType{"none"}} // it matches nothing
			}
			r := &rule{
				policy: p, deny: deny, index: i, peer: &t.Peer, selector: s.find(&t.Peer), types: typesOf(t.Types),
				ops: opsOf(t.Operations), services: servicesOf(t.Service), blind: of.Spec.Way == tenant.WayNamespace,
			}
			if t.Direction != tenant.Out {
				list[in] = append(list[in], r)
			}
			if t.Direction != tenant.In {
				list[out] = append(list[out], r)
			}
		}
	}
	add(p.Spec.Deny, true)
	add(p.Spec.Allow, false)
	return list
}
