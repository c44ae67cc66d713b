package testbed

import "fmt"

// ContainerNames are the names of the NICs of containers or guests: client, server, client, server and so on.
func ContainerNames(perSide int) []string {
	names := []string{"a", "b"}
	for i := 2; i <= perSide; i++ {
		names = append(names, fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i))
	}
	return names
}

// ContainerObjects declares a tenant with a NIC for each container. The NICs have the addresses of the link, so that tools reach the
// same host through rdma_cm and TCP.
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

// OverlayObjects declares, for one of two hosts, its NIC and the NIC on the other host.
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

// NamespaceNetworkObjects declares a NIC whose traffic leaves through the network of its container.
const NamespaceNetworkObjects = `---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: own, tenant: bench}, spec: {way: namespace}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: o, tenant: bench}, spec: {network: own}}
`
