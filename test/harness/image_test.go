package harness

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestContainerImageUsage: tools/container-image without its arguments prints how it is called, and exits 2.
func TestContainerImageUsage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "image")
	for _, args := range [][]string{nil, {dir}, {dir, "bookworm", "more"}} {
		cmd := exec.Command(filepath.Join(Root(), "tools/container-image"), args...)
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 2 || !strings.HasPrefix(string(out), "usage: tools/container-image DIR SUITE") {
			t.Errorf("container-image %q: exit %d, %v\n%s", args, code, err, out)
		}
	}
}
