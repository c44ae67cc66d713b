package preflight

import (
	"debug/elf"
	"os"
	"strings"
	"testing"
)

func TestEnvironment(t *testing.T) {
	for _, tc := range []struct{ command, what, do string }{
		{"ib_send_bw 127.0.0.1", "", ""},
		{"", "", ""},
		{"sudo ib_send_bw", "sudo starts programs in another environment", "sudo vrdma run -- PROGRAM"},
		{"/usr/bin/ssh host ib_send_bw", "/usr/bin/ssh starts", "ssh HOST vrdma run -- PROGRAM"},
		{"tmux new", "tmux starts", "its server keeps the environment"},
		{"flatpak run org.example.App", "flatpak starts programs with another /tmp", "--filesystem="},
		{"bwrap --tmpfs /tmp ib_send_bw", "", ""}, // package launch adds what is missing
		{"env A=b ib_send_bw -i 2", "", ""},
		{"env ib_send_bw", "", ""},
		{"env", "", ""},
		{"env -i ib_send_bw", "env -i drops", "env -i PATH"},
		{"/usr/bin/env - A=b ib_send_bw", "env -i drops", "env -i PATH"},
		{"env -u A --ignore-environment x", "", ""}, // A belongs to -u; the rest is not parsed
	} {
		found := Environment(strings.Fields(tc.command))
		if (len(found) > 0) != (tc.what != "") {
			t.Errorf("%s: found %q, want %q", tc.command, found, tc.what)
		} else if tc.what != "" && (!strings.Contains(found[0].What, tc.what) || !strings.Contains(found[0].Do, tc.do) || found[0].Fatal) {
			t.Errorf("%s: found %q, want %q and %q", tc.command, found, tc.what, tc.do)
		}
	}
}

// The remedy for a setuid program that starts others is vrdma behind it, not a copy without the privilege.
func TestSetuidLauncher(t *testing.T) {
	stranger := identity{os.Getuid() + 1, os.Getgid() + 1}
	path := write(t, "sudo", image(elf.ELFCLASS64, machines["amd64"], "/lib64/ld-linux-x86-64.so.2"), 0o755|os.ModeSetuid)
	fatal, found := Fatal(program(path, stranger, 4))
	if !found || !strings.Contains(fatal.Do, "sudo vrdma run -- PROGRAM") || strings.Contains(fatal.Do, "cp ") {
		t.Errorf("found %q", fatal)
	}
}
