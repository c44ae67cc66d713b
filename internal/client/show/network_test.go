package show

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func TestNetworkShow(t *testing.T) {
	objects, err := tenant.Parse("f", []byte(`apiVersion: vrdma.io/v1
kind: Network
metadata: {name: train, tenant: red}
spec: {vni: 100, subnets: [10.1.0.0/24]}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: box, tenant: red}
spec: {network: train, addresses: [10.1.0.7], host: box}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: web, tenant: red}
spec: {network: train, addresses: [10.1.0.1]}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: idle, tenant: red}
spec: {network: train, addresses: [10.1.0.2]}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: other, tenant: red}
spec: {network: other, addresses: [10.2.0.2], host: a}
---
apiVersion: vrdma.io/v1
kind: Host
metadata: {name: box}
spec: {type: linux, addresses: [192.0.2.7]}
---
apiVersion: vrdma.io/v1
kind: Host
metadata: {name: a}
spec: {addresses: [192.0.2.1, '2001:db8::1'], port: 4790}
`))
	if err != nil {
		t.Fatal(err)
	}
	var items []control.Item
	for _, o := range objects {
		text, err := tenant.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		it := control.Item{Key: o.Key(), Object: text, Status: &control.Status{State: control.Ready}}
		if o.Meta().Name == "web" {
			it.Status.Host = "a"
		}
		items = append(items, it)
	}
	m, err := NewMembership("train", items)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		print func(b *strings.Builder) error
		want  string
	}{
		{func(b *strings.Builder) error { return m.Print(b) }, `network red/train, VNI 100, 10.1.0.0/24

NIC        ADDRESSES   HOST          UNDERLAY                STATE
red/box    10.1.0.7    box           192.0.2.7               linux: enforces nothing
red/web    10.1.0.1    a             192.0.2.1,2001:db8::1   ready
red/idle   10.1.0.2    nowhere yet   -                       -
`},
		{func(b *strings.Builder) error { return m.Commands(b, false) }, `# on host box, for NIC red/box
ip link add vx100 address 02:56:0a:01:00:07 mtu 1450 type vxlan id 100 dstport 4789 local 192.0.2.7
ip addr add 10.1.0.7/24 dev vx100
ip link set vx100 up
bridge fdb append 00:00:00:00:00:00 dev vx100 dst 192.0.2.1 port 4790
rdma link add rxe_vx100 type rxe netdev vx100
`},
		{func(b *strings.Builder) error { return m.Commands(b, true) }, `# on host box, for NIC red/box
ip link add vx100 address 02:56:0a:01:00:07 mtu 1450 type vxlan id 100 dstport 4789 local 192.0.2.7 nolearning
ip addr add 10.1.0.7/24 dev vx100
ip link set vx100 up
bridge fdb append 02:56:0a:01:00:01 dev vx100 dst 192.0.2.1 port 4790
ip neigh replace 10.1.0.1 lladdr 02:56:0a:01:00:01 dev vx100 nud permanent
rdma link add rxe_vx100 type rxe netdev vx100
`},
	} {
		var b strings.Builder
		if err := c.print(&b); err != nil || b.String() != c.want {
			t.Errorf("%v:\n%s\nwant\n%s", err, b.String(), c.want)
		}
	}
}
