package containers

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/test/harness"
)

// boxes is an experiment in containers: one container a side, and two a side.
const boxes = `apiVersion: vrdma.io/v1
kind: Experiment
metadata: {name: boxes}
spec:
  settings: [containers]
  transports: [verbs, sockets]
  tools: [ib_write_bw, iperf3]
  sizes: [64]
  perSide: [1, 2]
  rounds: 1
  seconds: 1
`

// TestBench, in the long form: `bench run` starts containers with NICs, measures in them, and removes all of them. A
// row that cannot be measured says why.
func TestBench(t *testing.T) {
	if !harness.All() {
		t.Skip("measuring wants a machine that does nothing else: the long form has it")
	}
	h := newHost(t, "bookworm")
	h.benchRun(t, "podman", "--rootfs", "/images/bookworm:O")
	if out := h.run(t, "podman", "ps", "--all", "--quiet"); strings.TrimSpace(out) != "" {
		t.Errorf("containers are left: %s", out)
	}
}

// TestBenchEngines, in the long form: the same with Docker, whose containers have an image, and with LXC. bench chooses
// Docker because podman is not installed, and LXC because the experiment names it.
func TestBenchEngines(t *testing.T) {
	if !harness.All() {
		t.Skip("measuring wants a machine that does nothing else: the long form has it")
	}
	t.Run("docker", func(t *testing.T) {
		h := newEngineHost(t, "newer", "bookworm")
		h.dockerd(t, wrapper)
		h.benchRun(t, "docker", "--rootfs", "bookworm")
		if out := h.run(t, "docker", "ps", "--all", "--quiet"); strings.TrimSpace(out) != "" {
			t.Errorf("containers are left: %s", out)
		}
	})
	t.Run("lxc", func(t *testing.T) {
		h := newEngineHost(t, "older", "bookworm")
		h.run(t, "sh", "-c", "mkdir -p /var/lib/lxc /var/cache/lxc && echo 0123456789abcdef0123456789abcdef >/etc/machine-id")
		h.benchRun(t, "lxc", "--rootfs", "/images/bookworm", "--engine", "lxc")
		if out := h.run(t, "cat", "/proc/net/unix"); strings.Contains(out, "vrdma-bench-") { // where lxc-ls --active looks
			t.Errorf("containers are left: %s", out)
		}
	})
}

// benchRun runs the experiment with an engine.
func (h *host) benchRun(t *testing.T, engine string, args ...string) {
	t.Helper()
	h.write(t, "/tmp/boxes.yaml", boxes)
	h.start(t, append([]string{"vrdma", "bench", "run", "/tmp/boxes.yaml", "--out", "/tmp/results"}, args...)...).OK(t, 5*minute)
	r, err := experiment.Read(fmt.Sprintf("/proc/%d/root/tmp/results", h.pid))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Records) != 4 {
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
		case rec.Failed != "" || rec.Measurement.Setting != "containers of "+engine || !strings.HasPrefix(rec.Proof, "the device's counters"):
			t.Errorf("%v: %s, %s, %s", rec.Cell, rec.Failed, rec.Measurement.Setting, rec.Proof)
		}
	}
}

// TestSpeed, in the long form: vrdma bench measures the part "containers". The test logs the table and requires only
// that each row has a value; docs/explanation/performance.md has the figures. VRDMA_ROUNDS and VRDMA_ROWS set --rounds
// and --rows.
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
