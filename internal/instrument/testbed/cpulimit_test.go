package testbed

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestShare: the limit is written to the control group, and a server starts in it.
func TestShare(t *testing.T) {
	g := &Cgroups{parent: t.TempDir(), prefix: "x-"}
	dir, err := g.addLimited("server", 50)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "cpu.max")); err != nil || string(text) != "10000 20000" {
		t.Errorf("the limit is %q, %v; want half of 20 ms", text, err)
	}
	h := &Host{Enter: []string{"nsenter"}}
	argv := (&CPULimit{server: "/server"}).Launcher(Plain).Command(h, "ib_write_bw")
	if !slices.Contains(argv, "/server/cgroup.procs") || !strings.HasSuffix(strings.Join(argv, " "), "nsenter ib_write_bw") {
		t.Errorf("%q: want the group, and the host's command", argv)
	}
	var none *CPULimit
	if len(none.Launcher(Plain).Command(h, "x")) != 2 || none.Close() != nil {
		t.Error("nobody asked for a limit, and there is one")
	}
	if s, err := LimitServers(0, 1); s != nil || err != nil {
		t.Errorf("no share: %v, %v", s, err)
	}
	// A group that could not be removed is reused.
	for range 2 {
		if _, err := g.Add("again"); err != nil {
			t.Error(err)
		}
	}
}
