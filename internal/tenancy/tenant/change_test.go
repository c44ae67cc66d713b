package tenant

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// object begins an object in the tests' files.
func object(kind, meta, spec string) string {
	return fmt.Sprintf("---\napiVersion: vrdma.io/v1\nkind: %s\nmetadata: {%s}\nspec: {%s}\n", kind, meta, spec)
}

func tenant(name, spec string) string { return object("Tenant", "name: "+name, spec) }

func of(kind, path, spec string) string {
	tenant, name, _ := strings.Cut(path, "/")
	return object(kind, "name: "+name+", tenant: "+tenant, spec)
}

// redWorld is a world with one tenant, one network of six addresses, two NICs and a policy.
func redWorld(t *testing.T) *World {
	return apply(t, &World{}, tenant("red", "weight: 1")+
		of("Network", "red/lab", "vni: 7, subnets: [10.0.0.0/29]")+
		of("Network", "red/other", "vni: 8, subnets: [10.0.0.0/29, 'fd00::/64']")+
		of("NIC", "red/a", "network: lab, address: 10.0.0.1")+
		of("NIC", "red/b", "network: lab")+
		of("NIC", "red/x", "network: other")+
		of("Policy", "red/p", "nics: {names: [a]}, deny: [{peer: {nic: b}}]"))
}

