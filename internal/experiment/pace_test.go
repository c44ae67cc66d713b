package experiment

import (
	"io"
	"testing"
	"time"
)

// TestPace: a cell takes as long as it did, or as its kind, or as all; the boot of a guest, which the first cell pays for, is not
// expected again.
func TestPace(t *testing.T) {
	slow, fast := Cell{Setting: VMs, Tool: "NPtcp", Size: 1, Pairs: 1}, Cell{Setting: Host, Tool: "iperf3", Pairs: 1}
	other := slow
	other.Size = 2
	var p pace
	if p.leftText([]Cell{slow}) != "" {
		t.Error("something is known of nothing")
	}
	p.took(slow, 60*time.Second) // with its guests' boot
	p.took(slow, 4*time.Second)
	p.took(slow, 4*time.Second)
	p.took(fast, 1*time.Second)
	for _, test := range []struct {
		cells []Cell
		want  time.Duration
	}{
		{nil, 0}, {[]Cell{slow}, 4 * time.Second}, {[]Cell{other, other}, 8 * time.Second}, {[]Cell{fast}, time.Second},
		{[]Cell{{Setting: Hosts, Tool: "tcp_bw", Pairs: 1}}, 4 * time.Second},
	} {
		if got := p.left(test.cells); got != test.want {
			t.Errorf("%v: %v left, want %v", test.cells, got, test.want)
		}
	}
}

// TestCrowdsLast: many guests take processor time at rest, so they come when all else is measured.
func TestCrowdsLast(t *testing.T) {
	list, err := Choose([]string{"progress"})
	if err != nil {
		t.Fatal(err)
	}
	r := &Run{Experiments: list, Progress: io.Discard, Seed: 1}
	last, counts := 0, make(map[int]int)
	for _, s := range r.steps() {
		if s.crowd() < last {
			t.Fatalf("%v comes after %d guests more a side", s.cell, last)
		}
		last = s.crowd()
		counts[last]++
	}
	if counts[0] == 0 || counts[1] == 0 || counts[3] == 0 {
		t.Errorf("steps by guests beyond one a side: %v, want some with none, one and three", counts)
	}
}
