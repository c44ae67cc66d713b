package service

import (
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestQuota: the event of a refused registration names the NIC, the program and the size; describe and get show what the tenant holds.
func TestQuota(t *testing.T) {
	harness.Need(t, "ibv_rc_pingpong")
	dir := harness.Directory(t, nil)
	d := harness.Start(t, harness.Options{Args: []string{"--store", filepath.Join(dir, "s.db")}})
	objects := filepath.Join(dir, "o.yaml")
	write(t, objects, `apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: red}
spec: {quota: {memory: 1Mi, nics: 5}}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: net, tenant: red}
spec: {subnets: [10.1.0.0/24]}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: a, tenant: red}
spec: {network: net}
`)
	command(t, d, "apply", "-f", objects)
	p := d.LaunchWith(t, []string{"--nic", "red/a"}, "ibv_rc_pingpong", "-g", "0", "-s", "8388608", "-p", itoa(harness.FreePort(t)))
	if code := p.Wait(t, limit); code == 0 {
		t.Fatalf("a registration beyond the quota succeeds\n%s", p.Output())
	}
	// The journal gets the event beside the program's answer.
	var out string
	if !harness.Poll(limit, func() bool { out = command(t, d, "events", "red"); return strings.Contains(out, "quota ") }) {
		t.Fatalf("no event:\n%s", out)
	}
	for _, want := range []string{"NIC red/a, registration of 8388608 bytes", "by ibv_rc_pingpong (uid "} {
		if !strings.Contains(out, want) {
			t.Errorf("got %s, want %s", out, want)
		}
	}
	if out := command(t, d, "describe", "tenant", "red"); !strings.Contains(out, "1 of 5 (20 %)") || !strings.Contains(out, "of 1.0 MiB") {
		t.Errorf("describe: %s", out)
	}
	if out := command(t, d, "get", "tenants", "-o", "wide"); !strings.Contains(out, "NICS-USED") || !strings.Contains(out, "1/5") {
		t.Errorf("get: %s", out)
	}
}
