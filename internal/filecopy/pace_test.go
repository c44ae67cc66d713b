package filecopy

import (
	"testing"
	"time"
)

// TestPace sends over ways of all kinds, in virtual time.
func TestPace(t *testing.T) {
	for _, c := range []struct {
		name   string
		rate   float64 // of the way, bytes a second
		round  time.Duration
		blocks int
	}{
		{"one host", 1e9, 200 * time.Microsecond, 2},
		{"a rack", 1e9, time.Millisecond, 4},
		{"far and wide", 1e9, 30 * time.Millisecond, maxBlocks},
		{"a slow line", 1e6, 20 * time.Millisecond, 1},
		{"unknown", 1e9, 0, 2},
	} {
		now := time.Unix(0, 0)
		p := newPace(now)
		const slots = 4
		for range 2000 {
			n := p.bytes()
			// As fast as the way, or as what is under way lets it be.
			took := float64(n) / c.rate
			if c.round > 0 {
				took = max(took, c.round.Seconds()/slots)
			}
			now = now.Add(time.Duration(took * float64(time.Second)))
			p.sent(now, n, slots, c.round)
		}
		if p.blocks < c.blocks || p.blocks > c.blocks+1 {
			t.Errorf("%s: pieces of %d blocks, want %d", c.name, p.blocks, c.blocks)
		}
	}
}
