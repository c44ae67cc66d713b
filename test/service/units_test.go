package service

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// unitRoot is a file system with the units where a package has them.
func unitRoot(t *testing.T) string {
	t.Helper()
	harness.Need(t, "systemd-analyze")
	harness.Build(t)
	root := t.TempDir()
	const script = `set -e; cd "$1"; units=$2; binary=$3
		mkdir -p usr/bin usr/lib/systemd/system usr/lib/systemd/user etc/systemd/system var/lib/vrdma
		cp /lib/systemd/system/*.target /lib/systemd/system/*.slice /lib/systemd/system/*.mount usr/lib/systemd/system/
		cp /usr/lib/systemd/user/*.target /usr/lib/systemd/user/*.slice usr/lib/systemd/user/
		cp $units/vrdma.service $units/vrdma.socket usr/lib/systemd/system/
		cp $units/user/vrdma.service $units/user/vrdma.socket usr/lib/systemd/user/
		cp $binary usr/bin/vrdma`
	if out, err := exec.Command("sh", "-c", script, "sh", root, filepath.Join(harness.Root(), "contrib/systemd"), harness.Binary()).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return root
}

// TestUnits checks the unit files with systemd-analyze: no unknown line, no missing program, and less exposure than without sandbox.
func TestUnits(t *testing.T) {
	root := unitRoot(t)
	verify := func(args ...string) string {
		cmd := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, args...)...)
		cmd.Env = append(os.Environ(), "SYSTEMD_LOG_LEVEL=warning", "XDG_RUNTIME_DIR="+t.TempDir())
		out, _ := cmd.CombinedOutput() // it also complains about this machine
		var ours []string
		for _, line := range strings.Split(string(out), "\n") {
			if strings.Contains(line, "vrdma") {
				ours = append(ours, line)
			}
		}
		return strings.Join(ours, "\n")
	}
	if out := verify("--root="+root, "vrdma.service", "vrdma.socket"); out != "" {
		t.Errorf("the system's units:\n%s", out)
	}
	// An unknown line must be found, or this test shows nothing.
	broken := filepath.Join(root, "usr/lib/systemd/system/vrdma.service")
	text, err := os.ReadFile(broken)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(broken, append([]byte("[Service]\nNoSuchLine=1\n"), text...), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := verify("--root="+root, "vrdma.service"); !strings.Contains(out, "NoSuchLine") {
		t.Errorf("a broken unit passes: %q", out)
	}
	// In a user's units systemd-analyze knows no --root.
	user := t.TempDir()
	for _, name := range []string{"vrdma.service", "vrdma.socket"} {
		text, err := os.ReadFile(filepath.Join(harness.Root(), "contrib/systemd/user", name))
		if err != nil {
			t.Fatal(err)
		}
		text = []byte(strings.ReplaceAll(string(text), "=vrdma ", "="+harness.Binary()+" "))
		if err := os.WriteFile(filepath.Join(user, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out := verify("--user", filepath.Join(user, "vrdma.service"), filepath.Join(user, "vrdma.socket")); out != "" {
		t.Errorf("the user's units:\n%s", out)
	}
}

// TestExposure compares systemd's exposure level of the unit with that of a unit without sandbox, which is 9.6.
func TestExposure(t *testing.T) {
	harness.Need(t, "systemd-analyze")
	cmd := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=65", filepath.Join(harness.Root(), "contrib/systemd/vrdma.service"))
	out, err := cmd.CombinedOutput()
	level := regexp.MustCompile(`Overall exposure level[^:]*: ([0-9.]+)`).FindSubmatch(out)
	if level == nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n, _ := strconv.ParseFloat(string(level[1]), 64)
	t.Logf("exposure level %v", n)
	if err != nil || n > 6.5 {
		t.Errorf("exposure level %v, want at most 6.5\n%s", n, out)
	}
}
