package wire

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestCopyCapped: many small files are copied to and from a NIC with a cap on incoming data, over one stream. The cap
// delays acknowledgements of writes and of credits, but not the NIC's own sends. No queue overflows.
func TestCopyCapped(t *testing.T) {
	_, nics := overlayLab(t, layout{mtu: 1500}, underlay4)
	a, b := nics["red"][0], nics["red"][1]
	b.declare(t, b.object(", rate: {in: 200kbit}"))
	const files = 2000
	from, there, back := filepath.Join(t.TempDir(), "d"), t.TempDir(), t.TempDir()
	if err := os.Mkdir(from, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range files {
		if err := os.WriteFile(filepath.Join(from, fmt.Sprint(i)), fmt.Append(nil, i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	port := harness.FreePort(t)
	server := b.LaunchWith(t, []string{"--nic", b.name}, harness.Binary(), "cp", "--serve", there, "--public", "--write", "--listen", fmt.Sprintf("%s:%d", b.ip, port))
	server.Printed(t, "the data is not encrypted", minute)
	url := fmt.Sprintf("rdma://%s:%d/", b.ip, port)
	for _, c := range []struct{ from, to, arrives string }{{from, url, there}, {url + "d", back, back}} {
		out := a.LaunchWith(t, []string{"--nic", a.name}, harness.Binary(), "cp", "-r", "--streams", "1", "--chunks", "32", c.from, c.to).OK(t, minute)
		if strings.Contains(out, "trying again") {
			t.Errorf("the copy from %s broke:\n%s", c.from, out)
		}
		for i := range files {
			if got, err := os.ReadFile(filepath.Join(c.arrives, "d", fmt.Sprint(i))); err != nil || string(got) != fmt.Sprint(i) {
				t.Fatalf("from %s came %q, %v", c.from, got, err)
			}
		}
	}
}
