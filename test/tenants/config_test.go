package tenants

import (
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// The limits of --config apply to NIC default. A declared NIC has the limits that it declares, or the built-in
// defaults.
func TestConfigLimits(t *testing.T) {
	harness.Need(t, "ibv_devinfo")
	config := writeFile(t, "config.yaml", "limits: {qps: 77, cqs: 88}\n")
	d := harness.Start(t, harness.Options{Args: []string{"--store", filepath.Join(harness.Directory(t, nil), "store"), "--network=false", "--config", config}})
	world := writeFile(t, "world.yaml", aTenant("red")+aNIC("red", "a")+"---\n"+strings.Replace(aNIC("red", "b"), "{network: train}", "{network: train, limits: {qps: 99}}", 1))
	wantOut(t, d, 0, "nic/red/a created", "apply", "-f", world)
	for _, of := range []struct {
		name      string
		run       []string
		qps, also string
	}{
		{"default", []string{"run", "--"}, "77", "88"},
		{"red/a", []string{"run", "--nic", "red/a", "--"}, "65535", "16384"},
		{"red/b", []string{"run", "--nic", "red/b", "--"}, "99", "16384"},
	} {
		out, err := as(d, 0, append(of.run, "ibv_devinfo", "-v")...)
		for name, want := range map[string]string{"max_qp": of.qps, "max_cq": of.also} {
			if err != nil || attribute(out, name) != want {
				t.Errorf("%s: %s is %s, want %s (%v)", of.name, name, attribute(out, name), want, err)
			}
		}
	}
}

// attribute is the value of a line of ibv_devinfo.
func attribute(out, name string) string {
	for line := range strings.Lines(out) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && k == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// aTenant is a tenant with a network, in front of NICs.
func aTenant(name string) string {
	return "apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: " + name + "}\nspec: {}\n---\n" +
		"apiVersion: vrdma.io/v1\nkind: Network\nmetadata: {name: train, tenant: " + name + "}\nspec: {subnets: [10.1.0.0/24]}\n---\n"
}
