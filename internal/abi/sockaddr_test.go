package abi

import (
	"net/netip"
	"testing"
)

func TestSockaddr(t *testing.T) {
	for _, text := range []string{"192.0.2.1:80", "[2001:db8::1]:7000", "0.0.0.0:0"} {
		b := ToSockaddr(netip.MustParseAddrPort(text))
		if a, ok := FromSockaddr(&b); !ok || a != netip.MustParseAddrPort(text) {
			t.Errorf("%s became %v, %v", text, a, ok)
		}
	}
	b := Sockaddr{0: 27} // AF_IB
	if _, ok := FromSockaddr(&b); ok {
		t.Error("an address of InfiniBand was understood")
	}
}
