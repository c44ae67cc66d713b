package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var installOnce sync.Once

// Need fails the test unless every named tool is on this machine, after one
// attempt to install what the project needs. A test that skips proves nothing.
func Need(t testing.TB, tools ...string) {
	t.Helper()
	if len(missing(tools)) == 0 {
		return
	}
	var out []byte
	var err error
	installOnce.Do(func() {
		out, err = exec.Command(filepath.Join(Root(), "tools", "install-deps"), "build", "demo", "test").CombinedOutput()
	})
	if m := missing(tools); len(m) > 0 {
		t.Fatalf("missing tools %v; tools/install-deps did not bring them (%v)\n%s", m, err, out)
	}
}

func missing(tools []string) []string {
	var m []string
	for _, tool := range tools {
		if filepath.IsAbs(tool) {
			if _, err := os.Stat(tool); err != nil {
				m = append(m, tool)
			}
		} else if _, err := exec.LookPath(tool); err != nil {
			m = append(m, tool)
		}
	}
	return m
}
