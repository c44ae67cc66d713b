package armcheck

import (
	"fmt"
	"testing"
)

// The machine of weak_test.go allows the outcomes of the usual litmus tests where the processors allow them, and no others.
func TestLitmus(t *testing.T) {
	const a, b, never = 0, 1, rmo + 1
	into := func(r int8) func(*cpu, int8) { return func(x *cpu, v int8) { x.reg[r] = v } }
	add := func(x *cpu, v int8) (int8, bool) { return v + 1, true }
	type regs = [weakThreads][weakRegs]int8
	thread := func(f func(p *script)) *script {
		p := newScript("thread")
		f(p)
		return p
	}
	sb := func(f func(p *script, mine, other int8)) []*script {
		return []*script{thread(func(p *script) { f(p, a, b) }), thread(func(p *script) { f(p, b, a) })}
	}
	bothZero := func(r *regs) bool { return r[0][0] == 0 && r[1][0] == 0 }
	mp := func(write, read func(p *script)) []*script { return []*script{thread(write), thread(read)} }
	stale := func(r *regs) bool { return r[1][0] == 1 && r[1][1] == 0 }
	for _, c := range []struct {
		name    string
		scripts []*script
		odd     func(*regs) bool // the outcome that surprises
		least   memoryModel      // where it happens
	}{
		{"store buffering", sb(func(p *script, mine, other int8) {
			p.store("", plainly, mine, 1)
			p.load("", plainly, other, into(0))
		}), bothZero, tso},
		{"store buffering, release and acquire", sb(func(p *script, mine, other int8) {
			p.store("", release, mine, 1)
			p.load("", acquire, other, into(0))
		}), bothZero, tso},
		{"store buffering, the load is an acquire", sb(func(p *script, mine, other int8) {
			p.store("", seqCst, mine, 1)
			p.load("", acquire, other, into(0))
		}), bothZero, rmo},
		{"store buffering, seq_cst", sb(func(p *script, mine, other int8) {
			p.store("", seqCst, mine, 1)
			p.load("", seqCst, other, into(0))
		}), bothZero, never},
		{"store buffering, fences", sb(func(p *script, mine, other int8) {
			p.store("", plainly, mine, 1)
			p.fence(seqCst)
			p.load("", plainly, other, into(0))
		}), bothZero, never},
		{"store buffering, read-modify-writes", sb(func(p *script, mine, other int8) {
			p.rmw("", seqCst, mine, add)
			p.load("", acquire, other, into(0))
		}), bothZero, rmo},
		{"store buffering, read-modify-writes and fences", sb(func(p *script, mine, other int8) {
			p.rmw("", seqCst, mine, add)
			p.fence(seqCst)
			p.load("", acquire, other, into(0))
		}), bothZero, never},
		{"store buffering, read-modify-writes of one word", sb(func(p *script, mine, other int8) {
			p.store("", plainly, mine, 1)
			p.rmw("", seqCst, 2, add)
			p.load("", plainly, other, into(0))
		}), bothZero, never},
		{"message passing", mp(func(p *script) {
			p.store("", plainly, a, 1)
			p.store("", plainly, b, 1)
		}, func(p *script) {
			p.load("", plainly, b, into(0))
			p.load("", plainly, a, into(1))
		}), stale, rmo},
		{"message passing, release only", mp(func(p *script) {
			p.store("", plainly, a, 1)
			p.store("", release, b, 1)
		}, func(p *script) {
			p.load("", plainly, b, into(0))
			p.load("", plainly, a, into(1))
		}), stale, rmo},
		{"message passing, acquire only", mp(func(p *script) {
			p.store("", plainly, a, 1)
			p.store("", plainly, b, 1)
		}, func(p *script) {
			p.load("", acquire, b, into(0))
			p.load("", plainly, a, into(1))
		}), stale, rmo},
		{"message passing, release and acquire", mp(func(p *script) {
			p.store("", plainly, a, 1)
			p.store("", release, b, 1)
		}, func(p *script) {
			p.load("", acquire, b, into(0))
			p.load("", plainly, a, into(1))
		}), stale, never},
		{"message passing, fences", mp(func(p *script) {
			p.store("", plainly, a, 1)
			p.fence(release)
			p.store("", plainly, b, 1)
		}, func(p *script) {
			p.load("", plainly, b, into(0))
			p.fence(acquire)
			p.load("", plainly, a, into(1))
		}), stale, never},
		{"message passing, a read-modify-write", mp(func(p *script) {
			p.store("", plainly, a, 1)
			p.or("", release, b, 1)
		}, func(p *script) {
			p.rmw("", acquire, b, func(x *cpu, v int8) (int8, bool) { x.reg[0] = v; return v, false })
			p.load("", plainly, a, into(1))
		}), stale, never},
		{"load buffering", sb(func(p *script, mine, other int8) {
			p.copy("", 0, other)
			p.store("", plainly, mine, 1)
			p.then("", func(*cpu) {})
		}), func(r *regs) bool { return r[0][0] == 1 && r[1][0] == 1 }, rmo},
		{"load buffering, release", sb(func(p *script, mine, other int8) {
			p.copy("", 0, other)
			p.store("", release, mine, 1)
			p.then("", func(*cpu) {})
		}), func(r *regs) bool { return r[0][0] == 1 && r[1][0] == 1 }, never},
		{"one word, two loads", mp(func(p *script) {
			p.store("", plainly, a, 1)
		}, func(p *script) {
			p.load("", plainly, a, into(0))
			p.load("", plainly, a, into(1))
		}), stale, never},
		{"one word, its own store", mp(func(p *script) {
			p.store("", plainly, a, 1)
			p.load("", plainly, a, into(0))
		}, func(*script) {}), func(r *regs) bool { return r[0][0] == 0 }, never},
		{"one word, two read-modify-writes", sb(func(p *script, _, _ int8) {
			p.rmw("", plainly, 2, func(x *cpu, v int8) (int8, bool) { x.reg[0] = v; return v + 1, true })
		}), bothZero, never},
		{"three threads, causality", []*script{thread(func(p *script) {
			p.store("", plainly, a, 1)
		}), thread(func(p *script) {
			p.load("", acquire, a, func(x *cpu, v int8) { x.reg[0] = v })
			p.store("", release, b, 1)
		}), thread(func(p *script) {
			p.load("", acquire, b, into(0))
			p.load("", plainly, a, into(1))
		})}, func(r *regs) bool { return r[1][0] == 1 && r[2][0] == 1 && r[2][1] == 0 }, never},
	} {
		for _, m := range []memoryModel{sequential, tso, rmo} {
			y := &weakSystem{model: m, scripts: c.scripts, final: func(w *world) string {
				var r regs
				for i := range r {
					r[i] = w.cores[i].reg
				}
				if c.odd(&r) {
					return fmt.Sprint("it happens: ", r)
				}
				return ""
			}}
			if _, story := y.explore(); story != "" != (m >= c.least) {
				t.Errorf("%s, %v memory: got %q, want that from %d on", c.name, m, story, c.least)
			}
		}
	}
}
