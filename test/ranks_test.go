package test

import (
	"os"
	"path/filepath"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/test/harness"
)

// TestRanks: eight ranks of Open MPI on eight nodes, which are namespaces with a NIC each, start together, round after
// round. Each node needs its own directory for temporary files: with a shared one, a start may lose a daemon and mpirun
// waits until its timeout. The short form leaves out TCP: on a busy machine a rank of Open MPI 4.1 with its TCP
// transport may crash in MPI_Init, without vrdma.
func TestRanks(t *testing.T) {
	harness.Need(t, "mpirun", "mpicc")
	dir := t.TempDir()
	file, out := filepath.Join(dir, "ranks.yaml"), filepath.Join(dir, "results")
	text := `apiVersion: vrdma.io/v1
kind: Experiment
metadata: {name: ranks}
spec:
  settings: [containers]
  transports: ` + harness.Pick("[verbs]", "[verbs, tcp]") + `
  tools: [mpi_transfer]
  sizes: [1MiB]
  perSide: [4]
  rounds: ` + harness.Pick("1", "25") + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tool(t, "bench", "run", file, "--out", out, "--engine", "none").OK(t, harness.Pick(8*minute, 15*minute))
	r, err := experiment.Read(out)
	if err != nil {
		t.Fatal(err)
	}
	if want := harness.Pick(1, 50); len(r.Records) != want {
		t.Errorf("%d records, want %d", len(r.Records), want)
	}
	for _, rec := range r.Records {
		if rec.Failed != "" {
			t.Errorf("round %d of %v: %s", rec.Round, rec.Cell, rec.Failed)
		}
	}
}
