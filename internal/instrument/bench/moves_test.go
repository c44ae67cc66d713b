package bench

import (
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/instrument/podmanhosts"
)

// TestSteps: each part of a gap counts for one step of podman, also where the gap begins or ends within a step.
func TestSteps(t *testing.T) {
	at := func(ms int64) time.Time { return time.UnixMilli(1700000000000 + ms) }
	m := podmanhosts.Move{Began: at(0), Checkpointed: at(500), Copied: at(550), Restored: at(1000)}
	for _, c := range []struct {
		name                          string
		line                          string
		checkpoint, transfer, restore float64
	}{
		{"usual", "1700000000.100 1700000000.900\n", 0.4, 0.05, 0.35},
		{"beyond the restore", "1700000000.100 1700000001.200\n", 0.4, 0.05, 0.65},
		{"in the restore", "1700000000.600 1700000000.700\n", 0, 0, 0.1},
	} {
		g, err := parseGap(c.line)
		if err != nil {
			t.Fatal(err)
		}
		var s steps
		s.add(g, m)
		got := []float64{s.checkpoint[0], s.transfer[0], s.restore[0]}
		for i, want := range []float64{c.checkpoint, c.transfer, c.restore} {
			if d := got[i] - want; d > 1e-4 || d < -1e-4 {
				t.Errorf("%s: part %d is %v, want %v", c.name, i, got[i], want)
			}
		}
	}
	if _, err := parseGap("ready\n"); err == nil {
		t.Error("a line that is no gap was accepted")
	}
}
