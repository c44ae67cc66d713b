//go:build kube

package containers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

const (
	// multus configures Multus: the pods' own network comes first, and the API server has the others.
	multus = `{"cniVersion": "0.3.1", "name": "multus", "type": "multus", "kubeconfig": "/etc/kubernetes/admin.conf", "clusterNetwork": "/etc/cni/net.d/10-pods.conflist"}`

	// first is the pods' own network. Multus 4.2 calls DEL without the plugin's own part of the configuration, but
	// host-local needs its ranges then. So each pod has the same unused address there.
	first = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods0", "ipam": {"type": "static", "addresses": [{"address": "10.200.0.2/24"}]}}]}`

	// definitions is the CustomResourceDefinition in which Multus finds a network's configuration.
	definitions = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: network-attachment-definitions.k8s.cni.cncf.io}
spec:
  group: k8s.cni.cncf.io
  scope: Namespaced
  names: {plural: network-attachment-definitions, singular: network-attachment-definition, kind: NetworkAttachmentDefinition, shortNames: [net-attach-def]}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {config: {type: string}}}}}}}]
`
	// before declares what contrib/kubernetes/multus.yaml requires, and one more NIC.
	before = `{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: team-a}, spec: {namespaces: [team-a]}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: train, tenant: team-a}, spec: {subnets: [10.7.0.0/16]}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: db, tenant: team-a}, spec: {network: train, address: 10.7.0.10}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: web, tenant: team-a}, spec: {network: train, address: 10.7.0.11}}
`
)

// TestKubeMultus uses the example with Multus unchanged. The pod keeps the cluster's network. Its NIC is a second
// interface with the address that RDMA has.
func TestKubeMultus(t *testing.T) {
	program := harness.Multus(t)
	c := newCluster(t)
	c.copy(t, program, "/usr/lib/cni/multus")
	c.run(t, "sh", "-c", "mkdir -p /opt/cni/bin /var/lib/vrdma && ln -s /opt/vrdma/vrdma /opt/cni/bin/vrdma-cni && ln -s /opt/cni/bin/vrdma-cni /usr/lib/cni/vrdma-cni")
	c.copy(t, filepath.Join(harness.Engines(t, "older"), "usr/lib/cni/static"), "/usr/lib/cni/static")
	c.write(t, "/etc/cni/net.d/10-pods.conflist", first)
	c.write(t, "/etc/cni/net.d/00-multus.conf", multus)
	node := func(argv ...string) []string { return append([]string{"env", "VRDMA_SOCKET=" + inCluster}, argv...) }
	c.background(t, node("vrdma", "daemon", "--socket", inCluster, "--addr", "127.0.0.1", "--usage", "none", "--no-default-nic", "--mode", "0666")...).Printed(t, "msg=serving ", minute)
	apply := c.command(0, node("vrdma", "apply", "-f", "-")...)
	apply.Stdin = strings.NewReader(before)
	harness.Spawn(t, apply).OK(t, minute)
	c.background(t, "/opt/kubelet/vrdma-kube", "device-plugin", "--socket", inCluster, "--node", "node1", "--slots", "8", "--pods", "http://127.0.0.1:10255", "--pods-of-kubelet")
	c.slots(t, "8")
	c.create(t, definitions)
	c.create(t, "{apiVersion: v1, kind: Namespace, metadata: {name: team-a}}")
	c.until(t, "service accounts", func() bool {
		return c.kubectl(t, "get", "sa", "-n", "team-a", "default", "--ignore-not-found") != ""
	})
	text, err := os.ReadFile(filepath.Join(harness.Root(), "contrib/kubernetes/multus.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c.succeeds(t, "/opt/kubelet/kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf", "get", "net-attach-def", "-A")
	// There is no registry here.
	example := strings.ReplaceAll(string(text), "image: localhost/perftest", `image: "localhost/bookworm:latest"`+"\n      imagePullPolicy: Never")
	c.create(t, example)
	c.until(t, "listening", func() bool { return strings.Contains(c.run(t, node("vrdma", "status")...), "LISTEN") })
	if out := c.kubectl(t, "exec", "-n", "team-a", "db", "--", "ip", "-br", "address"); !strings.Contains(out, "10.7.0.10/16") || !strings.Contains(out, "10.200.0.") {
		t.Errorf("the pod's interfaces:\n%s", out)
	}
	if out := c.kubectl(t, "get", "pod", "-n", "team-a", "db", "-o", "yaml"); !strings.Contains(out, `"interface": "net1"`) || !strings.Contains(out, `"10.7.0.10"`) {
		t.Errorf("Multus says of the pod:\n%s", out)
	}
	// Another pod reaches it over sockets and over RDMA.
	other := strings.NewReplacer("team-a.db", "team-a.web", "vrdma.io/nic: db", "vrdma.io/nic: web", "name: db", "name: web", "name: rdma", "name: other", "networks: rdma", "networks: other", `"name": "rdma"`, `"name": "other"`,
		"command: [ib_write_bw, -R]", fmt.Sprintf("command: [sh, -c, %q]", "ping -c 1 -W 20 10.7.0.10 && exec ib_write_bw -R 10.7.0.10")).Replace(example)
	c.create(t, other)
	c.until(t, "both have run", func() bool { return c.phaseOf(t, "web") == "Succeeded" && c.phaseOf(t, "db") == "Succeeded" })
	c.kubectl(t, "delete", "pods", "-n", "team-a", "db", "web")
	c.until(t, "unbound", func() bool {
		return strings.Contains(c.run(t, node("vrdma", "events", "team-a/db", "-n", "1")...), "unbound")
	})
}
