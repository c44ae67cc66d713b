package tenant

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

const linuxMembers = `apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: red}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: train, tenant: red}
spec: {vni: 7, subnets: [10.1.0.0/24]}
---
apiVersion: vrdma.io/v1
kind: Host
metadata: {name: box}
spec: {type: linux, address: 192.0.2.7}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: box, tenant: red}
spec: {network: train, address: 10.1.0.7, host: box, mac: "02:56:0a:01:00:07"}
`

// one is an object of a file of one.
func one(kind, meta, spec string) string {
	return "---\napiVersion: vrdma.io/v1\nkind: " + kind + "\nmetadata: " + meta + "\nspec: " + spec + "\n"
}

func TestLinuxHost(t *testing.T) {
	w := apply(t, &World{}, linuxMembers)
	if h := w.Host("box"); h == nil || !h.Linux() || len(h.Spec.Addresses) != 1 || h.Spec.Address.IsValid() {
		t.Fatalf("%+v", h)
	}
	if got := w.NIC("red", "box").Spec.MAC.String(); got != "02:56:0a:01:00:07" {
		t.Error(got)
	}
	for _, c := range []struct{ name, text, want string }{
		{"ours", one("Host", "{name: a}", "{address: 192.0.2.1}"), "f.yaml:5: Host a: spec.type: a host that runs vrdma is written by its daemon"},
		{"no address", one("Host", "{name: a}", "{type: linux}"), "has no address"},
		{"loopback", one("Host", "{name: a}", "{type: linux, address: 127.0.0.1}"), "cannot be the address of a host"},
		{"two of a family", one("Host", "{name: a}", "{type: linux, addresses: [192.0.2.1, 192.0.2.2]}"), "second address of its family"},
		{"taken", one("Host", "{name: a}", "{type: linux, address: 192.0.2.7}"), "is the address of Host box"},
		{"tenant", one("Host", "{name: a, tenant: red}", "{type: linux, address: 192.0.2.1}"), "belongs to no tenant"},
		{"name", one("Host", "{name: a/b}", "{type: linux, address: 192.0.2.1}"), "not a host's name"},
		{"port", one("Host", "{name: a}", "{type: linux, address: 192.0.2.1, port: 70000}"), "not a UDP port"},
		{"key", one("Host", "{name: a}", "{type: linux, address: 192.0.2.1, publicKey: abc}"), "what wg pubkey prints"},
		{"version", one("Host", "{name: a}", "{type: linux, address: 192.0.2.1, version: '1'}"), "leave them out"},
		{"type", one("Host", "{name: a}", "{type: windows, address: 192.0.2.1}"), "vrdma, linux"},
		{"MAC of ours", one("NIC", "{name: x, tenant: red}", "{network: train, mac: '02:00:00:00:00:01'}"), "spec.mac: 02:00:00:00:00:01: only NICs of declared Linux hosts"},
		{"multicast MAC", one("NIC", "{name: x, tenant: red}", "{network: train, host: box, mac: '01:00:00:00:00:01'}"), "not the Ethernet address"},
		{"rate", one("NIC", "{name: x, tenant: red}", "{network: train, host: box, rate: {out: 1Gbit}}"), "enforces nothing"},
		{"encrypted", one("Network", "{name: s, tenant: red}", "{subnets: [10.2.0.0/24], encryption: true}") + one("NIC", "{name: x, tenant: red}", "{network: s, host: box}"), "has no tunnel"},
		{"becomes encrypted", one("Network", "{name: train, tenant: red}", "{subnets: [10.1.0.0/24], encryption: true}"), "spec.encryption: NIC red/box would be wrong"},
		{"encrypted host way", one("Network", "{name: s, tenant: red}", "{way: host, encryption: true}"), "is not encrypted"},
		{"way", one("Network", "{name: s, tenant: red}", "{way: host}") + one("NIC", "{name: x, tenant: red}", "{network: s, address: 192.0.2.9, host: box}"), "only networks with way vxlan"},
	} {
		objects, err := Parse("f.yaml", []byte(c.text))
		if err == nil {
			_, _, err = w.Next(Change{Put: objects}, seeded())
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "f.yaml:") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}

	// With a tunnel it can be a member of an encrypted network.
	tunnel := one("Host", "{name: box}", "{type: linux, address: 192.0.2.7, publicKey: AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=}")
	apply(t, w, tunnel+one("Network", "{name: train, tenant: red}", "{subnets: [10.1.0.0/24], encryption: true}"))

	// A host with NICs cannot be deleted; with force its NICs are deleted, too.
	key := Key{Kind: KindHost, Name: "box"}
	if got := refused(t, w, Change{Delete: []Key{key}}); !strings.Contains(got, "is used by NIC red/box") {
		t.Error(got)
	}
	gone, _, err := w.Next(Change{Delete: []Key{key}, Force: true}, nil)
	if err != nil || gone.Host("box") != nil || gone.NIC("red", "box") != nil {
		t.Errorf("by force: %v", err)
	}

	// Only the operator declares and sees hosts.
	who := Caller{UID: 7}
	admin := apply(t, w, one("Tenant", "{name: red}", "{administrators: {uids: [7]}}"))
	if err := admin.May(who, Change{Put: parse(t, tunnel)}); err == nil {
		t.Error("an administrator may change a host")
	}
	if admin.MayRead(who, admin.Host("box")) || !admin.MayRead(Caller{Operator: true}, admin.Host("box")) {
		t.Error("who may see a host is wrong")
	}
}

