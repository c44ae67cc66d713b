package tenant

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// naive reports whether a list of objects can be a world, in the plainest way: it compares each with each. Addresses
// and VNIs are allocated already.
func naive(objects []Object) bool {
	find := func(k Key) Object {
		for _, o := range objects {
			if o.Key() == k {
				return o
			}
		}
		return nil
	}
	for i, o := range objects {
		k := o.Key()
		if check(o) != nil || k.Kind != KindTenant && find(Key{Kind: KindTenant, Name: k.Tenant}) == nil {
			return false
		}
		for j, p := range objects {
			if i != j && (k == p.Key() || clash(o, p)) {
				return false
			}
		}
		switch o := o.(type) {
		case *Tenant:
			count := 0
			for _, p := range objects {
				if p.Key().Kind == KindNIC && p.Key().Tenant == k.Name {
					count++
				}
			}
			if o.Spec.Quota.NICs != 0 && count > o.Spec.Quota.NICs {
				return false
			}
		case *NIC:
			network, _ := find(o.NetworkKey()).(*Network)
			if network == nil || len(o.Spec.Addresses) == 0 {
				return false
			}
			for _, a := range o.Spec.Addresses {
				if !slices.ContainsFunc(network.Spec.Subnets, func(p netip.Prefix) bool { return p.Contains(a) && reserved(p, a) == "" }) {
					return false
				}
			}
		case *Policy:
			if o.Spec.NICs.Network != "" && find(Key{KindNetwork, k.Tenant, o.Spec.NICs.Network}) == nil {
				return false
			}
			for _, name := range append(slices.Clone(o.Spec.NICs.Names), o.Spec.Deny[0].Peer.NIC) {
				if name == "" {
					continue
				}
				nic, _ := find(Key{KindNIC, k.Tenant, name}).(*NIC)
				if nic == nil || o.Spec.NICs.Network != "" && nic.Spec.Network != o.Spec.NICs.Network {
					return false
				}
			}
		}
	}
	return true
}

// clash reports whether two objects have the same VNI or address.
func clash(o, p Object) bool {
	switch o := o.(type) {
	case *Network:
		q, is := p.(*Network)
		return is && q.Spec.VNI == o.Spec.VNI
	case *NIC:
		q, is := p.(*NIC)
		return is && q.NetworkKey() == o.NetworkKey() &&
			slices.ContainsFunc(o.Spec.Addresses, func(a netip.Addr) bool { return slices.Contains(q.Spec.Addresses, a) })
	}
	return false
}

// randomChange uses few names, so that changes interact.
func randomChange(rnd *rand.Rand) (c Change) {
	pick := func(list ...string) string { return list[rnd.IntN(len(list))] }
	meta := func() Metadata { return Metadata{Name: pick("a", "b", "c"), Tenant: pick("red", "blue")} }
	for range 1 + rnd.IntN(3) {
		var o Object
		switch rnd.IntN(6) {
		case 0:
			o = &Tenant{Metadata: Metadata{Name: pick("red", "blue")}, Spec: TenantSpec{Quota: Quota{NICs: rnd.IntN(5)}}}
		case 1:
			n := &Network{Metadata: meta(), Spec: NetworkSpec{VNI: uint32(rnd.IntN(6))}}
			n.Spec.Subnets = [][]netip.Prefix{
				{netip.MustParsePrefix("10.0.0.0/30")}, {netip.MustParsePrefix("10.0.0.0/29")},
				{netip.MustParsePrefix("10.0.0.0/30"), netip.MustParsePrefix("fd00::/126")},
			}[rnd.IntN(3)]
			o = n
		case 2, 3, 4:
			n := &NIC{Metadata: meta(), Spec: NICSpec{Network: pick("a", "a", "b")}}
			if rnd.IntN(2) == 0 {
				n.Spec.Address = netip.AddrFrom4([4]byte{10, 0, 0, byte(rnd.IntN(5))})
			}
			o = n
		default:
			p := &Policy{Metadata: meta(), Spec: PolicySpec{NICs: Selector{Network: pick("", "a", "b")}, Deny: make([]Rule, 1)}}
			if rnd.IntN(2) == 0 {
				p.Spec.NICs.Names = []string{pick("a", "b", "c")}
			}
			p.Spec.Deny[0].Peer.NIC = pick("", "a", "b", "c")
			o = p
		}
		if rnd.IntN(4) == 0 {
			c.Delete = append(c.Delete, o.Key())
		} else {
			c.Put = append(c.Put, o)
		}
	}
	c.Force = rnd.IntN(8) == 0
	return c
}

