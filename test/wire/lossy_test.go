package wire

import (
	"fmt"
	"testing"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// repaired returns how many gaps the hosts filled by single retransmissions, and how many packets they kept until then.
func (w *lab) repaired(t *testing.T) (repairs, stashed uint64) {
	t.Helper()
	for _, h := range []*host{w.a, w.b} {
		c := h.Status(t).Counters
		repairs += c["selective_repairs"]
		stashed += c["stashed_packets"]
	}
	return repairs, stashed
}

// TestFaults: a wire drops, duplicates, reorders and damages packets. All work completes with the right data.
func TestFaults(t *testing.T) {
	rc := func(t *testing.T) []workload.Workload {
		return []workload.Workload{
			workload.Exchange(t, "rc", "-n 60"), workload.Exchange(t, "rc", "-n 10 -l 200000 -s 2"),
			// No pingpong: it ends without waiting for the other side, which then fails if the very last ACK was lost.
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
		args   []string // of the daemons
	}{
		{"none", cable.Faults{}, few, nil},
		{"drop1", cable.Faults{Drop: 0.01}, rc, nil},
		{"drop10", cable.Faults{Drop: 0.10}, rc, nil},
		{"drop10/strangers", cable.Faults{Drop: 0.10}, few, []string{"--no-recognise"}},
		{"duplicate", cable.Faults{Duplicate: 0.05}, few, nil},
		{"reorder", cable.Faults{Reorder: 0.02}, few, nil},
		{"corrupt", cable.Faults{Corrupt: 0.01}, few, nil},
		{"all", cable.Faults{Drop: 0.02, Duplicate: 0.02, Reorder: 0.02, Corrupt: 0.02}, few, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newLab(t, layout{mtu: 1500, cable: true, args: c.args})
			w.a.NoLeaks(t)
			w.b.NoLeaks(t)
			w.cable.Keep(t)
			w.cable.SetFaults(c.faults)
			w.run(t, false, 2*minute, c.work(t)...)
			t.Logf("%+v", w.cable.Count())
			repairs, stashed := w.repaired(t)
			t.Logf("%d gaps repaired, %d packets stashed", repairs, stashed)
			if own := c.args == nil; own && c.faults.Drop > 0 && (repairs == 0 || stashed == 0) || !own && repairs+stashed > 0 {
				t.Errorf("%d gaps repaired, %d packets stashed: wrong between hosts that recognise each other: %v", repairs, stashed, own)
			}
		})
	}
}

// TestLossyBandwidth, in the long form: with one packet of a hundred lost in each direction, at least a third of the
// bandwidth remains, at the speed of machine and cable. TestRecovery shows it on a cable that is the slowest part.
func TestLossyBandwidth(t *testing.T) {
	if !harness.All() {
		return // TestLossyStreams of package simnet does the same in virtual time
	}
	for _, mtu := range []int{1500, 9000} {
		w := newLab(t, layout{mtu: mtu, cable: true})
		for _, tool := range []string{"write_bw", "send_bw", "read_bw"} {
			t.Run(fmt.Sprintf("%s/%d", tool, mtu), func(t *testing.T) {
				at := func(drop, enough float64) float64 {
					w.cable.SetFaults(cable.Faults{Drop: drop})
					defer w.cable.SetFaults(cable.Faults{})
					return w.bandwidth(t, tool, func(v float64) bool { return v > enough })
				}
				clean := at(0, 0)
				lossy, bad := at(0.01, clean/3), at(0.1, 0)
				t.Logf("%.0f MiB/s, %.0f where 1 %% is lost, %.0f where 10 %% are", clean, lossy, bad)
				if lossy <= clean/3 {
					t.Errorf("%.0f MiB/s of %.0f at 1 %% loss, want a third", lossy, clean)
				}
			})
		}
	}
}
