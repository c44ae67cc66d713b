package state

import (
	"path/filepath"
	"strings"
	"testing"

	"vrdma/test/etcdtest"
	"vrdma/test/harness"
)

const red = `
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: red}
spec: {}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: train, tenant: red}
spec: {subnets: [10.1.0.0/24]}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: web, tenant: red}
spec: {network: train}
`

const blue = `
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: blue}
spec: {}
`

// Two daemons with one etcd: what one is told the other knows. Without etcd both go on, one also
// after a restart, and say so; back, they are in step. A wiped etcd takes nothing away, and what
// was declared can be exported and imported again.
func TestSharedStore(t *testing.T) {
	c := etcdtest.Start(t, 1)
	dirs := []string{t.TempDir(), t.TempDir()}
	a, b := startDaemon(t, c, dirs[0]), startDaemon(t, c, dirs[1])
	vrdma(t, a, "apply", "-f", example(t, red))
	eventually(t, b, "red/web", "get", "nics", "-o", "name")
	if out := vrdma(t, a, "status"); !strings.Contains(out, "in step") {
		t.Errorf("the status does not say that the store is in step:\n%s", out)
	}

	c.Members[0].Kill()
	eventually(t, a, "away: last heard of", "status")
	eventually(t, a, "the store was last heard of", "events")
	if out, err := a.Command("apply", "-f", example(t, blue)).CombinedOutput(); err == nil || !strings.Contains(string(out), "nothing can be changed now") {
		t.Errorf("something was changed without the store: %v\n%s", err, out)
	}
	b.Stop(t)
	b = startDaemon(t, c, dirs[1])
	if out := vrdma(t, b, "get", "nics"); !strings.Contains(out, "web") || !strings.Contains(out, "ready") {
		t.Errorf("after a restart without the store:\n%s", out)
	}
	eventually(t, b, "away: last heard of", "status")

	c.Members[0].Start()
	c.Ready()
	eventually(t, a, "in step", "status")
	eventually(t, b, "in step", "status")
	vrdma(t, b, "apply", "-f", example(t, blue))
	eventually(t, a, "blue", "get", "tenants", "-o", "name")

	// To a file and back.
	exported := vrdma(t, a, "store", "export")
	alone := harness.Start(t, harness.Options{Args: []string{"--store", filepath.Join(t.TempDir(), "store"), "--network=false"}})
	vrdma(t, alone, "store", "import", example(t, exported))
	if got := vrdma(t, alone, "store", "export"); declared(got) != declared(exported) {
		t.Errorf("the file has\n%s\nand etcd had\n%s", got, exported)
	}

	c.Members[0].Wipe()
	c.Members[0].Start()
	c.Ready()
	for _, d := range []*harness.Daemon{a, b} {
		eventually(t, d, "the store has lost its contents", "status")
		if out := vrdma(t, d, "get", "nics"); !strings.Contains(out, "web") || !strings.Contains(out, "ready") {
			t.Errorf("after the store was wiped:\n%s", out)
		}
		if out := vrdma(t, d, "store", "export"); declared(out) != declared(exported) {
			t.Errorf("after the store was wiped it exports\n%s", out)
		}
	}
	// A new daemon takes the new store, and is given what the file has.
	fresh := startDaemon(t, c, t.TempDir())
	vrdma(t, fresh, "store", "import", example(t, vrdma(t, alone, "store", "export")))
	if got := vrdma(t, fresh, "store", "export"); declared(got) != declared(exported) {
		t.Errorf("imported into the new etcd it is\n%s", got)
	}
}

// declared is an export without its first line, which names the store.
func declared(text string) string {
	_, rest, _ := strings.Cut(text, "\n")
	return rest
}