func TestRefused(t *testing.T) {
	w := redWorld(t)
	for _, c := range []struct {
		name, file string
		want       []string
	}{
		{"reserved", tenant("default", ""), []string{`f.yaml:4: Tenant default: metadata: tenant "default" is reserved`}},
		{"reserved tenant of a NIC", of("NIC", "default/a", "network: lab"), []string{`tenant "default" is reserved`}},
		{"name", tenant("Red_", ""), []string{`f.yaml:4: Tenant Red_: metadata.name: "Red_": a name is a DNS label`}},
		{"no tenant", object("NIC", "name: a", "network: lab"), []string{"metadata: says no tenant: write"}},
		{"tenant of a tenant", object("Tenant", "name: a, tenant: b", ""), []string{"a Tenant has no tenant"}},
		{"dangling tenant", of("Network", "green/n", "subnets: [10.0.0.0/24]"), []string{`f.yaml:4: Network green/n: metadata.tenant: there is no tenant "green"`}},
		{"dangling network", of("NIC", "red/c", "network: labb"), []string{`f.yaml:5: NIC red/c: spec.network: tenant red has no network "labb": declare it`}},
		{"dangling name", of("Policy", "red/q", "nics: {names: [a, zz]}, deny: [{}]"), []string{`spec.nics.names[1]: tenant red has no NIC "zz"`}},
		{"dangling peer", of("Policy", "red/q", "nics: {}, allow: [{}, {peer: {nic: zz}}]"), []string{`spec.allow[1].peer.nic: tenant red has no NIC "zz"`}},
		{"dangling network of a policy", of("Policy", "red/q", "nics: {network: zz}, deny: [{}]"), []string{`spec.nics.network: tenant red has no network "zz"`}},
		{"no cascade", tenant("green", "weight: 20000") + of("Network", "green/n", "subnets: [10.0.0.0/24]") + of("NIC", "green/a", "network: n"), []string{"spec.weight: 20000 is not from 0 to 10000"}},
		{"peer in another network", of("Policy", "red/q", "nics: {network: lab}, deny: [{peer: {nic: x}}]"), []string{`NIC "x" is in network "other", and the policy is about "lab": networks cannot reach each other yet`}},
		{"other network as peer", of("Policy", "red/q", "nics: {network: lab}, deny: [{peer: {network: other}}]"), []string{`spec.deny[0].peer.network: "other" is not the network of the policy's own NICs (spec.nics.network: "lab"): networks cannot reach each other yet`}},
		{"other tenant as peer", of("Policy", "red/q", "nics: {}, deny: [{peer: {nic: blue/a}}]"), []string{"NICs of other tenants and networks cannot be reached yet"}},
		{"policy without rules", of("Policy", "red/q", "nics: {}"), []string{"neither allows nor denies"}},
		{"port", of("Policy", "red/q", "nics: {}, deny: [{service: {space: tcp, ports: [70000]}}]"), []string{"spec.deny[0].service: 70000 is not a range of ports of tcp"}},
		{"range upside down", of("Policy", "red/q", "nics: {}, deny: [{service: {space: ib, ports: ['9-8']}}]"), []string{"9-8 is not a range"}},
		{"space", of("Policy", "red/q", "nics: {}, deny: [{service: {space: sctp}}]"), []string{`the port space is "sctp"`}},
		{"prefix", of("Policy", "red/q", "nics: {}, deny: [{peer: {prefix: 10.0.0.1/8}}]"), []string{"write 10.0.0.0/8"}},
		{"VNI", of("Network", "red/n", "vni: 16777216, subnets: [10.0.0.0/24]"), []string{"spec.vni: 16777216 is too large: a VNI is 1 to 16777215"}},
		{"VNI of another", of("Network", "red/n", "vni: 7, subnets: [10.0.0.0/24]"), []string{"spec.vni: 7 is the VNI of Network red/lab: choose another"}},
		{"VNI twice", of("Network", "red/n", "vni: 9, subnets: [10.0.0.0/24]") + of("Network", "red/m", "vni: 9, subnets: [10.0.0.0/24]"), []string{"f.yaml:10: Network red/m: spec.vni: 9 is the VNI of Network red/n"}},
		{"VNI changes", of("Network", "red/lab", "vni: 9, subnets: [10.0.0.0/29]"), []string{"the network has VNI 7, which cannot change: delete the network and apply again"}},
		{"way changes", of("Network", "red/lab", "way: namespace"), []string{"the network's way is vxlan, which cannot change"}},
		{"subnets of containers", of("Network", "red/n", "way: namespace, subnets: [10.0.0.0/24]"), []string{"spec.subnets: in a network of way namespace a NIC has the addresses of the container that it is in: leave subnets out"}},
		{"address of a container", of("Network", "red/n", "way: namespace") + of("NIC", "red/z", "network: n, address: 10.0.0.1"), []string{"spec.address: 10.0.0.1: Network red/n has way namespace, where a NIC has the addresses of the container that it is in, and the engine gives those: leave it out"}},
		{"VNI of the host's", of("Network", "red/n", "vni: 9, way: host"), []string{"a network of way host has no VNI"}},
		{"no subnets", of("Network", "red/n", "vni: 9"), []string{"spec: has no subnets: write subnets"}},
		{"overlap", of("Network", "red/n", "subnets: [10.0.0.0/24, 10.0.0.128/25]"), []string{"spec.subnets[1]: 10.0.0.128/25 overlaps 10.0.0.0/24 of the same network"}},
		{"subnet's bits", of("Network", "red/n", "subnets: [10.0.0.1/24]"), []string{"10.0.0.1/24 has bits set behind its length: write 10.0.0.0/24"}},
		{"too small", of("Network", "red/n", "subnets: [10.0.0.0/31, 'fd00::/127']"), []string{"10.0.0.0/31 is too small", "fd00::/127 is too small: it has no two addresses besides those of the subnet itself; use /126"}},
		{"multicast", of("Network", "red/n", "subnets: [224.0.0.0/24, 'fe80::/64', 127.0.0.0/8, 0.0.0.0/0]"), []string{"224.0.0.0/24 is not for NICs", "fe80::/64 is not", "127.0.0.0/8 is not", "0.0.0.0/0 is not"}},
		{"MTU", of("Network", "red/n", "mtu: 100, subnets: [10.0.0.0/24]"), []string{"spec.mtu: 100 is not from 576 to 65535"}},
		{"MTU of IPv6", of("Network", "red/n", "mtu: 1000, subnets: ['fd00::/64']"), []string{"spec.mtu: 1000 is not from 1280"}},
		{"subnet of a NIC goes", of("Network", "red/lab", "subnets: [10.9.0.0/29]"), []string{"NICs have addresses that would be in none of them: a (10.0.0.1), b (10.0.0.2): keep"}},
		{"address twice", of("NIC", "red/c", "network: lab, address: 10.0.0.1"), []string{"f.yaml:5: NIC red/c: spec.address: 10.0.0.1 is the address of NIC red/a: choose another"}},
		{"address twice in a file", of("NIC", "red/c", "network: lab, address: 10.0.0.5") + of("NIC", "red/d", "network: lab, addresses: [10.0.0.5]"), []string{"NIC red/d: spec.addresses[0]: 10.0.0.5 is the address of NIC red/c"}},
		{"not in the subnet", of("NIC", "red/c", "network: lab, address: 10.0.0.9"), []string{"10.0.0.9 is not in the subnets of Network red/lab (10.0.0.0/29)"}},
		{"subnet's address", of("NIC", "red/c", "network: lab, address: 10.0.0.0"), []string{"10.0.0.0 is the address of subnet 10.0.0.0/29 itself"}},
		{"broadcast", of("NIC", "red/c", "network: lab, address: 10.0.0.7"), []string{"10.0.0.7 is the broadcast address of subnet 10.0.0.0/29"}},
		{"anycast", of("NIC", "red/c", "network: other, address: 'fd00::'"), []string{"fd00:: is the address of subnet fd00::/64 itself"}},
		{"loopback", of("NIC", "red/c", "network: lab, address: 127.0.0.1"), []string{"127.0.0.1 cannot be the address of a NIC"}},
		{"mapped", of("NIC", "red/c", "network: lab, address: '::ffff:10.0.0.3'"), []string{"cannot be the address of a NIC"}},
		{"two of a family", of("NIC", "red/c", "network: lab, addresses: [10.0.0.3, 10.0.0.4]"), []string{"spec.addresses[1]: 10.0.0.4 is the second address of its family"}},
		{"address and addresses", of("NIC", "red/c", "network: lab, address: 10.0.0.3, addresses: [10.0.0.4]"), []string{"write one of the two"}},
		{"address changes", of("NIC", "red/a", "network: lab, address: 10.0.0.3"), []string{"10.0.0.3: the NIC has 10.0.0.1, which cannot change: delete the NIC and apply again"}},
		{"network changes", of("NIC", "red/a", "network: other"), []string{`the NIC is in network "lab", which cannot change: delete the NIC and apply again`}},
		{"full", of("NIC", "red/c", "network: lab") + of("NIC", "red/d", "network: lab") + of("NIC", "red/e", "network: lab") + of("NIC", "red/f", "network: lab") + of("NIC", "red/g", "network: lab"),
			[]string{"NIC red/g: spec: no address is free in 10.0.0.0/29 of Network red/lab: add a subnet"}},
		{"quota", tenant("red", "quota: {nics: 4}") + of("NIC", "red/c", "network: lab") + of("NIC", "red/d", "network: lab"), []string{"f.yaml:12: NIC red/d: tenant red would have 5 NICs, and its quota is 4: delete"}},
		{"quota below what is there", tenant("red", "quota: {nics: 2}"), []string{"Tenant red: tenant red would have 3 NICs, and its quota is 2"}},
		{"guarantees", tenant("red", "rate: {out: 1Gbit}") + of("NIC", "red/c", "network: lab, guarantee: 600Mbit") + of("NIC", "red/d", "network: lab, guarantee: 600Mbit"), []string{"the guarantees of tenant red's NICs would be more than its rate.out, 1Gbit"}},
		{"guarantee over rate", of("NIC", "red/c", "network: lab, rate: {out: 1Gbit}, guarantee: 2Gbit"), []string{"spec.guarantee: 2Gbit is more than the NIC's own rate.out, 1Gbit"}},
		{"latency", of("NIC", "red/c", "network: lab, class: latency"), []string{"spec.class: latency needs a rate"}},
		{"burst", of("NIC", "red/c", "network: lab, rate: {burst: 1Mi}"), []string{"spec.rate.burst: 1Mi is a burst of no rate"}},
		{"container", of("NIC", "red/c", "network: lab, open: {container: x}"), []string{`spec.open.container: "x" is not a path from the root`}},
		{"administrators", tenant("green", "administrators: {namespace: /x}"), []string{"can be users and groups only"}},
		{"label", object("NIC", "name: c, tenant: red, labels: {a b: c, r: 'd e'}", "network: lab"), nil},
		{"twice", tenant("green", "") + tenant("green", ""), []string{"f.yaml:7: Tenant green: is given twice, first at f.yaml:2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := refused(t, w, Change{Put: parse(t, c.file)})
			if c.want != nil {
				wantLines(t, got, c.want...)
			}
		})
	}
}