// expected makes the change naively: it returns the resulting objects, or that the change is invalid.
func expected(w *World, c Change) (objects []Object, ok bool) {
	deleted := func(k Key) bool { return slices.Contains(c.Delete, k) }
	for i, o := range c.Put {
		if deleted(o.Key()) || slices.ContainsFunc(c.Put[:i], func(p Object) bool { return p.Key() == o.Key() }) {
			return nil, false
		}
	}
	for _, k := range c.Delete {
		if w.Get(k) == nil {
			return nil, false
		}
	}
	for _, o := range w.Objects("") {
		if !deleted(o.Key()) && !slices.ContainsFunc(c.Put, func(p Object) bool { return p.Key() == o.Key() }) {
			objects = append(objects, o)
		}
	}
	for _, o := range c.Put {
		made, old := normal(o), w.Get(o.Key())
		switch o := made.(type) {
		case *Network:
			if old != nil && o.Spec.VNI != 0 && o.Spec.VNI != old.(*Network).Spec.VNI {
				return nil, false
			}
		case *NIC:
			if old != nil && (o.Spec.Network != old.(*NIC).Spec.Network ||
				len(o.Spec.Addresses) != 0 && !slices.Equal(o.Spec.Addresses, old.(*NIC).Spec.Addresses)) {
				return nil, false
			}
		}
		objects = append(objects, made)
	}
	return objects, true
}

// TestChangeAgainstNaive makes random changes. Every world that Next accepts passes the naive check and has the
// expected objects. What Next refuses fails the naive check, or lacks a free address.
func TestChangeAgainstNaive(t *testing.T) {
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		w := &World{}
		made, refusals := 0, 0
		for i := range 300 {
			c := randomChange(rnd)
			before := fmt.Sprint(dump(w))
			next, effects, err := w.Next(c, rnd)
			if fmt.Sprint(dump(w)) != before {
				t.Fatalf("seed %d, change %d: the world before has changed", seed, i)
			}
			objects, possible := expected(w, c)
			if err != nil {
				refusals++
				if possible && !c.Force && complete(objects, w) && naive(objects) {
					t.Fatalf("seed %d, change %d: %+v refused: %v", seed, i, c, err)
				}
				continue
			}
			made++
			if !possible {
				t.Fatalf("seed %d, change %d: %+v accepted", seed, i, c)
			}
			all := next.Objects("")
			if !c.Force { // by force a policy may name a NIC that is gone
				if len(all) != len(objects) {
					t.Fatalf("seed %d, change %d: %d objects, want %d", seed, i, len(all), len(objects))
				}
				if broken := !naive(all); broken && !dangling(all) {
					t.Fatalf("seed %d, change %d: not a world: %v", seed, i, dump(next))
				}
			}
			for _, e := range effects {
				if w.Get(e.Key) != e.Old || next.Get(e.Key) != e.New {
					t.Fatalf("seed %d, change %d: effect %v is not what happened", seed, i, e.Key)
				}
			}
			sound(t, next)
			w = next
		}
		if made < 15 || refusals < 15 {
			t.Errorf("seed %d: %d made, %d refused: the test says little", seed, made, refusals)
		}
	}
}

// complete fills in allocated values where they are not random; it reports false if a random one would be needed.
func complete(objects []Object, w *World) bool {
	for _, o := range objects {
		switch o := o.(type) {
		case *Network:
			if old, _ := w.Get(o.Key()).(*Network); old != nil {
				o.Spec.VNI = old.Spec.VNI
			}
			if o.Spec.VNI == 0 {
				o.Spec.VNI = 1e6 + uint32(o.Metadata.Name[0])*256 + uint32(o.Metadata.Tenant[0])
			}
		case *NIC:
			if old, _ := w.Get(o.Key()).(*NIC); old != nil {
				o.Spec.Addresses = old.Spec.Addresses
			}
			if len(o.Spec.Addresses) == 0 {
				return false
			}
		}
	}
	return true
}

