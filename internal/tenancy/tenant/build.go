package tenant

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// household returns the tenant's household in the next World. It is a copy that the builder may change.
func (b *builder) household(name string) *household {
	h := b.next.tenants[name]
	if h != nil && b.cloned[h] {
		return h
	}
	made := &household{networks: map[string]struct{}{}, nics: map[string]struct{}{}, policies: map[string]struct{}{}, faults: map[string]struct{}{}}
	if h != nil {
		made = &household{maps.Clone(h.networks), maps.Clone(h.nics), maps.Clone(h.policies), maps.Clone(h.faults)}
	}
	b.next.tenants[name], b.cloned[made] = made, true
	return made
}

// segment returns the network's segment in the next World. It is a copy that the builder may change.
func (b *builder) segment(network Key) *segment {
	s := b.next.networks[network]
	if s != nil && b.cloned[s] {
		return s
	}
	made := &segment{nics: map[string]struct{}{}, addresses: map[netip.Addr]string{}, last: map[netip.Prefix]netip.Addr{}}
	if s != nil {
		made = &segment{nics: maps.Clone(s.nics), addresses: maps.Clone(s.addresses), last: maps.Clone(s.last)}
	}
	b.next.networks[network], b.cloned[made] = made, true
	return made
}

// resume continues allocation after the largest address in use, because the last allocated address is not stored.
func (s *segment) resume() {
	for a := range s.addresses {
		for p, last := range s.last {
			if p.Contains(a) && last.Less(a) {
				s.last[p] = a
			}
		}
	}
}

// insert adds an object to the next World.
func (b *builder) insert(p *put) {
	k := p.made.Key()
	b.next.objects[k] = p.made
	if k.Kind == KindTenant {
		b.household(k.Name)
	} else if k.Kind != KindHost {
		b.insertOf(k)
	}
}

func (b *builder) insertOf(k Key) {
	if names := b.household(k.Tenant).names(k.Kind); names != nil {
		names[k.Name] = struct{}{}
	}
}

// remove removes an object from the next World.
func (b *builder) remove(k Key) {
	o := b.next.objects[k]
	delete(b.next.objects, k)
	switch o := o.(type) {
	case *Tenant:
		delete(b.next.tenants, k.Name)
		return
	case *Host:
		return
	case *Network:
		delete(b.next.networks, k)
		if o.Spec.VNI != 0 {
			delete(b.next.vnis, o.Spec.VNI)
		}
	case *NIC:
		if b.next.networks[o.NetworkKey()] != nil {
			s := b.segment(o.NetworkKey())
			delete(s.nics, k.Name)
			for _, a := range o.Spec.Addresses {
				delete(s.addresses, a)
			}
		}
	}
	if b.next.tenants[k.Tenant] != nil {
		delete(b.household(k.Tenant).names(k.Kind), k.Name)
	}
}

// inTenant reports whether the tenant of an object exists, and adds an error if not.
func (b *builder) inTenant(p *put) bool {
	name := p.made.Key().Tenant
	absent, complain := b.absent(p, Key{Kind: KindTenant, Name: name})
	if complain {
		b.wrong(p, "metadata.tenant", "there is no tenant %q: declare it, or correct the name", name)
	}
	return !absent
}

// hasNetwork complains about a network that the object's tenant does not have.
func (b *builder) hasNetwork(p *put, field, name string) bool {
	tenant := p.made.Key().Tenant
	absent, complain := b.absent(p, Key{KindNetwork, tenant, name})
	if complain {
		b.wrong(p, field, "tenant %s has no network %q: declare it, or correct the name", tenant, name)
	}
	return !absent
}

