package wire

import (
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// TestFaultsOnDemand: between hosts, too, `vrdma fault` loses, doubles, reorders, delays and damages packets, and
// everything still completes, with the right data. A damaged packet leaves one host and is dropped by the other.
func TestFaultsOnDemand(t *testing.T) {
	w := newLab(t, layout{mtu: 1500})
	vrdma := func(h *host, args ...string) {
		t.Helper()
		harness.Spawn(t, h.Command(args...)).OK(t, minute)
	}
	vrdma(w.a, "fault", "add", "--name", "bad", "drop,probability=1%,direction=both", "duplicate,probability=2%", "reorder,probability=1%",
		"corrupt,probability=1%", "delay,time=200us,probability=1%", "drop,op=ack,probability=2%,direction=both")
	w.run(t, false, 2*minute, workload.Exchange(t, "rc", "-n 60"), workload.Perf("write_bw", "-n 100 -s 65536"),
		workload.Perf("read_bw", "-n 100 -s 65536"), workload.Exchange(t, "ud", "-n 20 -x"))
	vrdma(w.a, "fault", "remove", "bad")
	if n := w.b.Status(t).Counters["rx_icrc_encapsulated"]; n == 0 {
		t.Error("no packet with a wrong ICRC has arrived")
	}
}
