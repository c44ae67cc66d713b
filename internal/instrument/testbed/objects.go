package testbed

import "fmt"

// ContainerNames are the NICs of containers or guests: of the client's side and the server's in turn.
func ContainerNames(perSide int) []string {
	names := []string{"a", "b"}
	for i := 2; i <= perSide; i++ {
		names = append(names, fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i))
	}
	return names
}

// ContainerObjects are a tenant with a NIC for each container. Their addresses are those of the link, too,
// so that tools which use rdma_cm find the same host as those which use TCP.
func ContainerObjects(names []string) string {
	text := `{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: bench}, spec: {}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: net, tenant: bench}, spec: {subnets: [10.98.0.0/24]}}
`
	for i, name := range names {
		text += fmt.Sprintf("---\n{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: %s, tenant: bench}, spec: {network: net, address: 10.98.0.%d}}\n", name, i+1)
	}
	return text
}

// OverlayObjects are what a host is told: its NIC, and the other's, on a host that is declared.
func OverlayObjects(elsewhere, at string) string {
	text := fmt.Sprintf("apiVersion: vrdma.io/v1\nkind: Host\nmetadata: {name: other}\nspec: {type: linux, address: %s}\n"+
		"---\napiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: bench}\nspec: {}\n"+
		"---\napiVersion: vrdma.io/v1\nkind: Network\nmetadata: {name: net, tenant: bench}\nspec: {vni: 100, subnets: [10.1.0.0/24]}\n", at)
	for i, name := range []string{"a", "b"} {
		where := ""
		if name == elsewhere {
			where = ", host: other"
		}
		text += fmt.Sprintf("---\napiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: %s, tenant: bench}\nspec: {network: net, address: 10.1.0.%d%s}\n", name, i+1, where)
	}
	return text
}

// NamespaceNetworkObjects are a NIC whose way is the network of its container.
const NamespaceNetworkObjects = `---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: own, tenant: bench}, spec: {way: namespace}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: o, tenant: bench}, spec: {network: own}}
`
