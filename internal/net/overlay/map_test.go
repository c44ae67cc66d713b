package overlay

import (
	"net/netip"
	"strings"
	"testing"
)

func TestMap(t *testing.T) {
	a := &Host{Name: "a", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Self: true}
	b := &Host{Name: "b", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}}
	one := netip.MustParseAddr("10.0.0.1")
	two := netip.MustParseAddr("10.0.0.2")
	m, err := NewMap([]Network{
		{VNI: 5, Name: "red/train", Members: []Member{{Addr: one, Host: a, NIC: "red/web"}, {Addr: two, Host: b, NIC: "red/db"}}},
		{VNI: 6, Name: "blue/train", Members: []Member{{Addr: one, Host: b, NIC: "blue/web"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Find(5, two); got == nil || got.Host != b {
		t.Errorf("Find(5, %v) = %+v", two, got)
	}
	if got := m.Find(6, one); got == nil || got.NIC != "blue/web" {
		t.Errorf("Find(6, %v) = %+v", one, got)
	}
	if got := m.Find(6, two); got != nil {
		t.Errorf("Find(6, %v) = %+v, want nobody", two, got)
	}
	if m.VNI("blue/train") != 6 || m.VNI("green/train") != 0 || m.Network(7) != nil || m.Network(5).Name != "red/train" {
		t.Error("networks are not what was given")
	}
	if h := m.Hosts(5); len(h) != 1 || h[0] != b {
		t.Errorf("Hosts(5) = %v", h)
	}
	if m.HostAt(b.Addrs[1]) != b || m.HostAt(one) != nil {
		t.Error("hosts are not where they should be")
	}
	var none *Map
	if none.Find(5, one) != nil || none.Hosts(5) != nil || none.HostAt(one) != nil || none.Network(5) != nil || none.VNI("red/train") != 0 {
		t.Error("a nil map has somebody")
	}
}

func TestMapRefuses(t *testing.T) {
	here := netip.MustParseAddr("192.0.2.1")
	a := &Host{Name: "a", Addrs: []netip.Addr{here}}
	twin := &Host{Name: "twin", Addrs: []netip.Addr{here}}
	one := netip.MustParseAddr("10.0.0.1")
	two := netip.MustParseAddr("10.0.0.2")
	for _, c := range []struct {
		want string
		in   []Network
	}{
		{"VNI 0", []Network{{Name: "x/y"}}},
		{"VNI 16777216", []Network{{Name: "x/y", VNI: MaxVNI + 1}}},
		{"both have VNI", []Network{{Name: "x/y", VNI: 1}, {Name: "x/z", VNI: 1}}},
		{"twice", []Network{{Name: "x/y", VNI: 1}, {Name: "x/y", VNI: 2}}},
		{"no host", []Network{{Name: "x/y", VNI: 1, Members: []Member{{Addr: one}}}}},
		{"no address", []Network{{Name: "x/y", VNI: 1, Members: []Member{{Host: a}}}}},
		{"both have address 10", []Network{{Name: "x/y", VNI: 1, Members: []Member{{Addr: one, Host: a}, {Addr: one, Host: a}}}}},
		{"both have address 192", []Network{{Name: "x/y", VNI: 1, Members: []Member{{Addr: one, Host: a}, {Addr: two, Host: twin}}}}},
	} {
		if _, err := NewMap(c.in); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.in, err, c.want)
		}
	}
}

func TestMACOf(t *testing.T) {
	if got := MACOf(netip.MustParseAddr("10.1.2.3")).String(); got != "02:56:0a:01:02:03" {
		t.Error(got)
	}
	if got := MACOf(netip.MustParseAddr("2001:db8::1")); got[0] != 2 || got[1] != 0x56 {
		t.Error(got)
	}
}

// TestRelocated checks which addresses are on another host than before: neither new ones nor those that are gone.
func TestRelocated(t *testing.T) {
	at := func(hosts map[string]string) *Map {
		t.Helper()
		n := Network{VNI: 7, Name: "red/n"}
		for addr, host := range hosts {
			a := netip.MustParseAddr(addr)
			n.Members = append(n.Members, Member{Addr: a, MAC: MACOf(a), Host: &Host{Name: host}})
		}
		m, err := NewMap([]Network{n})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	old := at(map[string]string{"10.0.0.1": "a", "10.0.0.2": "a", "10.0.0.3": "b"})
	now := at(map[string]string{"10.0.0.1": "a", "10.0.0.2": "b", "10.0.0.4": "c"})
	if got := now.Relocated(old); len(got) != 1 || got[0] != (Address{7, netip.MustParseAddr("10.0.0.2")}) {
		t.Errorf("got %v, want 10.0.0.2", got)
	}
	for _, pair := range [][2]*Map{{nil, now}, {now, nil}, {now, now}} {
		if got := pair[0].Relocated(pair[1]); len(got) != 0 {
			t.Errorf("got %v, want nothing", got)
		}
	}
}
