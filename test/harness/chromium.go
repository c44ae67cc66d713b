package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Chromium is a command that runs a headless Chromium, with a profile of its own and no network worth
// speaking of: the test says what it opens. It is unpacked if this machine has not done so before. See
// tools/chromium.
func Chromium(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	Need(t, "apt-get", "dpkg-deb")
	dir, err := cached("chromium", "chromium")
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "root")
	program := filepath.Join(root, "usr/lib/chromium/chromium")
	if _, err := os.Stat(program); err != nil {
		program = "chromium" // installed
	}
	libraries, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu"))
	if err != nil || len(libraries) == 0 {
		t.Fatalf("no libraries in %s: %v", root, err)
	}
	profile := t.TempDir()
	cmd := exec.Command(program, append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir=" + profile, "--enable-logging=stderr",
	}, args...)...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraries[0]+":"+filepath.Join(libraries[0], "pulseaudio"), "HOME="+profile, "XDG_RUNTIME_DIR="+profile, "DBUS_SESSION_BUS_ADDRESS=disabled:")
	return cmd
}