// Follow leads to what NewWorld makes of the same objects.
func TestFollow(t *testing.T) {
	w := apply(t, &World{}, example(t))
	next := apply(t, w, linuxMembers[strings.Index(linuxMembers, "---\napiVersion: vrdma.io/v1\nkind: Host"):strings.LastIndex(linuxMembers, "---")])
	next = apply(t, next, one("NIC", "{name: box, tenant: red}", "{network: train, host: box}"))
	next, _, err := next.Next(Change{Delete: []Key{{KindNIC, "blue", "db"}, {KindPolicy, "red", "no-batch-to-store"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var put []Object
	var gone []Key
	for _, o := range next.Objects("") {
		if w.Get(o.Key()) != o {
			put = append(put, o)
		}
	}
	for _, o := range w.Objects("") {
		if next.Get(o.Key()) == nil {
			gone = append(gone, o.Key())
		}
	}
	got, effects, err := w.Follow(put, gone)
	if err != nil || len(effects) != len(put)+len(gone) {
		t.Fatalf("%v, %d effects", err, len(effects))
	}
	if !reflect.DeepEqual(got.Objects(""), next.Objects("")) {
		t.Error("another world")
	}
	if !reflect.DeepEqual(got.NICs(Key{KindNetwork, "red", "train"}), next.NICs(Key{KindNetwork, "red", "train"})) {
		t.Error("another network")
	}
	for _, c := range []struct {
		put  []Object
		gone []Key
	}{
		{gone: []Key{{Kind: KindTenant, Name: "red"}}},
		{put: []Object{&NIC{Metadata: Metadata{Name: "x", Tenant: "green"}, Spec: NICSpec{Network: "n"}}}},
	} {
		if _, _, err := w.Follow(c.put, c.gone); err == nil {
			t.Errorf("%v fits", c)
		}
	}
}

// A host writes its version itself, and operators print it.
func TestHostVersion(t *testing.T) {
	for version, ok := range map[string]bool{
		"": true, "v1.2.3-4-gabcdef": true, "\x1b]0;x\a": false, "1\n2": false, "\u009b2J": false, strings.Repeat("1", mostVersion): true, strings.Repeat("1", mostVersion+1): false,
	} {
		o := &Host{Metadata: Metadata{Name: "a"}, Spec: HostSpec{Address: netip.MustParseAddr("192.0.2.1"), Version: version}}
		if err := o.Check(); (err == nil) != ok {
			t.Errorf("%.20q: %v", version, err)
		}
	}
}
