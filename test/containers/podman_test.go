package containers

import (
	"strings"
	"testing"

	"vrdma/test/harness"
)

// tenants are two with the same addresses.
const tenants = `
{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: red}, spec: {}}
---
{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: blue}, spec: {}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: train, tenant: red}, spec: {subnets: [10.1.0.0/24]}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: train, tenant: blue}, spec: {subnets: [10.1.0.0/24]}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: web, tenant: red}, spec: {network: train, address: 10.1.0.1}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: db, tenant: red}, spec: {network: train, address: 10.1.0.2}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: web, tenant: blue}, spec: {network: train, address: 10.1.0.1}}
---
{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: db, tenant: blue}, spec: {network: train, address: 10.1.0.2}}
`

// One flag gives a container a NIC, in each way in which an engine can be told.
func TestOneFlag(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	args := strings.Fields(h.run(t, "vrdma", "nic", "args", "default"))
	for _, c := range []struct {
		name    string
		flags   []string
		program []string
	}{
		{"args", args, []string{"ibv_devices"}},
		{"device", device("default"), []string{"ibv_devices"}},
		{"hardened", append(device("default"), hard...), []string{"ibv_devices"}},
		{"user", append(device("default"), "--user", "1000"), []string{"ibv_devices"}},
		{"no_environment", device("default"), []string{"env", "-i", "/usr/bin/ibv_devices"}},
		{"setuid", append(device("default"), "--user", "1000"), []string{"setuid_devices"}},
		{"id_map", append(device("default"), "--uidmap", "0:200000:1000"), []string{"ibv_devices"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if out := h.run(t, podman("bookworm", c.flags, c.program...)...); !strings.Contains(out, "rxe0") {
				t.Errorf("no device:\n%s", out)
			}
		})
	}
	t.Run("run", func(t *testing.T) {
		out := h.run(t, append([]string{"vrdma", "run", "--"}, podman("bookworm", nil, "ibv_devices")...)...)
		if !strings.Contains(out, "rxe0") {
			t.Errorf("no device:\n%s", out)
		}
	})
	t.Run("without", func(t *testing.T) {
		if p := h.start(t, podman("bookworm", nil, "ibv_devices")...); p.Wait(t, minute) == 0 {
			t.Errorf("a device without the flag:\n%s", p.Output())
		}
	})
	h.stop(t)
	for _, path := range []string{"/run/cdi", socket} {
		if h.exists(path) {
			t.Errorf("%s is left", path)
		}
	}
}

var _ = harness.Poll
