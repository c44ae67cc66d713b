package filecopy

import (
	"testing"
	"time"
)

// TestPace sends over paths of all kinds, in virtual time.
func TestPace(t *testing.T) {
	const all = 4
	for _, c := range []struct {
		name    string
		rate    float64 // of the path, in bytes/s
		round   time.Duration
		size    int // of a file; 0: large
		blocks  int
		streams int
		here    bool
	}{
		{"one machine", 1e9, 200 * time.Microsecond, 0, usualBlocks, 1, true},
		{"a rack", 1e9, 200 * time.Microsecond, 0, maxBlocks, 1, false},
		{"slow to answer", 1e9, 3 * time.Millisecond, 0, maxBlocks, 2, false},
		{"a campus", 1e9, 4 * time.Millisecond, 0, maxBlocks, 2, false},
		{"far and wide", 1e9, 30 * time.Millisecond, 0, maxBlocks, all, false},
		{"a slow line", 1e6, 20 * time.Millisecond, 0, 1, 1, false},
		{"TCP", 1e9, 0, 0, usualBlocks, all, true},
		{"small files, far away", 1e9, 100 * time.Millisecond, 1 << 10, maxBlocks, all, false},
	} {
		now, slots := time.Unix(0, 0), 4
		if c.round == 0 { // unknown
			slots = 0
		}
		p := newPace(now, c.here)
		p.few, p.streams = 1, 1 // of two processors
		for i := range 4000 {
			n := p.bytes()
			if c.size > 0 {
				n = c.size
			}
			// At the rate of the path, or as the data in flight allows.
			took := float64(n) / c.rate
			under := float64(min(p.streams, all) * slots * n)
			if c.round > 0 {
				took = max(took, c.round.Seconds()*float64(n)/under)
			}
			now = now.Add(time.Duration(took * float64(time.Second)))
			// The first slots find an empty queue, the others wait for them.
			round := c.round
			if queue := time.Duration(under / c.rate * float64(time.Second)); i > slots && round > 0 {
				round = max(round, queue)
			}
			p.sent(now, n, all, slots, round)
		}
		if p.blocks < c.blocks || p.blocks > c.blocks+1 {
			t.Errorf("%s: pieces of %d blocks, want %d", c.name, p.blocks, c.blocks)
		}
		if got := min(p.streams, all); got != c.streams {
			t.Errorf("%s: %d streams, want %d", c.name, got, c.streams)
		}
	}
	if fewStreams(1) != 1 || fewStreams(2) != 1 || fewStreams(8) != 4 {
		t.Error("streams of a near way: not one for every second processor")
	}
}
