package containers

import (
	"net"
	"strings"
	"testing"

	"vrdma/test/harness"
	"vrdma/test/workload"
)

// ownNetwork is a tenant whose NICs have the network of the container that they are in.
const ownNetwork = `
{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: red}, spec: {}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: pods, tenant: red}, spec: {way: namespace}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: a, tenant: red}, spec: {network: pods}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: b, tenant: red}, spec: {network: pods}}
`

// bridged is a container's place in podman's own network.
func bridged(ip string) []string { return []string{"--network", "podman:ip=" + ip} }

// talk has perftest's two sides talk, which exchange their addresses over TCP: nobody names a device or a GID.
// Both programs are containers' whole command lines.
func (h *host) talk(t *testing.T, server, client []string) {
	t.Helper()
	s := h.start(t, server...)
	var c *harness.Process
	harness.Poll(minute, func() bool {
		c = h.start(t, client...)
		return c.Wait(t, minute) == 0 || s.Ended(0)
	})
	if err := workload.CheckRows(c.OK(t, minute), s.OK(t, minute), 1); err != nil {
		t.Errorf("%v\n%s", err, c.Output())
	}
}

// A NIC's way to others is the network of its container: the container's address is its RDMA address, for
// perftest's exchange, rdma_cm and verbs alike.
func TestOwnNetwork(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, ownNetwork)
	a, b := container{"bookworm", "red.a", append(bridged("10.88.0.10"), hard...)}, container{"bookworm", "red.b", append(bridged("10.88.0.11"), hard...)}
	h.talk(t, a.argv("ib_write_bw", "-F", "-n", "500"), b.argv("ib_write_bw", "-F", "-n", "500", "10.88.0.10"))
	for _, c := range []struct {
		port           string
		server, client []string
	}{
		{"7174", []string{"rping", "-s", "-a", "10.88.0.10", "-C", "5", "-V"}, []string{"rping", "-c", "-a", "10.88.0.10", "-C", "5", "-V"}},
		{"18515", []string{"ib_send_bw", "-R", "-F", "-n", "500"}, []string{"ib_send_bw", "-R", "-F", "-n", "500", "10.88.0.10"}},
	} {
		at := "10.88.0.10"
		if c.port != "7174" {
			at = "0.0.0.0"
		}
		s := h.start(t, a.argv(c.server...)...)
		h.listening(t, s, net.JoinHostPort(at, c.port))
		h.run(t, b.argv(c.client...)...)
		s.OK(t, minute)
	}
	if out := h.run(t, a.argv("ibv_devinfo", "-v")...); !strings.Contains(out, "::ffff:10.88.0.10, RoCE v2") {
		t.Errorf("the container's address is no GID:\n%s", out)
	}
}