func (b *builder) putNetwork(p *put, o *Network) {
	if !b.inTenant(p) {
		return
	}
	if old, _ := p.old.(*Network); old != nil {
		if o.Spec.VNI == 0 {
			o.Spec.VNI = old.Spec.VNI
		}
		if o.Spec.VNI != old.Spec.VNI {
			b.wrong(p, "spec.vni", "%d: the network has VNI %d, which cannot change: delete the network and apply again, or leave vni out", o.Spec.VNI, old.Spec.VNI)
		}
		if o.way() != old.way() {
			b.wrong(p, "spec.way", "%s: the network's way is %s, which cannot change: delete the network and apply again", o.way(), old.way())
		}
		b.keepSubnets(p, o)
	}
	if vni := o.Spec.VNI; vni != 0 {
		if by, taken := b.next.vnis[vni]; taken && by != o.Key() {
			b.wrong(p, "spec.vni", "%d is the VNI of %s: choose another, or leave it out to have one allocated", vni, by)
		}
	}
	if p.bad && b.kept {
		return
	}
	b.insert(p)
	if o.Spec.VNI != 0 && !p.bad {
		b.next.vnis[o.Spec.VNI] = o.Key()
	}
	s := b.segment(o.Key())
	last := s.last
	s.last = map[netip.Prefix]netip.Addr{}
	for _, prefix := range o.Spec.Subnets {
		s.last[prefix] = prefix.Addr()
		if a, found := last[prefix]; found {
			s.last[prefix] = a
		}
	}
}

// way returns how the network reaches other hosts, declared or by default.
func (o *Network) way() Way {
	if o.Spec.Way == "" {
		return WayVXLAN
	}
	return o.Spec.Way
}

// keepSubnets adds an error if remaining NICs would lose their subnet.
func (b *builder) keepSubnets(p *put, o *Network) {
	s := b.next.networks[o.Key()]
	if s == nil || len(o.Spec.Subnets) == 0 {
		return
	}
	old := p.old.(*Network)
	if slices.Equal(old.Spec.Subnets, o.Spec.Subnets) {
		return
	}
	var lost []string
	for a, name := range s.addresses {
		if why := unfit(o, a); why != "" {
			lost = append(lost, fmt.Sprintf("%s (%s)", name, a))
		}
	}
	if len(lost) > 0 {
		slices.Sort(lost)
		b.wrong(p, "spec.subnets", "NICs have addresses that would be in none of them: %s: keep their subnet, or delete them first", someOf(lost))
	}
}

// someOf joins the first few names.
func someOf(names []string) string {
	const most = 5
	if len(names) > most {
		names = append(slices.Clone(names[:most]), fmt.Sprintf("%d more", len(names)-most))
	}
	return strings.Join(names, ", ")
}

// unfit says why an address cannot be used in a network; empty if it can.
func unfit(o *Network, a netip.Addr) string {
	if len(o.Spec.Subnets) == 0 {
		return "" // of the host, or of a namespace
	}
	for _, p := range o.Spec.Subnets {
		if p.Contains(a) {
			return reserved(p, a)
		}
	}
	var all []string
	for _, p := range o.Spec.Subnets {
		all = append(all, p.String())
	}
	return fmt.Sprintf("is not in the subnets of %s (%s)", o.Key(), strings.Join(all, ", "))
}

func (b *builder) allocateVNI(p *put, o *Network) {
	if o.Spec.VNI != 0 || o.way() != WayVXLAN {
		return
	}
	if b.kept {
		b.wrong(p, "spec.vni", "a stored network has no VNI")
		b.remove(o.Key())
		return
	}
	// Random, so that two stores on one underlay rarely choose the same. Most are free.
	vni := firstVNI + b.rnd.Uint32N(lastVNI-firstVNI+1)
	for range len(b.next.vnis) + 1 {
		if _, taken := b.next.vnis[vni]; !taken {
			o.Spec.VNI = vni
			b.next.vnis[vni] = o.Key()
			return
		}
		if vni++; vni > lastVNI {
			vni = firstVNI
		}
	}
	b.wrong(p, "spec.vni", "all VNIs are in use: delete networks")
}

