package registry

import (
	"net/netip"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

func gid(s string) ib.GID { return ib.GID(netip.MustParseAddr(s).As16()) }

func newNIC(name, network string, addrs ...string) *NIC {
	c := nic.Config{Name: "rxe0"}
	for _, a := range addrs {
		c.GIDs = append(c.GIDs, nic.GIDEntry{GID: gid(a)})
	}
	return &NIC{Name: name, Network: network, Device: nic.New(c)}
}

func table(t *testing.T, nics ...*NIC) *Table {
	t.Helper()
	tab := NewTable()
	for _, n := range nics {
		if err := tab.Add(n); err != nil {
			t.Fatal(err)
		}
	}
	return tab
}

func TestResolve(t *testing.T) {
	one := newNIC(Default, HostNetwork, "192.0.2.1", "127.0.0.1")
	two := newNIC("two", HostNetwork, "192.0.2.2", "2001:db8::2")
	red := newNIC("red", "red", "10.0.0.1")
	tab := table(t, one, two, red)
	at := func(n *NIC, to string) nic.Way {
		w := nic.Way{To: netip.MustParseAddr(to)}
		if n != nil {
			w.NIC = n.Device
		}
		return w
	}
	for _, c := range []struct {
		from *NIC
		to   string
		want nic.Way
	}{
		{one, "192.0.2.1", at(one, "192.0.2.1")},
		{one, "127.0.0.1", at(one, "127.0.0.1")},
		{one, "192.0.2.2", at(two, "192.0.2.2")},
		{two, "192.0.2.1", at(one, "192.0.2.1")},
		{one, "192.0.2.9", at(nil, "192.0.2.9")},
		{two, "2001:db8::9", at(nil, "2001:db8::9")},
		{one, "224.0.0.9", at(nil, "224.0.0.9")},
		{red, "224.0.0.9", nic.Way{}},
		{one, "10.0.0.1", at(nil, "10.0.0.1")}, // red's, which one does not know of
		{red, "10.0.0.1", nic.Way{NIC: red.Device}},
		{red, "192.0.2.1", nic.Way{}},
		{newNIC("stranger", HostNetwork, "192.0.2.1"), "192.0.2.1", nic.Way{}},
	} {
		if got := tab.Resolve(c.from.Device, gid(c.to)); got != c.want {
			t.Errorf("%s to %s: %+v, want %+v", c.from.Name, c.to, got, c.want)
		}
	}
}

// Two tenants may choose the same addresses: in no common network they do not see each
// other.
func TestSameAddressInTwoNetworks(t *testing.T) {
	red := newNIC("red", "red", "10.0.0.1", "10.0.0.2")
	blue := newNIC("blue", "blue", "10.0.0.1", "10.0.0.3")
	tab := table(t, newNIC(Default, HostNetwork, "192.0.2.1"), red, blue)
	for _, c := range []struct {
		from *NIC
		to   string
		want *nic.NIC
	}{
		{red, "10.0.0.1", red.Device}, {blue, "10.0.0.1", blue.Device},
		{red, "10.0.0.3", nil}, {blue, "10.0.0.2", nil}, {red, "192.0.2.1", nil},
	} {
		if got := tab.Resolve(c.from.Device, gid(c.to)); got != (nic.Way{NIC: c.want}) {
			t.Errorf("%s to %s: %+v, want NIC %p", c.from.Name, c.to, got, c.want)
		}
	}
	if n := tab.At("red", gid("10.0.0.1")); n != red {
		t.Errorf("10.0.0.1 in network red is %v", n)
	}
	if n := tab.At("green", gid("10.0.0.1")); n != nil {
		t.Errorf("10.0.0.1 in network green is %v", n.Name)
	}
}

func TestTable(t *testing.T) {
	one, two := newNIC(Default, HostNetwork, "192.0.2.1"), newNIC("two", HostNetwork, "192.0.2.2")
	tab := table(t, one, two)
	if err := tab.Add(newNIC("two", "red", "10.0.0.1")); err == nil {
		t.Error("a second NIC of the same name was taken")
	}
	if err := tab.Add(newNIC("three", HostNetwork, "192.0.2.2")); err == nil {
		t.Error("a second NIC with the same address in the same network was taken")
	}
	if got := tab.All(); !slices.Equal(got, []*NIC{one, two}) || tab.Named("two") != two || tab.Named("three") != nil {
		t.Errorf("the table has %v", tab.Names())
	}
	tab.Remove(two)
	if way := tab.Resolve(one.Device, gid("192.0.2.2")); way.NIC != nil || tab.Named("two") != nil {
		t.Errorf("a NIC that was removed is still reached: %+v", way)
	}
	if err := tab.Add(newNIC("two", HostNetwork, "192.0.2.2")); err != nil {
		t.Errorf("name and address of a NIC that was removed: %v", err)
	}
}

func TestResolveDoesNotAllocate(t *testing.T) {
	one := newNIC(Default, HostNetwork, "192.0.2.1")
	tab := table(t, one)
	here, there := gid("192.0.2.1"), gid("192.0.2.9")
	if n := testing.AllocsPerRun(100, func() { tab.Resolve(one.Device, here); tab.Resolve(one.Device, there) }); n != 0 {
		t.Errorf("two resolutions allocate %v times", n)
	}
}
