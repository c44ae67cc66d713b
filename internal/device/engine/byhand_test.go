package engine

import (
	"testing"

	"vrdma.dev/vrdma/internal/ib"
)

// BenchmarkByHand measures what a WRITE costs the loop without any waiting: one thread posts and makes the passes. Its
// results are comparable on a busy machine.
func BenchmarkByHand(b *testing.B) {
	for _, c := range []struct {
		name string
		n    uint32
	}{{"8", 8}, {"64K", 64 << 10}} {
		b.Run(c.name, func(b *testing.B) {
			x, y := pair(b)
			e := x.c.e
			halt(e)
			now := e.first.clock.now
			e.first.clock.time = func() ib.Time { now++; return now }
			for b.Loop() {
				x.post(wr{op: opWrite, flags: signal, n: c.n, remote: y.c.base, rkey: y.mr.RKey})
				for done := false; !done; _, done = x.try() {
					e.first.clock.read()
					e.first.step()
				}
			}
		})
	}
}
