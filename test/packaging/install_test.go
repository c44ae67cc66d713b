package packaging

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestInstall: make install copies what runs from there, keeps a changed configuration, and make uninstall leaves nothing else.
func TestInstall(t *testing.T) {
	harness.Build(t)
	root := harness.Directory(t, nil)
	target := func(name string) {
		t.Helper()
		cmd := exec.Command("make", "-s", name, "DESTDIR="+root, "PREFIX=/opt/x")
		cmd.Dir = harness.Root()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	target("install")
	out, err := exec.Command(filepath.Join(root, "opt/x/bin/vrdma"), "run", "--help").CombinedOutput()
	if err != nil {
		t.Errorf("the installed vrdma: %v\n%s", err, out)
	}
	for _, name := range []string{"opt/x/lib/vrdma/libvrdma.so", "opt/x/lib/systemd/system/vrdma.service", "opt/x/share/man/man1/vrdma.1.gz"} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
	config := filepath.Join(root, "etc/vrdma/vrdma.yaml")
	if err := os.WriteFile(config, []byte("# mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	target("install")
	if text, err := os.ReadFile(config); err != nil || string(text) != "# mine\n" {
		t.Errorf("make install replaced the configuration: %v\n%s", err, text)
	}
	target("uninstall")
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && path != config {
			t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestPackageVersion: what git describe prints becomes a version that dpkg orders as the commits are.
func TestPackageVersion(t *testing.T) {
	version := func(describe string) string {
		out, err := exec.Command(filepath.Join(harness.Root(), "packaging/version"), describe).Output()
		if err != nil {
			t.Fatalf("packaging/version %s: %v", describe, err)
		}
		return strings.TrimSpace(string(out))
	}
	for describe, want := range map[string]string{
		"v1.2.3": "1.2.3", "v1.2.3-rc1": "1.2.3~rc1", "v1.2.3-14-gabcdef1": "1.2.3+14.gabcdef1", "v1.2.3-rc1-2-gabcdef1-dirty": "1.2.3~rc1+2.gabcdef1+dirty",
		"unknown": "0.0.0",
	} {
		if got := version(describe); got != want {
			t.Errorf("%s: got %s, want %s", describe, got, want)
		}
	}
	order := []string{"unknown", "ffffffff", "v1.0.0-rc1", "v1.0.0-rc1-3-gabcdef1", "v1.0.0", "v1.0.0-1-gabcdef1", "v1.0.1"}
	for i := range order[1:] {
		low, high := version(order[i]), version(order[i+1])
		if err := exec.Command("dpkg", "--compare-versions", low, "lt", high).Run(); err != nil {
			t.Errorf("%s is not lower than %s: %v", low, high, err)
		}
	}
}
