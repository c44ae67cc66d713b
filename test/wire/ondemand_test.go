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

// TestSuspend: a NIC stands still in the middle of a transfer, as while it moves to another host, for longer than all
// retries of its peer would last. Programs notice nothing but the time, whichever side stands still.
func TestSuspend(t *testing.T) {
	w := newLab(t, layout{mtu: 1500})
	vrdma := func(h *host, args ...string) {
		t.Helper()
		harness.Spawn(t, h.Command(args...)).OK(t, minute)
	}
	naks := func(h *host) uint64 { return h.Status(t).Counters["send_rnr_err"] }
	// With perftest's timeout, 14, the retries last 1.8 s.
	for i, c := range []workload.Workload{
		workload.Perf("write_bw", "-n 200 -s 65536"), workload.Perf("read_bw", "-n 200 -s 65536"),
		workload.Perf("send_bw", "-n 200 -s 65536 -q 4"), workload.Perf("atomic_bw", "-n 200"),
	} {
		server := i%2 == 0 // the side that gets the requests
		h := w.b
		if server {
			h = w.a
		}
		before := naks(h)
		vrdma(h, "fault", "add", "--name", "still", "suspend,message=20,direction=both,for=2500ms")
		w.run(t, false, 2*minute, c)
		vrdma(h, "fault", "remove", "still")
		if n := naks(h); server && n == before {
			t.Errorf("%s: the suspended NIC has sent no RNR NAK", c.Name)
		}
	}
}