func (b *builder) putNIC(p *put, o *NIC) {
	if !b.inTenant(p) {
		return
	}
	if !b.hasNetwork(p, "spec.network", o.Spec.Network) {
		return
	}
	network := b.next.NetworkOf(o)
	if old, _ := p.old.(*NIC); old != nil && !b.sameNIC(p, o, old) {
		return
	}
	s := b.segment(network.Key())
	for i, a := range o.Spec.Addresses {
		if network.way() == WayNamespace {
			b.wrong(p, given(p).addressFieldOf(a, i), "%s: %s has way namespace, where a NIC has the addresses of the container that it is in, and the engine gives those: leave it out", a, network.Key())
			break
		}
		if why := unfit(network, a); why != "" {
			b.wrong(p, given(p).addressFieldOf(a, i), "%s %s: choose another, or leave it out to have one allocated", a, why)
		} else if by, taken := s.addresses[a]; taken && by != o.Metadata.Name {
			b.wrong(p, given(p).addressFieldOf(a, i), "%s is the address of %s: choose another, or leave it out to have one allocated", a, Key{KindNIC, o.Metadata.Tenant, by})
		}
	}
	if p.bad && b.kept {
		return
	}
	b.insert(p)
	s.nics[o.Metadata.Name] = struct{}{}
	for _, a := range o.Spec.Addresses {
		if _, taken := s.addresses[a]; !taken {
			s.addresses[a] = o.Metadata.Name
		}
	}
}

func given(p *put) *NICSpec { return &p.given.(*NIC).Spec }

// addressFieldOf returns the field of an address in the declared object.
func (s *NICSpec) addressFieldOf(a netip.Addr, i int) string {
	if j := slices.Index(s.addresses(), a); j >= 0 {
		i = j
	}
	return s.addressField(i)
}

// sameNIC copies the addresses of the NIC that is replaced. It adds an error if another network or address is declared,
// because programs that have the NIC open use its addresses.
func (b *builder) sameNIC(p *put, o, old *NIC) bool {
	if o.Spec.Network != old.Spec.Network {
		b.wrong(p, "spec.network", "%q: the NIC is in network %q, which cannot change: delete the NIC and apply again", o.Spec.Network, old.Spec.Network)
	}
	if len(o.Spec.Addresses) == 0 {
		o.Spec.Addresses = old.Spec.Addresses
	}
	if !slices.Equal(o.Spec.Addresses, old.Spec.Addresses) {
		b.wrong(p, given(p).addressField(0), "%s: the NIC has %s, which cannot change: delete the NIC and apply again, or leave the address out",
			addressText(o.Spec.Addresses), addressText(old.Spec.Addresses))
	}
	return !p.bad
}

func addressText(list []netip.Addr) string {
	var texts []string
	for _, a := range list {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, " and ")
}

// allocateAddresses allocates an address of each family of the network for a NIC without addresses. Declared addresses
// are in the segment already, also those of NICs that come later in the file.
func (b *builder) allocateAddresses(p *put, o *NIC) {
	if len(o.Spec.Addresses) > 0 {
		return
	}
	network := b.next.NetworkOf(o)
	for _, is6 := range []bool{false, true} {
		subnets := slices.DeleteFunc(slices.Clone(network.Spec.Subnets), func(q netip.Prefix) bool { return q.Addr().Is6() != is6 })
		if len(subnets) == 0 {
			continue
		}
		if b.kept {
			b.wrong(p, "spec.addresses", "a stored NIC has no address")
			b.remove(o.Key())
			return
		}
		s := b.segment(network.Key())
		i := slices.IndexFunc(subnets, func(q netip.Prefix) bool {
			a, ok := s.allocate(q)
			if ok {
				s.addresses[a] = o.Metadata.Name
				o.Spec.Addresses = append(o.Spec.Addresses, a)
			}
			return ok
		})
		if i < 0 {
			b.wrong(p, "spec", "no address is free in %s of %s: add a subnet to the network, or delete NICs", prefixText(subnets), network.Key())
		}
	}
}

func prefixText(list []netip.Prefix) string {
	var texts []string
	for _, p := range list {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ", ")
}

