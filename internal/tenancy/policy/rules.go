package policy

import (
	"maps"
	"slices"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Rules are the compiled policies of a world. They do not change. Any goroutine may use them.
type Rules struct {
	networks map[tenant.Key]*network
	guards   map[tenant.Key]*Guard
}

// Compile compiles the policies of a world. It reuses unchanged networks of before, which may be nil.
func Compile(w *tenant.World, before *Rules) *Rules {
	r := successor(before)
	if before != nil {
		for key, n := range before.networks {
			if w.Network(key.Tenant, key.Name) == nil {
				r.drop(n)
			}
		}
	}
	policies := make(map[string][]*tenant.Policy) // by tenant
	for _, o := range w.Objects(tenant.KindPolicy) {
		p := o.(*tenant.Policy)
		policies[p.Metadata.Tenant] = append(policies[p.Metadata.Tenant], p)
	}
	for _, o := range w.Objects(tenant.KindNetwork) {
		n := o.(*tenant.Network)
		r.add(input{n, w.NICs(n.Key()), about(policies[n.Metadata.Tenant], n.Metadata.Name)}, before)
	}
	return r
}

// successor has the previous guards and no networks yet.
func successor(before *Rules) *Rules {
	r := &Rules{networks: make(map[tenant.Key]*network), guards: make(map[tenant.Key]*Guard)}
	if before != nil {
		r.guards = maps.Clone(before.guards)
	}
	return r
}

// add compiles a network, or reuses it.
func (r *Rules) add(from input, before *Rules) {
	key := from.network.Key()
	n := before.network(key)
	if n != nil && n.input.equal(&from) {
		r.networks[key] = n
		return
	}
	if n != nil {
		r.drop(n)
	}
	n = compile(from)
	r.networks[key] = n
	for i, o := range n.input.nics {
		r.guards[o.Key()] = &n.guards[i]
	}
}

// drop removes the guards of a network that was deleted or has changed. A NIC that is in another network by now keeps
// its guard there.
func (r *Rules) drop(n *network) {
	for _, o := range n.input.nics {
		if g := r.guards[o.Key()]; g != nil && g.net == n {
			delete(r.guards, o.Key())
		}
	}
}

func (r *Rules) network(key tenant.Key) *network {
	if r == nil {
		return nil
	}
	return r.networks[key]
}

// about are the policies that may select NICs of a network.
func about(list []*tenant.Policy, network string) (out []*tenant.Policy) {
	for _, p := range list {
		if s := p.Spec.NICs.Network; s == "" || s == network {
			out = append(out, p)
		}
	}
	return out
}

// input is what a network is compiled from.
type input struct {
	network  *tenant.Network
	nics     []*tenant.NIC
	policies []*tenant.Policy
}

// equal reports whether nothing has changed. Objects are replaced, not changed.
func (a *input) equal(b *input) bool {
	return a.network == b.network && slices.Equal(a.nics, b.nics) && slices.Equal(a.policies, b.policies)
}

// NIC returns the guard of a NIC; nil: there is no such NIC. Guards of one NIC from two Rules are the same if nothing
// has changed in its network.
func (r *Rules) NIC(key tenant.Key) *Guard { return r.guards[key] }

// A Guard is the rules for one NIC.
type Guard struct {
	net *network
	nic int32
}

// Judge returns the operations that a connection with a peer may use; none: it is refused. Without known the peer is
// not in the NIC's network.
func (g *Guard) Judge(peer ib.GID, c ib.Contact) (ops ib.Operations, known bool) {
	n := g.net
	if peer.IsMulticast() {
		return n.group(g.nic, peer, c.By), true
	}
	p, ok := n.byAddress[peer]
	if !ok {
		if !n.open {
			return 0, false
		}
		return n.stranger(g.nic, peer, c), true
	}
	return n.judge(g.nic, p, c), true
}

// Type reports whether the NIC may have queue pairs of a type.
func (g *Guard) Type(t ib.Service) bool { return g.net.members[g.nic].types&typeBit(t) != 0 }