// keys of a list like "NIC red/a".
func keys(t *testing.T, names ...string) (list []Key) {
	t.Helper()
	for _, name := range names {
		kind, path, _ := strings.Cut(name, " ")
		tenant, name, ok := strings.Cut(path, "/")
		if !ok {
			tenant, name = "", path
		}
		list = append(list, Key{Kind(kind), tenant, name})
	}
	return list
}

func TestDelete(t *testing.T) {
	w := redWorld(t)
	for _, c := range []struct {
		name   string
		delete []string
		want   string
	}{
		{"nothing", []string{"NIC red/zz"}, "NIC red/zz: there is none: vrdma get nic"},
		{"tenant", []string{"Tenant red"}, "Tenant red: is used by Network red/lab, Network red/other, NIC red/a, NIC red/b, NIC red/x, 1 more: delete or change them first, or use --force to delete them, too"},
		{"network", []string{"Network red/lab", "NIC red/b", "Policy red/p"}, "Network red/lab: is used by NIC red/a:"},
		{"NIC about which a policy is", []string{"NIC red/a"}, "NIC red/a: is used by Policy red/p: delete or change them first, or use --force, which leaves them as they are"},
		{"NIC that is a peer", []string{"NIC red/b"}, "NIC red/b: is used by Policy red/p"},
	} {
		t.Run(c.name, func(t *testing.T) { wantLines(t, refused(t, w, Change{Delete: keys(t, c.delete...)}), c.want) })
	}

	// An object that refers to it may be deleted, or stop referring, in the same change.
	for _, c := range []Change{
		{Delete: keys(t, "Policy red/p", "NIC red/a")},
		{Delete: keys(t, "NIC red/a"), Put: parse(t, of("Policy", "red/p", "nics: {names: [b]}, deny: [{}]"))},
		{Delete: keys(t, "Network red/other", "NIC red/x")},
	} {
		if _, _, err := w.Next(c, nil); err != nil {
			t.Error(err)
		}
	}

	// With force every object that depends on it is deleted, and nothing else.
	next, effects, err := w.Next(Change{Delete: keys(t, "Network red/lab"), Force: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var gone []string
	for _, e := range effects {
		gone = append(gone, e.Key.String()+" "+e.What())
	}
	if want := []string{"Network red/lab deleted", "NIC red/a deleted", "NIC red/b deleted"}; !slices.Equal(gone, want) {
		t.Errorf("got %v, want %v", gone, want)
	}
	if next.NetworkByVNI(7) != nil || next.NICs(Key{KindNetwork, "red", "lab"}) != nil || len(next.ObjectsOf(KindNIC, "red")) != 1 {
		t.Error("the network is still found")
	}
	// The policy names deleted NICs; a store may have kept it so.
	if _, err := NewWorld(next.Objects("")); err != nil {
		t.Error(err)
	}
	next, _, err = next.Next(Change{Delete: keys(t, "Tenant red"), Force: true}, nil)
	if err != nil || len(next.Objects("")) != 0 || len(next.tenants)+len(next.networks)+len(next.vnis) != 0 {
		t.Errorf("%v, %+v", err, next)
	}
	if len(w.Objects("")) != 7 || w.NetworkByVNI(7) == nil {
		t.Error("the world before has changed")
	}
}

func TestAllocation(t *testing.T) {
	w := apply(t, &World{}, tenant("red", "")+of("Network", "red/n", "subnets: [10.0.0.0/29, 10.0.1.0/30, 'fd00::/64']"))
	n := w.Network("red", "n")
	if n.Spec.VNI < firstVNI || n.Spec.VNI > lastVNI {
		t.Fatalf("VNI %d", n.Spec.VNI)
	}
	add := func(name string) []netip.Addr {
		w = apply(t, w, of("NIC", "red/"+name, "network: n"))
		return w.NIC("red", name).Spec.Addresses
	}
	drop := func(name string) {
		next, _, err := w.Next(Change{Delete: keys(t, "NIC red/"+name)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		w = next
	}
	want := func(got []netip.Addr, addresses string) {
		t.Helper()
		if addressText(got) != addresses {
			t.Errorf("got %s, want %s", addressText(got), addresses)
		}
	}
	want(add("a"), "10.0.0.1 and fd00::1")
	want(add("b"), "10.0.0.2 and fd00::2")
	drop("a")
	want(add("c"), "10.0.0.3 and fd00::3") // not the one that was just freed
	drop("c")
	for _, name := range []string{"d", "e", "f"} {
		add(name)
	}
	want(add("g"), "10.0.0.1 and fd00::7") // all others have been used
	want(add("h"), "10.0.0.3 and fd00::8")
	want(add("i"), "10.0.1.1 and fd00::9") // the second subnet
	want(add("j"), "10.0.1.2 and fd00::a")
	wantLines(t, refused(t, w, Change{Put: parse(t, of("NIC", "red/k", "network: n"))}), "no address is free in 10.0.0.0/29, 10.0.1.0/30 of")

	// One family given: no other is allocated. Both given, in any order.
	w = apply(t, w, of("NIC", "red/l", "network: n, address: 'fd00::99'"))
	want(w.NIC("red", "l").Spec.Addresses, "fd00::99")
	drop("g")
	w = apply(t, w, of("NIC", "red/m", "network: n, addresses: ['fd00::98', 10.0.0.1], host: anywhere"))
	want(w.NIC("red", "m").Spec.Addresses, "10.0.0.1 and fd00::98")

	// A world from a store does not give a NIC's address to another NIC.
	kept, err := NewWorld(w.Objects(""))
	if err != nil {
		t.Fatal(err)
	}
	next, _, err := kept.Next(Change{Delete: keys(t, "NIC red/b"), Put: parse(t, of("NIC", "red/z", "network: n"))}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want(next.NIC("red", "z").Spec.Addresses, "10.0.0.2 and fd00::9a")

	// Subnets may be added, and unused ones removed.
	next = apply(t, next, of("Network", "red/n", "subnets: ['fd00::/64', 10.0.0.0/29, 10.0.1.0/30, 10.0.2.0/24]"))
	next = apply(t, next, of("NIC", "red/y", "network: n"))
	want(next.NIC("red", "y").Spec.Addresses, "10.0.2.1 and fd00::9b")
	if next.Network("red", "n").Spec.VNI != n.Spec.VNI {
		t.Error("the VNI is another")
	}
}

// unlucky gives the same number always.
type unlucky uint32

func (u unlucky) Uint32N(uint32) uint32 { return uint32(u) }

func TestVNIsAreDistinct(t *testing.T) {
	file := tenant("red", "")
	for i := range 5 {
		file += of("Network", fmt.Sprintf("red/n%d", i), "subnets: [10.0.0.0/24]")
	}
	w, _, err := (&World{}).Next(Change{Put: parse(t, file)}, unlucky(lastVNI-firstVNI-1))
	if err != nil {
		t.Fatal(err)
	}
	var got []uint32
	for _, o := range w.Objects(KindNetwork) {
		got = append(got, o.(*Network).Spec.VNI)
	}
	if want := []uint32{lastVNI - 1, lastVNI, firstVNI, firstVNI + 1, firstVNI + 2}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestHostileStore(t *testing.T) {
	objects := parse(t, example(t))
	objects = append(objects, parse(t, of("NIC", "red/n", "network: train")+of("NIC", "green/n", "network: train")+
		of("NIC", "red/o", "network: train, address: 10.1.0.1")+of("Network", "red/n", "subnets: [10.1.0.0/24]"))...)
	objects = append(objects, &NIC{}, &Policy{}, &Network{}, &Tenant{Metadata: Metadata{Name: "x"}, Spec: TenantSpec{Weight: -1}},
		&Network{Metadata: Metadata{Name: "n", Tenant: "blue"}, Spec: NetworkSpec{VNI: 5, Subnets: make([]netip.Prefix, 1)}})
	w, err := NewWorld(objects)
	if err == nil {
		t.Fatal("no errors")
	}
	t.Log(err)
	var names []string
	for _, o := range w.Objects("") {
		names = append(names, o.Key().Path())
	}
	want := []string{"blue", "red", "blue/train", "red/train", "blue/db", "blue/web", "red/db", "red/web", "red/no-batch-to-store"}
	if !slices.Equal(names, want) {
		t.Errorf("kept %v, want %v", names, want)
	}
}

func TestLocate(t *testing.T) {
	objects := parse(t, of("Network", "red/n", "subnets: [10.0.0.0/24]"))
	_, _, err := (&World{}).Next(Change{Put: []Object{normal(objects[0])}}, nil)
	wantLines(t, err.Error(), `Network red/n: metadata.tenant: there is no tenant "red"`)
	wantLines(t, Locate(err, objects).Error(), `f.yaml:4: Network red/n: metadata.tenant: there is no tenant "red"`)
}
