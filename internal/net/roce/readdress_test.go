package roce

import (
	"net/netip"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// TestReaddress adds and removes addresses in use: datagrams from existing addresses arrive, and none from removed ones.
func TestReaddress(t *testing.T) {
	n := vethPair(t, 1500)
	ua := n[0].mustListen(UDPOptions{}, veth4[0])
	a := NewPort(ua)
	defer a.Close()
	ub := n[1].mustListen(UDPOptions{}, veth4[1])
	b := NewPort(ub)
	defer b.Close()
	s := &sink{t: t}
	var span memory.Span
	packets := uint64(0)
	way := func(from, to netip.Addr, want bool) {
		t.Helper()
		lost := a.Counters().NoSource
		burst := simpleBurst(&span, transport.KindSend, 2000)
		burst.SGID, burst.DGID = ib.GIDOf(from), ib.GIDOf(to)
		if err := carry(a, burst); err != nil {
			t.Fatal(err)
		}
		a.Flush()
		if want {
			packets += 2
			await(t, b, s, packets)
		} else if a.Counters().NoSource != lost+1 {
			t.Errorf("from %v, which has gone: %+v", from, a.Counters())
		}
	}
	way(veth4[0], veth4[1], true)
	for range 3 { // a removed endpoint leaves a free entry
		ua.Take(n[0].mustListen(UDPOptions{}, veth6[0]))
		ub.Take(n[1].mustListen(UDPOptions{}, veth6[1]))
		way(veth4[0], veth4[1], true)
		way(veth6[0], veth6[1], true)
		ua.Drop(veth4[0])
		ub.Drop(veth4[1])
		way(veth4[0], veth4[1], false)
		way(veth6[0], veth6[1], true)
		ua.Take(n[0].mustListen(UDPOptions{}, veth4[0]))
		ub.Take(n[1].mustListen(UDPOptions{}, veth4[1]))
		way(veth4[0], veth4[1], true)
		ua.Drop(veth6[0])
		ub.Drop(veth6[1])
		way(veth6[0], veth6[1], false)
	}
	if len(ua.ends) != 2 || len(ua.Descriptors()) != 1 {
		t.Errorf("%d ends, %d descriptors", len(ua.ends), len(ua.Descriptors()))
	}
	ua.Drop(veth4[0])
	way(veth4[0], veth4[1], false)
	if a.Poll(s) || len(ua.Descriptors()) != 0 {
		t.Error("a port without addresses has something")
	}
}
