package experiment

import (
	"math"
	"testing"
)

// A latency tool that sent ten thousand messages in 0.04 s of a run of 0.5 s: start-up is most of its processor time. The longer run
// gives the cost of a message.
func TestBeyond(t *testing.T) {
	run := func(messages int64) *Measurement {
		transfer := 4e-6 * float64(messages)
		return &Measurement{Seconds: 0.45 + transfer, Samples: messages, CPU: map[string]float64{"client": 0.3 + transfer, "server": 0.15 + transfer, "daemon": 0.05 + transfer}}
	}
	s := run(250_000).Beyond(run(10_000))
	if s == nil || s.Samples != 240_000 || math.Abs(s.Seconds-0.96) > 1e-9 {
		t.Fatalf("beyond the shorter run: %+v", s)
	}
	for role, used := range s.CPU {
		if busy := used / s.Seconds; math.Abs(busy-1) > 1e-9 {
			t.Errorf("%s polls and uses %v of a processor, want 1", role, busy)
		}
	}
	// Two runs that differ too little say nothing.
	if s := run(11_000).Beyond(run(10_000)); s != nil {
		t.Errorf("a difference of 4 ms: %+v", s)
	}
	if s := run(10_000).Beyond(run(250_000)); s != nil {
		t.Errorf("a shorter run: %+v", s)
	}
	if s := (&Measurement{Seconds: 3}).Beyond(&Measurement{Seconds: 1}); s != nil {
		t.Errorf("no work is counted: %+v", s)
	}
}