// dangling reports whether a policy names a NIC that was deleted by force.
func dangling(all []Object) bool {
	for _, o := range all {
		p, is := o.(*Policy)
		if !is {
			continue
		}
		for _, name := range append(slices.Clone(p.Spec.NICs.Names), p.Spec.Deny[0].Peer.NIC) {
			there := func(o Object) bool {
				n, is := o.(*NIC)
				return is && n.Key() == Key{KindNIC, p.Metadata.Tenant, name} &&
					(p.Spec.NICs.Network == "" || p.Spec.NICs.Network == n.Spec.Network)
			}
			if name != "" && !slices.ContainsFunc(all, there) {
				return true
			}
		}
	}
	return false
}

func dump(w *World) (lines []string) {
	for _, o := range w.Objects("") {
		text, _ := Marshal(o)
		lines = append(lines, string(text))
	}
	return lines
}

// sound compares a world's indexes with its objects.
func sound(t *testing.T, w *World) {
	t.Helper()
	addresses, vnis, belongings := 0, 0, 0
	for k, o := range w.objects {
		if k.Kind != KindTenant {
			if _, found := w.tenants[k.Tenant].names(k.Kind)[k.Name]; !found {
				t.Errorf("%s is not among its tenant's", k)
			}
			belongings++
		}
		switch o := o.(type) {
		case *Network:
			vnis++
			if w.NetworkByVNI(o.Spec.VNI) != o {
				t.Errorf("VNI %d is not %s", o.Spec.VNI, k)
			}
		case *NIC:
			for _, a := range o.Spec.Addresses {
				addresses++
				if w.NICAt(o.NetworkKey(), a) != o {
					t.Errorf("%v is not %s", a, k)
				}
			}
			if !slices.Contains(w.NICs(o.NetworkKey()), o) {
				t.Errorf("%s is not in its network", k)
			}
		}
	}
	for _, s := range w.networks {
		addresses -= len(s.addresses)
	}
	for _, h := range w.tenants {
		belongings -= len(h.networks) + len(h.nics) + len(h.policies)
	}
	if addresses != 0 || vnis != len(w.vnis) || belongings != 0 || len(w.networks) != len(w.Objects(KindNetwork)) || len(w.tenants) != len(w.Objects(KindTenant)) {
		t.Error("the indices have more than there is")
	}
}

// large is 1000 NICs in 100 networks of ten tenants, and 10 000 rules.
func large() string {
	file := ""
	for i := range 10 {
		name := fmt.Sprintf("t%d", i)
		file += tenant(name, "weight: 1")
		for j := range 10 {
			network := fmt.Sprintf("n%d", j)
			file += of("Network", name+"/"+network, "subnets: [10.0.0.0/16]")
			for k := range 10 {
				file += of("NIC", fmt.Sprintf("%s/%s-%d", name, network, k), "network: "+network+", rate: {out: 1Gbit}")
			}
			rules := ""
			for k := range 100 {
				rules += fmt.Sprintf("{direction: in, peer: {nic: %s-%d}, service: {space: tcp, ports: [%d]}, ops: [send]}, ", network, k%10, k+1)
			}
			file += of("Policy", name+"/"+network, "nics: {network: "+network+"}, deny: ["+rules+"]")
		}
	}
	return file
}

func BenchmarkParseLarge(b *testing.B) {
	file := []byte(large())
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		if _, err := Parse("f", file); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNextLarge(b *testing.B) {
	objects := parse(b, large())
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := (&World{}).Next(Change{Put: objects}, seeded()); err != nil {
			b.Fatal(err)
		}
	}
}

// One more NIC in a large world.
func BenchmarkNextOne(b *testing.B) {
	w := apply(b, &World{}, large())
	one := parse(b, of("NIC", "t1/one", "network: n1"))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := w.Next(Change{Put: one}, seeded()); err != nil {
			b.Fatal(err)
		}
	}
}

func TestLarge(t *testing.T) {
	w := apply(t, &World{}, large())
	if got := len(w.Objects(KindNIC)); got != 1000 {
		t.Errorf("%d NICs", got)
	}
	sound(t, w)
}
