// Package lab tests the course: the C programs of examples/lab-c through `vrdma run`, and every command of
// docs/tutorials/lab.md in the order of the page.
package lab

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

const minute = time.Minute

func TestMain(m *testing.M) { harness.Main(m) }

// program is one of the C programs, built by their own Makefile.
func program(t *testing.T, dir, name string) string {
	t.Helper()
	harness.Need(t, "gcc", "make")
	cmd := exec.Command("make", "-s", "-C", filepath.Join(harness.Root(), "examples", "lab-c"), "OUT="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return filepath.Join(dir, name)
}
