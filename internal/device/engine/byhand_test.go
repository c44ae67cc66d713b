package engine

import (
	"testing"

	"vrdma.dev/vrdma/internal/ib"
)

// BenchmarkByHand is what a WRITE costs the loop, with nobody to wait for: one thread posts
// and makes the passes. It can be compared on a machine that is not quiet.
func BenchmarkByHand(b *testing.B) {
	for _, c := range []struct {
		name string
		n    uint32
	}{{"8", 8}, {"64K", 64 << 10}} {
		b.Run(c.name, func(b *testing.B) {
			x, y := pair(b)
			e := x.c.e
			halt(e)
			now := e.clock.now
			e.clock.time = func() ib.Time { now++; return now }
			for b.Loop() {
				x.post(wr{op: opWrite, flags: signal, n: c.n, remote: y.c.base, rkey: y.mr.RKey})
				for done := false; !done; _, done = x.try() {
					e.clock.read()
					e.step()
				}
			}
		})
	}
}
