package packaging

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// podmanFiles configure podman in a machine without control groups of its own.
var podmanFiles = map[string]string{
	"/etc/containers/containers.conf": `[containers]
cgroups = "disabled"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
`,
	"/etc/containers/storage.conf": "[storage]\ndriver = \"vfs\"\n",
}

// TestImages: podman loads the image of vrdma, which has labels and an SBOM. Its program runs without anything else. The same input gives the same digest.
func TestImages(t *testing.T) {
	harness.Build(t)
	dir := harness.Directory(t, nil)
	release := filepath.Join(dir, "release")
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = harness.Root()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
		return string(out)
	}
	run("go", "build", "-o", release, "./packaging/release")
	sbom := filepath.Join(dir, "sbom.json")
	run(release, "sbom", "--name", "vrdma", "--version", "1.0.0", "--out", sbom, "bin/vrdma", "bin/libvrdma.so")
	make := func(file string) string {
		return run(release, "image", "--name", "vrdma", "--version", "1.0.0", "--commit", "abc", "--arch", "amd64", "--entrypoint", "vrdma", "--out",
			filepath.Join(dir, file), "usr/bin/vrdma=bin/vrdma", "usr/lib/vrdma/libvrdma.so=bin/libvrdma.so", "usr/share/doc/vrdma/sbom.spdx.json="+sbom)
	}
	digest, _, _ := strings.Cut(make("image.tar"), " ")
	if again, _, _ := strings.Cut(make("again.tar"), " "); again != digest {
		t.Errorf("the same files have the digests %s and %s", digest, again)
	}
	text, err := os.ReadFile(sbom)
	if err != nil || !strings.Contains(string(text), "pkg:golang/github.com/spf13/cobra@v") {
		t.Errorf("the SBOM does not name cobra: %v\n%s", err, text)
	}

	m := newMachineOf(t, harness.Image(t, "host"), dir)
	for name, content := range podmanFiles {
		if err := os.MkdirAll(filepath.Dir(m.path(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(m.path(name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const image = "localhost/vrdma:1.0.0"
	m.run(t, "podman", "load", "--input", "/packages/image.tar")
	p := m.start(t, "podman", "image", "inspect", image)
	p.OK(t, minute)
	var found []struct {
		Digest string
		Labels map[string]string
	}
	if err := json.Unmarshal([]byte(p.Stdout()), &found); err != nil || len(found) != 1 {
		t.Fatalf("podman image inspect: %v\n%s", err, p.Output())
	}
	if found[0].Digest != digest || found[0].Labels["org.opencontainers.image.revision"] != "abc" {
		t.Errorf("podman has %+v, want digest %s", found[0], digest)
	}
	// Containers need control groups, which are the machine's. test/containers has hosts for them.
	if out := m.run(t, "sh", "-c", `chroot "$(podman image mount "$0")" /usr/bin/vrdma version`, image); !strings.Contains(out, "protocol programs") {
		t.Errorf("the image's vrdma version: %s", out)
	}
}

// TestReleaseTwice: make release writes the same bytes when it runs again, in another directory. Long form only: it builds everything
// for two architectures.
func TestReleaseTwice(t *testing.T) {
	if !harness.All() {
		return
	}
	dir := harness.Directory(t, nil)
	var sums [2]string
	for i, name := range []string{"first", "second"} {
		dist := filepath.Join(dir, name)
		cmd := exec.Command("make", "-s", "release", "DIST="+dist, "VRDMA_SKIP_DEPS=1")
		cmd.Dir = harness.Root()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
		text, err := os.ReadFile(filepath.Join(dist, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = string(text)
	}
	if sums[0] != sums[1] {
		t.Errorf("two releases of one commit differ:\n%s\n%s", sums[0], sums[1])
	}
}
