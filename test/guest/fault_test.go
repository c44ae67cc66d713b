package guest

import (
	"testing"

	"vrdma/test/cable"
	"vrdma/test/workload"
)

// loss: of a hundred packets one gets lost, either way.
func (l *lab) loss(t *testing.T) {
	l.capture(t)
	p := l.pair(t, l.daemon(t), false)
	before := l.cable.Count()
	l.cable.SetFaults(cable.Faults{Drop: 0.01})
	defer l.cable.SetFaults(cable.Faults{})
	for _, w := range []workload.Workload{
		workload.Exchange(t, "rc", "-n 12"), workload.Exchange(t, "uc", "-n 12 -x"), workload.Exchange(t, "ud", "-n 12 -x"),
		workload.Pingpong("rc", 4096, 50, ""), workload.Pingpong("srq", 4096, 50, ""),
		workload.Perf("send_bw", "-n 20 -s 65536"), workload.Perf("write_bw", "-n 20 -s 65536"), workload.Perf("read_bw", "-n 20 -s 65536"),
		workload.Perf("atomic_bw", "-n 100"),
	} {
		p.both(t, w, 2*minute)
	}
	if after := l.cable.Count(); after.Dropped < before.Dropped+20 {
		t.Errorf("the cable lost %d packets of %d: this proves little", after.Dropped-before.Dropped, after.Carried-before.Carried)
	}
}

// faults: packets doubled, out of order and damaged.
func (l *lab) faults(t *testing.T) {
	l.capture(t)
	p := l.pair(t, l.daemon(t), false)
	for name, f := range map[string]cable.Faults{
		"duplicate": {Duplicate: 0.05}, "reorder": {Reorder: 0.01}, "corrupt": {Corrupt: 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			l.cable.SetFaults(f)
			defer l.cable.SetFaults(cable.Faults{})
			for _, kind := range []string{"rc", "uc", "ud"} {
				p.both(t, workload.Exchange(t, kind, "-n 8 -x"), 2*minute)
			}
		})
	}
}
