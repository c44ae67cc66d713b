package wire

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
)

// Programs on all loops of a host exchange messages with programs on all loops of another. Both daemons are replaced by ones with
// other numbers of loops, and the programs move between loops. No program sees it.
func TestLoopsAcross(t *testing.T) {
	harness.Need(t, "nsenter", "ip")
	w := newWire(t, layout{mtu: 9000})
	hosts := []*host{w.a, w.b}
	configs := []string{filepath.Join(t.TempDir(), "a.yaml"), filepath.Join(t.TempDir(), "b.yaml")}
	configure := func(loops [2]int) {
		t.Helper()
		for i, n := range loops {
			if err := os.WriteFile(configs[i], []byte("loops: "+strconv.Itoa(n)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	configure([2]int{3, 3})
	for i, h := range hosts {
		h.Daemon = harness.StartUpgradable(t, harness.Options{Addr: h.addrs, Network: h.space.Path(), Args: []string{"--config", configs[i]}})
	}
	seconds := harness.Pick("6", "20")
	var pairs [][]*harness.Process
	for _, tool := range []string{"ib_write_bw", "ib_read_bw", "ib_send_bw"} {
		pairs = append(pairs, perf(t, w.a, w.b, nil, tool, seconds))
	}
	moved := 0
	spread := func(loops [2]int) {
		t.Helper()
		for k, pair := range pairs {
			for i, h := range hosts {
				err := protocol.MoveProcess(h.Socket, pair[1-i].PID(), k%loops[i]) // the server is at the second host
				switch {
				case err == nil:
					moved++
				case !strings.Contains(err.Error(), "try again") && !strings.Contains(err.Error(), "no device open"): // it may have ended
					t.Fatal(err)
				}
			}
		}
	}
	spread([2]int{3, 3})
	for range harness.Pick(1, 5) {
		for _, loops := range [][2]int{{1, 4}, {4, 1}, {2, 3}} {
			configure(loops)
			for i, h := range hosts {
				h.Upgrade(t)
				if n := len(h.Status(t).Loops); n != loops[i] {
					t.Errorf("host %d has %d loops, want %d", i, n, loops[i])
				}
			}
			spread(loops)
		}
	}
	if moved == 0 {
		t.Error("no program has moved")
	}
	for _, pair := range pairs {
		for _, p := range pair {
			p.OK(t, minute)
		}
	}
	w.a.holds(t, w.b.ip4, "vrdma")
}
