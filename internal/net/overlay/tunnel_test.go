package overlay

import (
	"net/netip"
	"strings"
	"testing"
)

func TestHostsBehindTheTunnel(t *testing.T) {
	at := netip.MustParseAddr
	self := &Host{Name: "self", Addrs: []netip.Addr{at("192.0.2.1")}, Self: true, Key: [32]byte{1}}
	b := &Host{Name: "b", Addrs: []netip.Addr{at("192.0.2.2")}, Key: [32]byte{2}}
	clear := &Host{Name: "clear", Addrs: []netip.Addr{at("192.0.2.3")}, Key: [32]byte{3}}
	keyless := &Host{Name: "keyless", Addrs: []netip.Addr{at("192.0.2.4")}}
	m, err := NewMap([]Network{
		{VNI: 5, Name: "red/train", Encrypted: true, Members: []Member{
			{Addr: at("10.0.0.1"), Host: self}, {Addr: at("10.0.0.2"), Host: b}, {Addr: at("10.0.0.3"), Host: b}, {Addr: at("10.0.0.4"), Host: keyless}}},
		{VNI: 6, Name: "blue/train", Members: []Member{{Addr: at("10.0.0.1"), Host: self}, {Addr: at("10.0.0.2"), Host: clear}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Encrypted(); len(got) != 1 || got[0] != b {
		t.Errorf("Encrypted() = %v, want b only", got)
	}
	if m.HostBehind(TunnelAddr(b.Key)) != b || m.HostBehind(TunnelAddr(clear.Key)) != nil || m.HostBehind(TunnelAddr([32]byte{})) != nil {
		t.Error("hosts are not behind the addresses of their keys")
	}
	if m.HostAt(TunnelAddr(b.Key)) != nil {
		t.Error("an address inside the tunnel is one of the underlay")
	}
	var none *Map
	if none.Encrypted() != nil || none.HostBehind(TunnelAddr(b.Key)) != nil {
		t.Error("a nil map has somebody")
	}
	twin := &Host{Name: "twin", Addrs: []netip.Addr{at("192.0.2.5")}, Key: b.Key}
	_, err = NewMap([]Network{{VNI: 5, Name: "red/train", Encrypted: true, Members: []Member{{Addr: at("10.0.0.1"), Host: b}, {Addr: at("10.0.0.2"), Host: twin}}}})
	if err == nil || !strings.Contains(err.Error(), "b and twin both have the public key") {
		t.Errorf("two hosts with one key: %v", err)
	}
}

func TestTunnelAddr(t *testing.T) {
	// Operators configure this address on machines without vrdma, so it must never change.
	if got := TunnelAddr([32]byte{1}).String(); got != "fd56:1d0:fabd:251f:cbbe:2b93:b4b9:27b2" {
		t.Error(got)
	}
}
