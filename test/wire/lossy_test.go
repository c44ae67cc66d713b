package wire

import (
	"testing"

	"vrdma/test/cable"
	"vrdma/test/workload"
)

// TestFaults: a wire that loses, doubles, reorders and damages packets. Everything still
// completes, with the right data.
func TestFaults(t *testing.T) {
	rc := func(t *testing.T) []workload.Workload {
		return []workload.Workload{
			workload.Exchange(t, "rc", "-n 60"), workload.Exchange(t, "rc", "-n 10 -l 200000 -s 2"),
			// No pingpong: it ends without waiting for the other side, which fails when
			// the last ACK of all is the one that got lost.
			workload.Perf("send_lat", "-n 100"), workload.Perf("send_bw", "-n 100 -s 4096 --use-srq -q 2"),
			workload.Perf("write_bw", "-n 100 -s 65536"), workload.Perf("read_bw", "-n 100 -s 65536"), workload.Perf("send_bw", "-n 100 -s 65536 -b"),
			workload.Perf("atomic_bw", "-n 200"),
			workload.Exchange(t, "uc", "-n 20 -x -l 4000"), workload.Exchange(t, "ud", "-n 20 -x"),
		}
	}
	few := func(t *testing.T) []workload.Workload {
		all := rc(t)
		return []workload.Workload{all[0], all[3], all[4], all[5], all[7], all[9]}
	}
	for _, c := range []struct {
		name   string
		faults cable.Faults
		work   func(t *testing.T) []workload.Workload
	}{
		{"none", cable.Faults{}, few},
		{"drop1", cable.Faults{Drop: 0.01}, rc},
		{"drop10", cable.Faults{Drop: 0.10}, rc},
		{"duplicate", cable.Faults{Duplicate: 0.05}, few},
		{"reorder", cable.Faults{Reorder: 0.02}, few},
		{"corrupt", cable.Faults{Corrupt: 0.01}, few},
		{"all", cable.Faults{Drop: 0.02, Duplicate: 0.02, Reorder: 0.02, Corrupt: 0.02}, few},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newLab(t, layout{mtu: 1500, cable: true})
			w.a.NoLeaks(t)
			w.b.NoLeaks(t)
			w.capture(t)
			w.cable.SetFaults(c.faults)
			w.run(t, false, 2*minute, c.work(t)...)
			t.Logf("%+v", w.cable.Count())
		})
	}
}
