package experiment

import (
	"io"
	"testing"
	"time"
)

// TestPace: a cell takes as long as before, or as its kind, or as all. The boot of a guest, part of its first cell, is not expected
// again, and failed cells do not count.
func TestPace(t *testing.T) {
	slow, fast := Cell{Setting: VMs, Tool: "NPtcp", Size: 1, Pairs: 1}, Cell{Setting: Host, Tool: "iperf3", Pairs: 1}
	other, broken := slow, slow
	other.Size, broken.Transport = 2, Kernel
	var records []Record
	var p pace
	if p.leftText([][]string{slow.names()}) != "" {
		t.Error("something is known of nothing")
	}
	at := time.Unix(1000, 0)
	for _, step := range []struct {
		cell   Cell
		took   time.Duration
		failed string
	}{
		{slow, 60 * time.Second, ""}, // with the boot of its guests
		{slow, 4 * time.Second, ""}, {broken, time.Millisecond, "no such device"}, {slow, 4 * time.Second, ""}, {broken, time.Millisecond, "no such device"}, {fast, 1 * time.Second, ""},
		{fast, mostCell + time.Second, ""}, // the run was resumed later
		{Cell{Setting: Remote, Tool: "x"}, 0, ""},
	} {
		records = append(records, Record{Cell: step.cell, Time: at, Failed: step.failed, Measurement: Measurement{Seconds: min(step.took.Seconds(), 1) / 2}})
		at = at.Add(step.took)
	}
	p.done(records)
	for _, test := range []struct {
		cells []Cell
		want  time.Duration
	}{
		{nil, 0}, {[]Cell{slow}, 4 * time.Second}, {[]Cell{other, other}, 8 * time.Second}, {[]Cell{fast}, 750 * time.Millisecond},
		{[]Cell{{Setting: Hosts, Tool: "tcp_bw", Pairs: 1}}, 4 * time.Second}, {[]Cell{broken}, time.Millisecond},
	} {
		var names [][]string
		for _, c := range test.cells {
			names = append(names, c.names())
		}
		if got := p.left(names); got != test.want {
			t.Errorf("%v: %v left, want %v", test.cells, got, test.want)
		}
	}
}

// TestGuestsLast: idle guests take memory and processor time, so their cells come last, those with many guests after those with two.
func TestGuestsLast(t *testing.T) {
	list, err := Choose([]string{"progress"})
	if err != nil {
		t.Fatal(err)
	}
	r := &Run{Experiments: list, Progress: io.Discard, Seed: 1}
	last, counts := 0, make(map[int]int)
	for _, s := range r.steps() {
		if s.guestsPerSide() < last {
			t.Fatalf("%v comes after %d guests a side", s.cell, last)
		}
		last = s.guestsPerSide()
		counts[last]++
	}
	if counts[0] == 0 || counts[1] == 0 || counts[2] == 0 || counts[4] == 0 {
		t.Errorf("steps by guests a side: %v, want some with none, one, two and four", counts)
	}
}
