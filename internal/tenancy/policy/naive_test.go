package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// The naive engine implements the package comment sentence by sentence. It shares nothing with the compiled form, not
// even what a label or a port is.

type naive struct {
	network  *tenant.Network
	nics     []*tenant.NIC
	policies []*tenant.Policy
}

// connection judges a connection from one NIC to another; to is nil for an address without a NIC.
func (w *naive) connection(from, to *tenant.NIC, c ib.Contact) ib.Operations {
	ops := w.bounds(from, to, c.Type)
	if from == to {
		return ops
	}
	ops &= w.end(from, to, tenant.Out, c) & w.end(to, from, tenant.In, c)
	if c.By == ib.Nobody {
		ops &= w.end(to, from, tenant.Out, c) & w.end(from, to, tenant.In, c)
	}
	return ops
}

func (w *naive) bounds(from, to *tenant.NIC, t ib.Service) ib.Operations {
	ops := ib.AllOperations
	for _, n := range []*tenant.NIC{from, to} {
		if !hasType(n.Spec.Types, t) {
			return 0
		}
		ops &= operations(n.Spec.Operations)
	}
	return ops
}

func hasType(list []tenant.QPType, t ib.Service) bool {
	return len(list) == 0 || slices.Contains(list, tenant.QPType(strings.ToLower(t.String())))
}

func operations(list []tenant.Operation) (ops ib.Operations) {
	for i, o := range []tenant.Operation{tenant.Send, tenant.Write, tenant.Read, tenant.Atomic} {
		if len(list) == 0 || slices.Contains(list, o) {
			ops |= 1 << i
		}
	}
	return ops
}

func (w *naive) end(n, peer *tenant.NIC, d tenant.Direction, c ib.Contact) ib.Operations {
	var allow, deny ib.Operations
	closed := false
	for _, p := range w.policies {
		if p.Metadata.Tenant != n.Metadata.Tenant || !w.about(&p.Spec.NICs, n) {
			continue
		}
		for _, r := range p.Spec.Deny {
			if w.matches(&r, peer, d, c) {
				deny |= operations(r.Operations)
			}
		}
		for _, r := range p.Spec.Allow {
			if r.Direction == "" || r.Direction == d {
				closed = true
			}
			if w.matches(&r, peer, d, c) {
				allow |= operations(r.Operations)
			}
		}
	}
	if closed {
		return allow &^ deny
	}
	if w.network.Spec.Default == tenant.Deny {
		return 0
	}
	return ib.AllOperations &^ deny
}

func (w *naive) about(s *tenant.Selector, n *tenant.NIC) bool {
	if s.Network != "" && s.Network != n.Spec.Network || len(s.Names) > 0 && !slices.Contains(s.Names, n.Metadata.Name) {
		return false
	}
	for k, v := range s.Labels {
		if n.Metadata.Labels[k] != v {
			return false
		}
	}
	return true
}

func (w *naive) matches(r *tenant.Rule, peer *tenant.NIC, d tenant.Direction, c ib.Contact) bool {
	if r.Direction != "" && r.Direction != d || !hasType(r.Types, c.Type) {
		return false
	}
	if r.Peer.NIC != "" && r.Peer.NIC != peer.Metadata.Name {
		return false
	}
	for k, v := range r.Peer.Labels {
		if peer.Metadata.Labels[k] != v {
			return false
		}
	}
	if r.Peer.Prefix.IsValid() {
		found := false
		for _, a := range peer.Spec.Addresses {
			found = found || r.Peer.Prefix.Contains(a)
		}
		if !found {
			return false
		}
	}
	if r.Service == nil {
		return true
	}
	if r.Service.Manual || c.By == ib.Nobody {
		return r.Service.Manual && c.By == ib.Nobody
	}
	space := map[uint64]string{0x106: "tcp", 0x111: "udp", 0x13f: "ib"}[c.ID>>16]
	if space == "" || r.Service.Space != "" && r.Service.Space != space {
		return false
	}
	for _, p := range r.Service.Ports {
		if p.First <= c.ID&0xffff && c.ID&0xffff <= p.Last {
			return true
		}
	}
	return len(r.Service.Ports) == 0
}

// ---- random worlds ----

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// some picks a few, or none.
func some[T any](r *rand.Rand, chance int, list ...T) (out []T) {
	if r.IntN(chance) != 0 {
		return nil
	}
	for _, v := range list {
		if r.IntN(2) == 0 {
			out = append(out, v)
		}
	}
	return out
}

func labels(r *rand.Rand, chance int) map[string]string {
	if r.IntN(chance) != 0 {
		return nil
	}
	m := map[string]string{"role": pick(r, "web", "store", "batch")}
	if r.IntN(3) == 0 {
		m["zone"] = pick(r, "a", "b")
	}
	return m
}

