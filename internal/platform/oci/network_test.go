package oci

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// BootLabel is a valid label, and the same for all hooks of a host.
func TestBootLabel(t *testing.T) {
	a, err := container.BootLabel()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := container.BootLabel(); err != nil || a != b {
		t.Errorf("%s, then %s, %v", a, b, err)
	}
	if len(a) > 63 || !regexp.MustCompile(`^[0-9a-f-]{36}\.[0-9]+$`).MatchString(a) {
		t.Errorf("%q is no label of a boot and a process namespace", a)
	}
}

// The label of a machine is constant and does not contain the machine's number. TestNetworkDevice uses the same one.
func TestMachineLabel(t *testing.T) {
	file := filepath.Join(t.TempDir(), "machine-id")
	if got := machineLabel(file); got != "" {
		t.Errorf("no file: %q", got)
	}
	const id = "0123456789abcdef0123456789abcdef"
	for text, want := range map[string]string{
		id + "\n": "3e20daf9c077a956adf9295409c4200b", "": "", "uninitialized\n": "", id[:30]: "",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := machineLabel(file); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		if all := machineLabels(file); want == "" && all != nil || want != "" && !slices.Equal(all, []string{want, id}) {
			t.Errorf("%q: labels %q", text, all)
		}
	}
}

// Only NICs that were made on this host and are on no other host are collected: cloned machines have the same number.
func TestToCollect(t *testing.T) {
	boot, err := container.BootLabel()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		nic, on, boot string
		status        *control.Status
		want          bool
	}{
		"left from before":             {"c-1", "a", "before.1", &control.Status{State: control.Ready}, true},
		"it was opened here":           {"c-1", "a", "before.1", &control.Status{State: control.Ready, Host: "a"}, true},
		"left in this boot":            {"c-1", "a", boot, &control.Status{State: control.Ready, Host: "a"}, true},
		"the clone's, and it has it":   {"c-1", "a", "clone.1", &control.Status{State: control.Ready, Host: "b"}, false},
		"the clone's, and it has it 2": {"c-1", "a", "clone.1", &control.Status{State: control.Elsewhere}, false},
		"the clone's, not opened yet":  {"c-1", "b", "clone.1", &control.Status{State: control.Ready}, false},
		"the clone's memory is ours":   {"c-1", "b", boot, &control.Status{State: control.Ready}, false},
		"not known yet":                {"c-1", "a", "before.1", nil, false},
		"declared by somebody":         {"web", "a", "before.1", &control.Status{State: control.Ready}, false},
	} {
		labels := map[string]string{labelOnHost: test.on, labelBoot: test.boot, labelProcess: "1.0.0"} // no such namespace
		text, err := tenant.Marshal(&tenant.NIC{Metadata: tenant.Metadata{Name: test.nic, Tenant: "red", Labels: labels}, Spec: tenant.NICSpec{Network: "train"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := toCollect(control.Item{Object: json.RawMessage(text), Status: test.status}, "a", boot); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if toCollect(control.Item{Object: json.RawMessage(strings.Repeat("{", 3))}, "a", boot) {
		t.Error("what is no object is collected")
	}
}

// An administrator of the tenant can change the labels of a NIC: they do not become paths that root looks at.
func TestLabelsAreNoPaths(t *testing.T) {
	boot, err := container.BootLabel()
	if err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]bool{"../../tmp/x.0.0": false, "self.0.0": false, "-1.0.0": false, ".0.0": false, "1.0.0": true} {
		if got := madeIsGone(map[string]string{labelBoot: boot, labelProcess: label}, boot); got != want {
			t.Errorf("%q: gone %v, want %v", label, got, want)
		}
	}
}
