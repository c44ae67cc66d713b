package tenant

import (
	"cmp"
	"net/netip"
	"slices"
	"sync/atomic"
)

// A World is an immutable, consistent set of all objects. The zero World is empty.
type World struct {
	objects  map[Key]Object
	tenants  map[string]*household // by name
	networks map[Key]*segment      // by the network's key
	vnis     map[uint32]Key
}

// A household has the names of a tenant's networks, NICs, policies and faults.
type household struct {
	networks, nics, policies, faults map[string]struct{} // names
}

// A segment is the NICs of a network and their addresses.
type segment struct {
	nics      map[string]struct{}         // names, of the network's tenant
	addresses map[netip.Addr]string       // to the NIC's name
	last      map[netip.Prefix]netip.Addr // allocated most recently in each subnet
	// list caches the NICs, sorted by name; World.NICs fills it. Several Worlds can share a segment, because its NICs are the
	// same in each of them.
	list atomic.Pointer[[]*NIC]
}

// Get finds an object; nil if there is none.
func (w *World) Get(k Key) Object { return w.objects[k] }

// Tenant, Network and NIC find an object of their kind; nil if there is none.
func (w *World) Tenant(name string) *Tenant {
	o, _ := w.objects[Key{Kind: KindTenant, Name: name}].(*Tenant)
	return o
}

func (w *World) Network(tenant, name string) *Network {
	o, _ := w.objects[Key{KindNetwork, tenant, name}].(*Network)
	return o
}

func (w *World) NIC(tenant, name string) *NIC {
	o, _ := w.objects[Key{KindNIC, tenant, name}].(*NIC)
	return o
}

// Host finds a declared host; nil if there is none. Hosts that run vrdma are not declared.
func (w *World) Host(name string) *Host {
	o, _ := w.objects[Key{Kind: KindHost, Name: name}].(*Host)
	return o
}

// Objects returns the objects of a kind, by tenant and name. If kind is empty, it returns all objects, in an order in
// which each comes after those that it refers to.
func (w *World) Objects(kind Kind) []Object {
	var list []Object
	for k, o := range w.objects {
		if kind == "" || k.Kind == kind {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b Object) int { return a.Key().Compare(b.Key()) })
	return list
}

// ObjectsOf returns the objects of a kind that belong to a tenant, by name.
func (w *World) ObjectsOf(kind Kind, tenant string) []Object {
	names := w.tenants[tenant].names(kind)
	list := make([]Object, 0, len(names))
	for name := range names {
		list = append(list, w.objects[Key{kind, tenant, name}])
	}
	slices.SortFunc(list, func(a, b Object) int { return a.Key().Compare(b.Key()) })
	return list
}

// names returns the names of the objects of a kind; nil if h is nil, for a tenant that does not exist.
func (h *household) names(kind Kind) map[string]struct{} {
	if h == nil {
		return nil
	}
	switch kind {
	case KindNetwork:
		return h.networks
	case KindNIC:
		return h.nics
	case KindPolicy:
		return h.policies
	case KindFault:
		return h.faults
	}
	return nil
}

// NICs returns the NICs of a network, by name. The caller must not change the list.
func (w *World) NICs(network Key) []*NIC {
	s := w.networks[network]
	if s == nil {
		return nil
	}
	if list := s.list.Load(); list != nil {
		return *list
	}
	list := w.members(network)
	s.list.Store(&list)
	return list
}

// members is NICs for a World that a builder still changes.
func (w *World) members(network Key) []*NIC {
	s := w.networks[network]
	if s == nil {
		return nil
	}
	list := make([]*NIC, 0, len(s.nics))
	for name := range s.nics {
		list = append(list, w.NIC(network.Tenant, name))
	}
	slices.SortFunc(list, func(a, b *NIC) int { return cmp.Compare(a.Metadata.Name, b.Metadata.Name) })
	return list
}

// NICAt is the NIC of a network that has an address; nil if none has.
func (w *World) NICAt(network Key, a netip.Addr) *NIC {
	if s := w.networks[network]; s != nil {
		if name, found := s.addresses[a]; found {
			return w.NIC(network.Tenant, name)
		}
	}
	return nil
}

// NetworkByVNI finds a network; nil if none has the VNI.
func (w *World) NetworkByVNI(vni uint32) *Network {
	o, _ := w.objects[w.vnis[vni]].(*Network)
	return o
}

// TenantOf and NetworkOf return the tenant and the network of a NIC of this World.
func (w *World) TenantOf(n *NIC) *Tenant   { return w.Tenant(n.Metadata.Tenant) }
func (w *World) NetworkOf(n *NIC) *Network { return w.Network(n.Metadata.Tenant, n.Spec.Network) }

// NetworkKey is the key of the NIC's network.
func (o *NIC) NetworkKey() Key { return Key{KindNetwork, o.Metadata.Tenant, o.Spec.Network} }

// Selects reports whether a NIC of the policy's own tenant is meant: of the network, if one is
// given, and with one of the names, if any are given, and all of the labels.
func (s *Selector) Selects(n *NIC) bool {
	return (s.Network == "" || s.Network == n.Spec.Network) &&
		(len(s.Names) == 0 || slices.Contains(s.Names, n.Metadata.Name)) &&
		hasLabels(n, s.Labels)
}

// Matches reports whether a NIC of the same network is meant.
func (p *Peer) Matches(n *NIC) bool {
	return (p.NIC == "" || p.NIC == n.Metadata.Name) && hasLabels(n, p.Labels) &&
		(!p.Prefix.IsValid() || slices.ContainsFunc(n.Spec.Addresses, p.Prefix.Contains))
}

func hasLabels(n *NIC, want map[string]string) bool {
	for k, v := range want {
		if have, found := n.Metadata.Labels[k]; !found || have != v {
			return false
		}
	}
	return true
}

// rank is the order of kinds: each refers to those before it.
var rank = map[Kind]int{KindTenant: 1, KindHost: 2, KindNetwork: 3, KindNIC: 4, KindPolicy: 5, KindFault: 6}

// Compare orders keys by kind, tenant and name.
func (k Key) Compare(l Key) int {
	return cmp.Or(cmp.Compare(rank[k.Kind], rank[l.Kind]), cmp.Compare(k.Tenant, l.Tenant), cmp.Compare(k.Name, l.Name))
}
