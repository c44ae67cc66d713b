package registry

import (
	"net/netip"
	"testing"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/net/overlay"
)

// TestMap: in a network between hosts, an address leads to a NIC here, to a member elsewhere, or
// nowhere; and what NICs remember is stale when the map is another.
func TestMap(t *testing.T) {
	red, too := newNIC("red/a", "red/n", "10.0.0.1"), newNIC("red/b", "red/n", "10.0.0.2")
	blue := newNIC("blue/a", "blue/n", "10.0.0.1")
	host := newNIC(Default, HostNetwork, "192.0.2.1")
	tab := table(t, red, too, blue, host)
	self := &overlay.Host{Name: "here", Self: true}
	there := &overlay.Host{Name: "there", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}
	member := func(a string, h *overlay.Host) overlay.Member {
		return overlay.Member{Addr: netip.MustParseAddr(a), Host: h}
	}
	m, err := overlay.NewMap([]overlay.Network{{VNI: 5, Name: "red/n", Members: []overlay.Member{
		member("10.0.0.1", self), member("10.0.0.2", self), member("10.0.0.3", there), member("10.0.0.4", self), // not put in yet
	}}})
	if err != nil {
		t.Fatal(err)
	}
	before := [2]uint32{red.Device.Routes(), blue.Device.Routes()}
	tab.SetMap(m)
	if red.Device.Routes() == before[0] || blue.Device.Routes() != before[1] {
		t.Error("the NICs of a network that changed ask again, and no others")
	}
	for _, c := range []struct {
		from *NIC
		to   string
		want nic.Way
	}{
		{red, "10.0.0.1", nic.Way{NIC: red.Device, Network: 5, To: netip.MustParseAddr("10.0.0.1")}},
		{red, "10.0.0.2", nic.Way{NIC: too.Device, Network: 5, To: netip.MustParseAddr("10.0.0.2")}},
		{red, "10.0.0.3", nic.Way{Network: 5, To: netip.MustParseAddr("10.0.0.3")}},
		{red, "10.0.0.4", nic.Way{}},
		{red, "10.0.0.9", nic.Way{}},
		{red, "239.1.2.3", nic.Way{Network: 5, To: netip.MustParseAddr("239.1.2.3")}},
		{blue, "10.0.0.3", nic.Way{}},
		{blue, "10.0.0.1", nic.Way{NIC: blue.Device}},
		{host, "10.0.0.3", nic.Way{To: netip.MustParseAddr("10.0.0.3")}},
	} {
		if got := tab.Resolve(c.from.Device, gid(c.to)); got != c.want {
			t.Errorf("from %s to %s: %+v, want %+v", c.from.Name, c.to, got, c.want)
		}
	}
	tab.SetMap(nil)
	if got := tab.Resolve(red.Device, gid("10.0.0.3")); got != (nic.Way{}) {
		t.Errorf("without a map: %+v", got)
	}
}
