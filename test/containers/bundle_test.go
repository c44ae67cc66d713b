package containers

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// An OCI runtime runs without an engine, with the mounts that `vrdma nic args` prints.
func TestBundle(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	p := h.start(t, "vrdma", "nic", "args", "default", "-o", "oci")
	p.OK(t, minute)
	h.bundle(t, "crun", p.Stdout())
	if out := h.run(t, "crun", "--cgroup-manager=disabled", "run", "-b", "/tmp/bundle", "one"); !strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("no device:\n%s", out)
	}
}

// bundle makes /tmp/bundle from the image bookworm, with these mounts. Its program is ibv_devinfo.
func (h *host) bundle(t *testing.T, runtime, lines string) {
	t.Helper()
	var mounts []any
	if err := json.Unmarshal([]byte(lines), &mounts); err != nil {
		t.Fatalf("%v\n%s", err, lines)
	}
	h.run(t, "sh", "-c", "mkdir /tmp/bundle && cd /tmp/bundle && "+runtime+" spec")
	path := fmt.Sprintf("/proc/%d/root/tmp/bundle/config.json", h.pid)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	config["root"] = map[string]any{"path": "/images/bookworm"}
	process := config["process"].(map[string]any)
	process["terminal"], process["args"] = false, []string{"ibv_devinfo"}
	process["rlimits"] = nil                     // root may lack the right to raise limits
	for _, m := range config["mounts"].([]any) { // this host has no control groups
		if m.(map[string]any)["type"] != "cgroup" {
			mounts = append([]any{m}, mounts...)
		}
	}
	config["mounts"] = mounts
	config["linux"].(map[string]any)["cgroupsPath"] = "/bundle/one"
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
