package containers

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"vrdma.dev/vrdma/test/harness"
)

// theDevice is the NIC of the examples, which examples/two-tenants.yaml declares.
const theDevice = "vrdma.io/nic=red.web"

// example returns the text of the only fenced block of docs/how-to/containers.md with this language that contains mark.
func example(t *testing.T, language, mark string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(harness.Root(), "docs/how-to/containers.md"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		if strings.Contains(m[1], mark) {
			found = append(found, m[1])
		}
	}
	if len(found) != 1 {
		t.Fatalf("containers.md has %d blocks %s with %q, want 1", len(found), language, mark)
	}
	return found[0]
}

// TestQuadletExample: podman's quadlet makes a service of the documented unit, with the device.
func TestQuadletExample(t *testing.T) {
	root, dir := harness.Image(t, "host"), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "web.container"), []byte(example(t, "ini", "[Container]")), 0o600); err != nil {
		t.Fatal(err)
	}
	loaders, err := filepath.Glob(filepath.Join(root, "lib*/ld-linux-*.so.*"))
	if err != nil || len(loaders) == 0 {
		t.Fatalf("%s has no dynamic loader: %v", root, err)
	}
	libraries, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu"))
	if err != nil || len(libraries) == 0 {
		t.Fatalf("%s has no libraries: %v", root, err)
	}
	cmd := exec.Command(loaders[0], "--library-path", strings.Join(libraries, ":"), filepath.Join(root, "usr/libexec/podman/quadlet"), "-dryrun")
	cmd.Env = append(os.Environ(), "QUADLET_UNIT_DIRS="+dir)
	var messages bytes.Buffer
	cmd.Stderr = &messages
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("quadlet: %v\n%s", err, messages.String())
	}
	if !regexp.MustCompile(`(?m)^ExecStart=.* --device ` + theDevice + ` `).Match(out) {
		t.Errorf("the service does not give the container %s:\n%s%s", theDevice, out, messages.String())
	}
	if !regexp.MustCompile(`(?m)^After=vrdma.service$`).Match(out) {
		t.Errorf("the service does not start after the daemon:\n%s", out)
	}
}

// TestComposeExample: the documented compose file has no unknown fields, and names the device.
func TestComposeExample(t *testing.T) {
	// The part of the Compose Specification that the example uses.
	var file struct {
		Services map[string]struct {
			Image   string
			Devices []string
		}
	}
	d := yaml.NewDecoder(strings.NewReader(example(t, "yaml", "services:")))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		t.Fatal(err)
	}
	web := file.Services["web"]
	if len(file.Services) != 1 || web.Image == "" || len(web.Devices) != 1 || web.Devices[0] != theDevice {
		t.Errorf("got %+v, want a service web with an image and %s", file, theDevice)
	}
}