func (b *builder) putPolicy(p *put, o *Policy) {
	if !b.inTenant(p) {
		return
	}
	s := &o.Spec
	if s.NICs.Network != "" && !b.hasNetwork(p, "spec.nics.network", s.NICs.Network) {
		return
	}
	for i, name := range s.NICs.Names {
		if why := b.stranger(p, o, name); why != "" {
			b.wrong(p, fmt.Sprintf("spec.nics.names[%d]", i), "%s", why)
		}
	}
	b.peers(p, o, "spec.allow", s.Allow)
	b.peers(p, o, "spec.deny", s.Deny)
	if p.bad && b.kept {
		return
	}
	b.insert(p)
}

// putFault adds a Fault. It may name NICs that do not exist yet: tests declare faults first.
func (b *builder) putFault(p *put, o *Fault) {
	if o.Metadata.Tenant != DefaultTenant && !b.inTenant(p) {
		return
	}
	b.insert(p)
}

func (b *builder) peers(p *put, o *Policy, list string, rules []Rule) {
	for i := range rules {
		if name := rules[i].Peer.NIC; name != "" {
			if why := b.stranger(p, o, name); why != "" {
				b.wrong(p, fmt.Sprintf("%s[%d].peer.nic", list, i), "%s", why)
			}
		}
	}
}

// stranger says why a policy cannot name a NIC; empty if it can. A stored policy may name one that
// was deleted by force, and perhaps made again elsewhere.
func (b *builder) stranger(p *put, o *Policy, name string) string {
	if b.kept {
		return ""
	}
	if absent, complain := b.absent(p, Key{KindNIC, o.Metadata.Tenant, name}); absent {
		if !complain {
			return ""
		}
		return fmt.Sprintf("tenant %s has no NIC %q: declare it, or correct the name", o.Metadata.Tenant, name)
	}
	nic := b.next.NIC(o.Metadata.Tenant, name)
	if o.Spec.NICs.Network != "" && nic.Spec.Network != o.Spec.NICs.Network {
		return fmt.Sprintf("NIC %q is in network %q, and the policy is about %q: networks cannot reach each other yet", name, nic.Spec.Network, o.Spec.NICs.Network)
	}
	return ""
}

// sums checks the totals of a tenant: of tenants that change, and of those that get NICs.
func (b *builder) sums() {
	checked := map[string]bool{}
	for _, p := range slices.Backward(b.puts) { // the last NIC is the one too many
		k := p.given.Key()
		name := k.Tenant
		if k.Kind == KindTenant {
			name = k.Name
		}
		if (k.Kind != KindTenant && k.Kind != KindNIC) || checked[name] || b.next.Tenant(name) == nil {
			continue
		}
		checked[name] = true
		if wrong := b.next.excess(name); wrong != "" && !b.kept {
			b.wrong(p, "", "%s", wrong)
		}
		if k.Kind == KindTenant && !b.kept {
			b.namespaces(p, name)
		}
	}
}

// namespaces adds an error about a Kubernetes namespace that two tenants have.
func (b *builder) namespaces(p *put, name string) {
	for i, space := range b.next.Tenant(name).Spec.Namespaces {
		for other := range b.next.tenants {
			if t := b.next.Tenant(other); other != name && t != nil && slices.Contains(t.Spec.Namespaces, space) {
				b.wrong(p, fmt.Sprintf("spec.namespaces[%d]", i), "%q is tenant %s's already: pods have one tenant; take it from one of the two", space, other)
			}
		}
	}
}

// excess says what of a tenant is more than it may be; empty if nothing is.
func (w *World) excess(tenant string) string {
	t := w.Tenant(tenant)
	nics := w.tenants[tenant].nics
	if most := t.Spec.Quota.NICs; most != 0 && len(nics) > most {
		return fmt.Sprintf("tenant %s would have %d NICs, and its quota is %d: delete NICs, or have the operator raise spec.quota.nics of the tenant", tenant, len(nics), most)
	}
	if t.Spec.Rate.Out == 0 {
		return ""
	}
	var sum BitRate
	for name := range nics {
		if sum += w.NIC(tenant, name).Spec.Guarantee; sum > t.Spec.Rate.Out {
			return fmt.Sprintf("the guarantees of tenant %s's NICs would be more than its rate.out, %s: guarantee less, or raise the rate", tenant, t.Spec.Rate.Out)
		}
	}
	return ""
}
