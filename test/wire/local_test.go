package wire

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// TestLocal: traffic within a host never leaves its memory, whatever address is used.
func TestLocal(t *testing.T) {
	w := newLab(t, layout{mtu: 1500})
	if mtu := w.a.Status(t).Device.MTU; mtu != 1024 {
		t.Errorf("vrdma status says that the MTU is %d, want the 1024 that fit into 1500", mtu)
	}
	// Neighbour discovery and the like come first.
	workload.Pingpong("rc", 4096, 10, "").Run(t, w.a.side(false), w.b.side(false), minute)
	for _, v6 := range []bool{false, true} {
		before := w.a.frames(t)
		side := w.a.side(v6)
		w.a.Carried(t, harness.Traffic{Bytes: 1 << 20}, func() {
			workload.Perf("write_bw", "-n 100 -s 65536").Run(t, side, side, minute)
			workload.Exchange(t, "rc", "").Run(t, side, side, minute)
			workload.Exchange(t, "ud", "").Run(t, side, side, minute)
		})
		if n := w.a.frames(t) - before; n > 20 {
			t.Errorf("IPv6 %v: %d frames passed the interface during local traffic, want none of it", v6, n)
		}
	}
}

// TestPortTaken: another process has the port, and the error explains it.
func TestPortTaken(t *testing.T) {
	w := newWire(t, layout{mtu: 1500})
	w.a.start(t)
	second := harness.Spawn(t, w.a.daemonCommand(t, "--addr", w.a.ip4))
	code := second.Wait(t, minute)
	out := second.Output()
	if code != 3 {
		t.Errorf("a second daemon at %s ended with %d, want 3 (the environment lacks something)\n%s", w.a.ip4, code, out)
	}
	for _, want := range []string{"4791", w.a.ip4, "taken", "--addr"} {
		if !strings.Contains(out, want) {
			t.Errorf("a second daemon at %s does not say %q:\n%s", w.a.ip4, want, out)
		}
	}
	// The first daemon is not disturbed.
	w.b.start(t)
	workload.Exchange(t, "rc", "-n 5").Run(t, w.a.side(false), w.b.side(false), minute)
}
