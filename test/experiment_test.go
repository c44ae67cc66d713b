package test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/test/harness"
)

// small is an experiment of the user's own: one run of each kind of tool, over everything that can
// be measured, and a setting that cannot. Containers and guests are in the long form only.
const small = `apiVersion: vrdma.io/v1
kind: Experiment
metadata: {name: small}
spec:
  title: One of each
  settings: [SETTINGS]
  transports: [tcp, verbs, sockets]
  tools: [ib_write_lat, ib_read_bw, iperf3]
  sizes: [64]
  pairs: [1]
  rounds: 1
  seconds: 1
---
apiVersion: vrdma.io/v1
kind: Experiment
metadata: {name: two-pairs}
spec:
  settings: [host]
  transports: [tcp, verbs]
  tools: [ib_send_bw, tcp_lat, sockperf]
  sizes: [4KiB]
  pairs: [2]
  wait: [poll, event]
  rounds: 1
  seconds: 1
---
apiVersion: vrdma.io/v1
kind: Experiment
metadata: {name: atomics}
spec:
  settings: [hosts]
  transports: [verbs]
  tools: [ib_atomic_bw, ib_atomic_lat]
  queuePairs: [4]
  rounds: 1
  seconds: 1
`

// TestExperiment interrupts an experiment, continues it, and makes a page. The device's counters show what carried the
// bytes of each value. A value that could not be measured has a reason.
func TestExperiment(t *testing.T) {
	harness.Need(t, "iperf3", "sockperf")
	dir := t.TempDir()
	file := filepath.Join(dir, "small.yaml")
	settings := harness.Pick([]string{"host", "hosts", "remote"}, []string{"host", "hosts", "containers", "vms", "remote"})
	if err := os.WriteFile(file, []byte(strings.Replace(small, "SETTINGS", strings.Join(settings, ", "), 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "results")
	p := tool(t, "bench", "run", file, "--out", out, "--seed", "3", "--source", harness.Root())
	if !harness.Poll(15*minute, func() bool { return p.Ended(0) || strings.Contains(p.Output(), "4 of ") }) || p.Ended(0) {
		t.Fatalf("it does not measure\n%s", p.Output())
	}
	if err := syscall.Kill(p.PID(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if !p.Ended(minute) || !strings.Contains(p.Output(), "what was measured is kept, and --resume goes on") {
		t.Fatalf("interrupted\n%s", p.Output())
	}
	first, err := experiment.Read(out)
	if err != nil || len(first.Records) < 3 {
		t.Fatalf("%d records are kept: %v", len(first.Records), err)
	}
	tool(t, "bench", "run", "--resume", "--out", out, "--source", harness.Root()).OK(t, 15*minute)
	all, err := experiment.Read(out)
	if err != nil {
		t.Fatal(err)
	}
	cells := make(map[experiment.Cell]bool)
	measured := 0
	for _, r := range all.Records {
		if cells[r.Cell] {
			t.Errorf("%v was measured twice", r.Cell)
		}
		cells[r.Cell] = true
		checkRecord(t, &r)
		if r.Failed == "" {
			measured++
		}
	}
	if len(cells) != 4*len(settings)+4+2 {
		t.Errorf("%d cells, want four of the first experiment in %d settings, four of the second, and two of the third", len(cells), len(settings))
	}
	// The file has what is needed to repeat the experiment.
	if h := all.Header; h.Seed != 3 || h.Program == "" || h.Machine.Kernel == "" || h.Machine.Processor == "" || len(h.Machine.Programs) == 0 || len(h.Experiments) == 0 || h.Started.IsZero() {
		t.Errorf("results cannot be repeated: %+v", h)
	}
	if measured == 0 {
		t.Error("nothing was measured")
	}
	p = tool(t, "report", out)
	p.OK(t, minute)
	page, err := os.ReadFile(filepath.Join(out, "report.html"))
	if err != nil || !strings.Contains(string(page), "One of each") {
		t.Errorf("the page: %v", err)
	}
}

func checkRecord(t *testing.T, r *experiment.Record) {
	t.Helper()
	if r.Cell.Setting == experiment.Remote {
		if !strings.Contains(r.Failed, "needs another machine") {
			t.Errorf("%v: %q", r.Cell, r.Failed)
		}
		return
	}
	if strings.Contains(r.Failed, experiment.ErrBusy.Error()) {
		t.Logf("%v: %s", r.Cell, r.Failed)
		return
	}
	if r.Failed != "" {
		t.Errorf("%v failed: %s", r.Cell, r.Failed)
		return
	}
	if r.Proof == "" || strings.HasPrefix(r.Proof, "WRONG") {
		t.Errorf("%v: what carried the bytes? %q", r.Cell, r.Proof)
	}
	if r.Output == "" || len(r.Commands) != 2*r.Cell.Pairs || r.Seconds <= 0 {
		t.Errorf("%v cannot be repeated: %d commands, %q", r.Cell, len(r.Commands), r.Output)
	}
	if tool := r.Cell.Tool; strings.HasPrefix(tool, "ib_") && (r.MTU == 0 || r.Depth == 0 || r.Inline == nil && !strings.Contains(tool, "read") && !strings.Contains(tool, "atomic")) { // these two have none
		t.Errorf("%v: path MTU %d, depth %d, inline %v", r.Cell, r.MTU, r.Depth, r.Inline)
	}
	if r.Cell.Transport != experiment.TCP && r.CPU["daemon"] <= 0 && r.Cell.Tool == "ib_read_bw" {
		t.Errorf("%v: the daemon took no processor time: %v", r.Cell, r.CPU)
	}
	// Sockets over verbs need no network interface: all of their bytes, iperf3's control connection included, pass
	// through memory.
	if carded := r.Cell.Transport != experiment.Sockets; r.Cell.Setting == experiment.VMs && (r.CPU["qemu"] <= 0 || carded && r.Links["eth0"]+r.Links["eth1"] == 0) {
		t.Errorf("%v: QEMU took %v s, cards sent %v", r.Cell, r.CPU["qemu"], r.Links)
	}
	if r.Cell.Setting == experiment.Containers && !strings.Contains(r.Measurement.Setting, "instead of containers") && !strings.Contains(r.Measurement.Setting, "podman") {
		t.Errorf("%v: what stood for containers? %q", r.Cell, r.Measurement.Setting)
	}
	if pairs := r.Cell.Pairs > 1 && r.Cell.Tool == "ib_send_bw" && r.Cell.Wait == experiment.Poll; pairs != (r.Window > 0) || r.Window > 0 && r.Window < 1 {
		t.Errorf("%v: a window of %v s", r.Cell, r.Window)
	}
	if r.Values[experiment.Bandwidth] > 0 && r.Limit <= 0 {
		t.Errorf("%v: no limit of its path", r.Cell)
	}
	if r.Values["slowest"] > 0 && (r.Values["fairness"] <= 0 || r.Values["fairness"] > 1) {
		t.Errorf("%v: fairness %v", r.Cell, r.Values["fairness"])
	}
}
