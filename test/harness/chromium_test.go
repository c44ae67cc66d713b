package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestChromiumInstalled: tools/chromium works where Chromium, or a part of it, is installed. apt-get and dpkg-deb are
// stand-ins: apt names what is missing, and a package is unpacked to the files that the machine lacks.
func TestChromiumInstalled(t *testing.T) {
	for _, c := range []struct {
		name      string
		installed bool
		missing   []string // packages that apt would download
		program   string
		libraries bool
	}{
		{"nothing is installed", false, []string{"chromium", "libnss3"}, "root/usr/lib/chromium/chromium", true},
		{"all libraries are installed", false, []string{"chromium"}, "root/usr/lib/chromium/chromium", false},
		{"it is installed", true, nil, "chromium", false},
		{"it is installed without fonts", true, []string{"fonts-dejavu-core"}, "chromium", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bin, dir := t.TempDir(), t.TempDir()
			var uris strings.Builder
			for _, p := range c.missing {
				uris.WriteString("echo \"'http://mirror/" + p + ".deb' " + p + "_1_amd64.deb 1 SHA256:0\"\n")
			}
			script(t, bin, "apt-get", `case $1 in
install) `+strings.ReplaceAll(uris.String(), "\n", "; ")+`:;;
download) echo "$3" >"./$3_1_amd64.deb";;
esac`)
			script(t, bin, "dpkg-deb", `case $(cat "$2") in
chromium) mkdir -p "$3/usr/lib/chromium" && : >"$3/usr/lib/chromium/chromium";;
lib*) mkdir -p "$3/usr/lib/x86_64-linux-gnu";;
*) mkdir -p "$3/usr/share/fonts";;
esac`)
			script(t, bin, "dpkg-query", "exit 1")
			for _, tool := range []string{"sh", "cat", "sha256sum", "mkdir", "mktemp", "sed", "rm", "mv", "id"} {
				path, err := exec.LookPath(tool)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(path, filepath.Join(bin, tool)); err != nil {
					t.Fatal(err)
				}
			}
			if c.installed {
				script(t, bin, "chromium", ":")
			}
			for range 2 { // the second time nothing is downloaded
				cmd := exec.Command(filepath.Join(Root(), "tools/chromium"), dir)
				cmd.Env = []string{"PATH=" + bin}
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			program, libraries := chromiumIn(filepath.Join(dir, "root"))
			if !strings.HasSuffix(program, c.program) || (libraries != "") != c.libraries {
				t.Errorf("got program %q and libraries %q, want %q and libraries: %v", program, libraries, c.program, c.libraries)
			}
		})
	}
}

// script writes an executable shell script.
func script(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}