func randomRule(r *rand.Rand) tenant.Rule {
	t := tenant.Rule{
		Direction: pick(r, "", tenant.In, tenant.Out), Peer: tenant.Peer{Labels: labels(r, 2)},
		Types: some(r, 3, tenant.RC, tenant.UC, tenant.UD), Operations: some(r, 2, tenant.Send, tenant.Write, tenant.Read, tenant.Atomic),
	}
	if r.IntN(4) == 0 {
		t.Peer.NIC = fmt.Sprint("n", r.IntN(6))
	}
	if r.IntN(3) == 0 {
		t.Peer.Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(r.IntN(8))}), pick(r, 24, 29, 30, 31, 32))
	}
	switch r.IntN(4) {
	case 0:
		t.Service = &tenant.Service{Manual: true}
	case 1:
		t.Service = &tenant.Service{Space: pick(r, "", "tcp", "udp", "ib")}
		for range r.IntN(3) {
			first := uint64(r.IntN(10))
			t.Service.Ports = append(t.Service.Ports, tenant.PortRange{First: first, Last: first + uint64(r.IntN(4))})
		}
	}
	return t
}

func randomWorld(r *rand.Rand) *naive {
	w := &naive{network: &tenant.Network{
		Metadata: tenant.Metadata{Name: "net", Tenant: "red"}, Spec: tenant.NetworkSpec{Default: pick(r, "", tenant.Allow, tenant.Allow, tenant.Deny)},
	}}
	for i := range 2 + r.IntN(5) {
		n := &tenant.NIC{Metadata: tenant.Metadata{Name: fmt.Sprint("n", i), Tenant: "red", Labels: labels(r, 1)}, Spec: tenant.NICSpec{
			Network: "net", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})},
			Types: some(r, 5, tenant.RC, tenant.UC, tenant.UD), Operations: some(r, 5, tenant.Send, tenant.Write, tenant.Read, tenant.Atomic),
		}}
		if r.IntN(2) == 0 {
			n.Spec.Addresses = append(n.Spec.Addresses, netip.MustParseAddr(fmt.Sprint("fd00::", i)))
		}
		w.nics = append(w.nics, n)
	}
	for i := range r.IntN(5) {
		p := &tenant.Policy{Metadata: tenant.Metadata{Name: fmt.Sprint("p", i), Tenant: "red"}, Spec: tenant.PolicySpec{
			NICs: tenant.Selector{Network: pick(r, "", "net"), Names: some(r, 3, "n0", "n1", "n2", "n9"), Labels: labels(r, 2)},
		}}
		for range r.IntN(3) {
			p.Spec.Allow = append(p.Spec.Allow, randomRule(r))
		}
		for range r.IntN(3) {
			p.Spec.Deny = append(p.Spec.Deny, randomRule(r))
		}
		w.policies = append(w.policies, p)
	}
	return w
}

func (w *naive) rules() *Rules {
	r := &Rules{networks: make(map[tenant.Key]*network), guards: make(map[tenant.Key]*Guard)}
	r.add(input{w.network, w.nics, w.policies}, nil)
	return r
}

func randomContact(r *rand.Rand) ib.Contact {
	c := ib.Contact{Type: pick(r, ib.RC, ib.UC, ib.UD), By: pick(r, ib.Nobody, ib.Us)}
	if c.By == ib.Us {
		c.ID = pick[uint64](r, 0x106, 0x111, 0x13f, 2)<<16 | uint64(r.IntN(14))
	}
	return c
}

// TestAgainstNaive: in 10 000 random worlds the compiled rules, seen from either end, and the
// explanation decide what the naive engine decides.
func TestAgainstNaive(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 4))
	allowed, refused, partly := 0, 0, 0
	for world := range 10_000 {
		w := randomWorld(r)
		rules := w.rules()
		for range 20 {
			from, to, c := pick(r, w.nics...), pick(r, w.nics...), randomContact(r)
			want := w.connection(from, to, c)
			switch want {
			case 0:
				refused++
			case ib.AllOperations:
				allowed++
			default:
				partly++
			}
			there := ib.Contact{Type: c.Type, By: c.By, ID: c.ID}
			if there.By == ib.Us {
				there.By = ib.Them
			}
			a, err := rules.Explain(from.Key(), to.Key(), c)
			if err != nil {
				t.Fatal(err)
			}
			steps := ib.AllOperations
			for _, s := range a.Steps {
				steps &= s.Operations
				if s.Why == "" || s.Who == "" {
					t.Fatalf("world %d: a step without a reason: %+v", world, a)
				}
			}
			here, known := rules.NIC(from.Key()).Judge(ib.GIDOf(pick(r, to.Spec.Addresses...)), c)
			other, _ := rules.NIC(to.Key()).Judge(ib.GIDOf(pick(r, from.Spec.Addresses...)), there)
			if here != want || other != want || a.Operations != want || steps != want || !known {
				t.Fatalf("world %d, %s to %s, %+v: here %04b, there %04b, explained %04b by %04b, want %04b\n%+v\n%s",
					world, from.Key(), to.Key(), c, here, other, a.Operations, steps, want, w, a)
			}
		}
	}
	t.Logf("allowed %d, partly %d, refused %d", allowed, partly, refused)
	if min(allowed, refused, partly) < 1000 {
		t.Error("the worlds are too much alike")
	}
}
