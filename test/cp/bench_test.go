package cp

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
)

// remote is an experiment with another machine.
const remote = `apiVersion: vrdma.io/v1
kind: Experiment
metadata: {name: remote}
spec:
  settings: [remote]
  transports: [tcp, verbs]
  tools: [ib_write_bw, iperf3, cmtime]
  sizes: [4KiB]
  rounds: 1
  seconds: 1
`

// TestBenchRemote, in the long form: `bench run` measures with another machine through OpenSSH and leaves nothing
// there.
func TestBenchRemote(t *testing.T) {
	if !harness.All() {
		t.Skip("measuring wants a machine that does nothing else: the long form has it")
	}
	harness.Need(t, "iperf3", "cmtime", "ib_write_bw")
	harness.Build(t)
	a := &host{space: cable.NewNamespace(t), ip: "10.97.0.1"}
	b := &host{space: cable.NewNamespace(t), ip: "10.97.0.2"}
	cable.Veth(t, a.space, b.space, "eth0", 9000)
	for _, h := range []*host{a, b} {
		h.space.Address(t, "eth0", h.ip+"/24")
	}
	rsh := harness.SSH(t, b.inside, b.ip)
	there := func() []string {
		list, err := filepath.Glob("/tmp/vrdma-peer.*")
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	before := there()
	// left returns the directories that are new.
	left := func() []string {
		return slices.DeleteFunc(there(), func(name string) bool { return slices.Contains(before, name) })
	}
	dir := t.TempDir()
	file, out := write(t, filepath.Join(dir, "remote.yaml"), []byte(remote)), filepath.Join(dir, "results")
	harness.Spawn(t, a.inside(harness.Binary(), "bench", "run", file, "--out", out, "--peer", "root@"+b.ip, "--rsh", rsh)).OK(t, 5*minute)
	r, err := experiment.Read(out)
	if err != nil || len(r.Records) != 3 {
		t.Fatalf("%d records: %v", len(r.Records), err)
	}
	for _, rec := range r.Records {
		if strings.Contains(rec.Failed, experiment.ErrBusy.Error()) {
			t.Logf("%v: %s", rec.Cell, rec.Failed)
			continue
		}
		if rec.Failed != "" || rec.Proof == "" || strings.HasPrefix(rec.Proof, "WRONG") || !strings.HasPrefix(rec.Measurement.Setting, "servers on 10.97.0.2") {
			t.Errorf("%v: %s %s %s", rec.Cell, rec.Failed, rec.Proof, rec.Measurement.Setting)
		}
		if rec.Cell.Tool == "iperf3" && rec.CPU["server"] <= 0 {
			t.Errorf("%v: the server there took no processor time: %v", rec.Cell, rec.CPU)
		}
	}
	if !harness.Poll(minute, func() bool { return len(left()) == 0 }) {
		t.Errorf("left there: %v", left())
	}
	// A machine that cannot be reached gives a row with the reason.
	out = filepath.Join(dir, "unreached")
	harness.Spawn(t, a.inside(harness.Binary(), "bench", "run", file, "--out", out, "--peer", "root@"+b.ip, "--rsh", "false")).OK(t, minute)
	r, err = experiment.Read(out)
	if err != nil || len(r.Records) == 0 || !strings.Contains(r.Records[0].Failed, "cannot be reached") {
		t.Errorf("nobody there: %v", err)
	}
}
