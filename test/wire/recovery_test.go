package wire

import (
	"strconv"
	"testing"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/workload"
)

// TestRecovery: over a wire that loses one packet of a hundred in both directions, perftest
// still sees more than a third of the bandwidth that it has without loss. The wire has a
// rate of its own, well below what the hosts could do, so that it and not the machine sets
// the pace.
func TestRecovery(t *testing.T) {
	slow := cable.Bottleneck{Rate: 10 << 20, Queue: 2000, Mark: 1 << 30}
	for _, tool := range []string{"write_bw", "read_bw", "send_bw"} {
		t.Run(tool, func(t *testing.T) {
			w := newLab(t, layout{mtu: 1500, cable: true})
			for _, end := range w.ends {
				w.cable.Limit(t, end, slow)
			}
			clean := w.bandwidth(t, tool, func(float64) bool { return true })
			w.cable.SetFaults(cable.Faults{Drop: 0.01})
			lossy := w.bandwidth(t, tool, func(v float64) bool { return v > clean/3 })
			t.Logf("%.2f MiB/s without loss, %.2f with: %.2f", clean, lossy, lossy/clean)
			if lossy <= clean/3 {
				t.Errorf("%.2f MiB/s at 1 %% loss and %.2f without, want more than a third", lossy, clean)
			}
		})
	}
}

// bandwidth returns what a tool of perftest measures, in MiB/s: the best of a few runs, because other processes need
// the processors, too.
func (w *lab) bandwidth(t *testing.T, tool string, good func(float64) bool) (best float64) {
	t.Helper()
	for range 8 {
		server, client := workload.Perf(tool, "-D 3 -f 0 -s 65536").Start(t, w.a.side(false), w.b.side(false)).OK(t, minute)
		rows := workload.Rows(client)
		if err := workload.CheckRows(client, server, 1); err != nil {
			t.Fatalf("%v\n%s", err, client)
		}
		if v, err := strconv.ParseFloat(rows[0][3], 64); err == nil {
			best = max(best, v)
		}
		if best > 0 && good(best) {
			return best
		}
	}
	if best == 0 {
		t.Fatal("perftest could not measure anything")
	}
	return best
}
