package ib

import "testing"

func TestNetworkID(t *testing.T) {
	for _, c := range []struct {
		n                  NetworkID
		virtual, namespace bool
		text               string
	}{
		{HostNetwork, false, false, "host"},
		{VirtualNetwork(1), true, false, "vni 1"},
		{VirtualNetwork(1<<24 - 1), true, false, "vni 16777215"},
		{NamespaceNetwork(0), false, true, "namespace 0"},
		{NamespaceNetwork(7), false, true, "namespace 7"},
	} {
		if c.n.IsVirtual() != c.virtual || c.n.IsNamespace() != c.namespace || c.n.String() != c.text {
			t.Errorf("%d: virtual %v, namespace %v, %q; want %v, %v, %q", uint32(c.n), c.n.IsVirtual(), c.n.IsNamespace(), c.n.String(), c.virtual, c.namespace, c.text)
		}
	}
	if got := VirtualNetwork(5).VNI(); got != 5 {
		t.Errorf("VNI of virtual network 5: got %d", got)
	}
}
