package wire

import (
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/workload"
)

// TestInterfaceMTU: an interface's MTU is lowered while the daemon runs. Programs fail, and log and status give the
// reason.
func TestInterfaceMTU(t *testing.T) {
	w := newLab(t, layout{mtu: 9000})
	w.run(t, false, minute, workload.Perf("write_bw", "-n 20 -s 65536"))
	w.b.space.IP(t, "link", "set", "eth0", "mtu", "1500")
	if err := workload.Perf("write_bw", "-n 20 -s 65536").Try(t, w.a.side(false), w.b.side(false), minute); err == nil {
		t.Error("packets of 4096 bytes pass an interface of 1500")
	}
	const want = "packets are too long for the way to a peer"
	for end := time.Now().Add(minute); !strings.Contains(w.b.Process.Output(), want) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if log := w.b.Process.Output(); strings.Count(log, want) != 1 || !strings.Contains(log, "interface=eth0 interface_mtu=1500") {
		t.Errorf("want one line about the interface's MTU in the log:\n%s", log)
	}
	for _, p := range w.b.Status(t).Peers {
		if p.Address == w.a.ip4 && strings.Contains(p.Problem, "too long") {
			return
		}
	}
	t.Errorf("the status does not tell: %+v", w.b.Status(t).Peers)
}
