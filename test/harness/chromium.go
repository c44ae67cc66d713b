package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Chromium returns a command that runs a headless Chromium with its own profile and without a network; the test chooses
// what it opens. It is unpacked if this machine has neither installed nor unpacked it. See tools/chromium.
func Chromium(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	Need(t, "apt-get", "dpkg-deb")
	dir, err := cached("chromium", "chromium")
	if err != nil {
		t.Fatal(err)
	}
	program, libraries := chromiumIn(filepath.Join(dir, "root"))
	profile := t.TempDir()
	cmd := exec.Command(program, append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir=" + profile, "--enable-logging=stderr",
	}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+profile, "XDG_RUNTIME_DIR="+profile, "DBUS_SESSION_BUS_ADDRESS=disabled:")
	if libraries != "" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+libraries+":"+filepath.Join(libraries, "pulseaudio"))
	}
	return cmd
}

// chromiumIn is the program below a root that tools/chromium made, and the directory of unpacked libraries. Where the
// machine has Chromium or all of its libraries installed, the root lacks them: the installed ones are used.
func chromiumIn(root string) (program, libraries string) {
	program = filepath.Join(root, "usr/lib/chromium/chromium")
	if _, err := os.Stat(program); err != nil {
		program = "chromium"
	}
	if found, _ := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu")); len(found) > 0 {
		libraries = found[0]
	}
	return program, libraries
}
