package containers

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"

	"vrdma/internal/experiment"
	"vrdma/test/harness"
)

// boxes is an experiment in containers.
const boxes = `apiVersion: vrdma.io/v1
kind: Experiment
metadata: {name: boxes}
spec:
  settings: [containers]
  transports: [verbs, sockets]
  tools: [ib_write_bw, iperf3]
  sizes: [64]
  rounds: 1
  seconds: 1
`

// TestBench, in the long form: bench run starts containers with NICs, measures in them, and leaves none. What cannot be done there
// says so.
func TestBench(t *testing.T) {
	if !harness.All() {
		t.Skip("measuring wants a machine that does nothing else: the long form has it")
	}
	h := newHost(t, "bookworm")
	root := fmt.Sprintf("/proc/%d/root", h.pid)
	if err := os.WriteFile(root+"/tmp/boxes.yaml", []byte(boxes), 0o644); err != nil {
		t.Fatal(err)
	}
	h.start(t, "vrdma", "bench", "run", "/tmp/boxes.yaml", "--out", "/tmp/results", "--rootfs", "/images/bookworm:O").OK(t, 5*minute)
	r, err := experiment.Read(root + "/tmp/results")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Records) != 2 {
		t.Errorf("%d records", len(r.Records))
	}
	for _, rec := range r.Records {
		switch {
		case rec.Cell.Transport == experiment.Sockets:
			if !strings.Contains(rec.Failed, "not measured in setting containers") {
				t.Errorf("%v: %q", rec.Cell, rec.Failed)
			}
		case strings.Contains(rec.Failed, experiment.ErrBusy.Error()):
			t.Logf("%v: %s", rec.Cell, rec.Failed)
		case rec.Failed != "" || rec.Measurement.Setting != "containers of podman" || !strings.HasPrefix(rec.Proof, "the device's counters"):
			t.Errorf("%v: %s, %s, %s", rec.Cell, rec.Failed, rec.Measurement.Setting, rec.Proof)
		}
	}
	if out := h.run(t, "podman", "ps", "--all", "--quiet"); strings.TrimSpace(out) != "" {
		t.Errorf("containers are left: %s", out)
	}
}

// TestSpeed, in the long form, has vrdma bench measure its part containers, logs the table, and asks only that each row was measured: what
// is fast is read in docs/performance.md. VRDMA_ROUNDS and VRDMA_ROWS are its --rounds and --rows.
func TestSpeed(t *testing.T) {
	if !harness.All() {
		t.Skip("measuring wants a machine that does nothing else: the long form has it")
	}
	h := newHost(t)
	out := h.start(t, "vrdma", "bench", "--only", "containers", "--out", "", "--rounds", cmp.Or(os.Getenv("VRDMA_ROUNDS"), "1"), "--rows", os.Getenv("VRDMA_ROWS")).OK(t, 5*minute)
	t.Log(out)
	if strings.Contains(out, "not measured") || strings.Contains(out, "FAILED") {
		t.Error("a row has no value")
	}
	if out := h.run(t, "podman", "ps", "--all", "--quiet"); strings.TrimSpace(out) != "" {
		t.Errorf("containers are left: %s", out)
	}
}
