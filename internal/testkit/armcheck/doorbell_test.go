package armcheck

import (
	"fmt"
	"testing"
)

// The doorbell: ring in shim/command.c; read and rest in internal/device/engine/doorbell.go. Queue pair q has bit q of the summary, and
// a word of the bitmap. work is a work request, which the provider writes before the producer's index.
const (
	bellWork    int8 = 0 // three
	bellProd    int8 = 3 // of two queue pairs
	bellBitmap  int8 = 5 // likewise
	bellSummary int8 = 7
	bellAny     int8 = 8
	bellArmed   int8 = 9

	bellRung  = 0 // note: the eventfd
	bellTaken = 1 // notes: work requests that the daemon has taken from each queue pair
)

// ringer is a thread that posts to these queue pairs, one after the other.
func ringer(flaw string, name string, posts []int8) *script {
	p := newScript(name)
	count := [2]int8{}
	for _, q := range posts {
		p.store(fmt.Sprintf("write work request %d of queue pair %d", count[q], q), plainly, bellWork+q+count[q], 1)
		count[q]++
		p.store("publish it", release, bellProd+q, count[q])
		bitmap := func() {
			p.or("set its bit", pickOrder(flaw == "the bit is relaxed", plainly, release), bellBitmap+q, 1)
		}
		summary := func() {
			p.or("set the bit of the word", pickOrder(flaw == "the summary is relaxed", plainly, release), bellSummary, 1<<q)
		}
		anything := func() {
			p.store("store any", pickOrder(flaw == "any is a release", release, seqCst), bellAny, 1)
		}
		switch flaw {
		case "the summary comes first":
			summary()
			bitmap()
			anything()
		case "any comes first":
			anything()
			bitmap()
			summary()
		default:
			bitmap()
			summary()
			anything()
		}
		var quiet label
		p.load("load armed", pickOrder(flaw == "armed is an acquire", acquire, seqCst), bellArmed, func(x *cpu, v int8) {
			if v == 0 {
				x.jump(&quiet)
			}
		})
		p.rmw("exchange armed", seqCst, bellArmed, func(x *cpu, v int8) (int8, bool) {
			if v == 0 {
				x.jump(&quiet)
			}
			return 0, true
		})
		p.send("write to the eventfd", func(x *cpu) { x.note[bellRung] = 1 })
		p.here(&quiet)
	}
	return p
}

// bellLoop is the daemon's loop.
func bellLoop(flaw string) *script {
	p := newScript("daemon")
	var poll, read, awake label
	p.here(&poll)
	p.load("load any", seqCst, bellAny, func(x *cpu, v int8) {
		if v != 0 {
			x.jump(&read)
		}
	})
	p.store("arm the page", pickOrder(flaw == "the loop arms by a release", release, seqCst), bellArmed, 1)
	if flaw != "the loop does not look again" {
		p.load("look once more", pickOrder(flaw == "the loop looks by an acquire", acquire, seqCst), bellAny, func(x *cpu, v int8) {
			if v != 0 {
				x.jump(&awake)
			}
		})
	}
	p.sleep[uint8(len(p.steps))] = true
	p.receive("sleep", func(x *cpu) bool {
		was := x.note[bellRung]
		x.note[bellRung] = 0
		return was != 0
	})
	p.here(&awake)
	p.store("disarm the page", seqCst, bellArmed, 0)
	p.then("look at the page", func(x *cpu) { x.jump(&poll) })
	p.here(&read)
	if flaw != "any is cleared last" {
		p.store("clear any", pickOrder(flaw == "any is cleared by a release", release, seqCst), bellAny, 0)
	}
	p.load("load the summary", seqCst, bellSummary, func(x *cpu, v int8) {
		if v == 0 && flaw != "any is cleared last" {
			x.jump(&poll)
		}
	})
	p.rmw("take the summary", seqCst, bellSummary, func(x *cpu, v int8) (int8, bool) {
		x.reg[0] = v
		return 0, true
	})
	for q := range int8(2) {
		var next, more label
		p.then("is its word in the summary?", func(x *cpu) {
			if x.reg[0]>>q&1 == 0 {
				x.jump(&next)
			}
		})
		p.rmw("take the bits of the word", seqCst, bellBitmap+q, func(x *cpu, v int8) (int8, bool) {
			if v == 0 {
				x.jump(&next)
			}
			return 0, true
		})
		p.load("load the producer's index", pickOrder(flaw == "the index is relaxed", plainly, seqCst), bellProd+q, func(x *cpu, v int8) { x.reg[1] = v })
		p.here(&more)
		p.then("is there a work request?", func(x *cpu) {
			if x.note[bellTaken+q] >= x.reg[1] {
				x.jump(&next)
			}
		})
		p.mem("take a work request", func(x *cpu) bool {
			if v, _ := x.read(bellWork+q+x.note[bellTaken+q], plainly); v == 0 {
				x.breaks("the daemon takes a work request that is not written")
			}
			x.note[bellTaken+q]++
			x.jump(&more)
			return true
		}, bellWork, bellWork+1, bellWork+2)
		p.here(&next)
	}
	if flaw == "any is cleared last" {
		p.store("clear any", seqCst, bellAny, 0)
	}
	p.then("go on", func(x *cpu) { x.reg[0], x.reg[1] = 0, 0; x.jump(&poll) })
	return p
}

// Every ring is heard, and the daemon takes what is written.
func TestDoorbell(t *testing.T) {
	for _, c := range []struct {
		name  string
		posts [][]int8
		wrong []flawed
	}{
		{"one queue pair", [][]int8{{0, 0}}, []flawed{
			{flaw: "the loop does not look again", least: sequential, want: "lost doorbell"},
			{flaw: "any is cleared last", least: sequential, want: "lost doorbell"},
			{flaw: "any comes first", least: sequential, want: "lost doorbell"},
			{flaw: "any is a release", least: tso, most: tso, want: "lost doorbell"},
			{flaw: "the loop arms by a release", least: tso, most: tso, want: "lost doorbell"},
			{flaw: "armed is an acquire", least: rmo, want: "lost doorbell"},
			{flaw: "the loop looks by an acquire", least: rmo, want: "lost doorbell"},
			{flaw: "the bit is relaxed", least: rmo, want: "lost doorbell"},
			{flaw: "the index is relaxed", least: rmo, want: "not written"},
		}},
		{"two queue pairs", [][]int8{{0, 1}}, []flawed{
			{flaw: "the summary comes first", least: sequential, want: "lost doorbell"},
			{flaw: "the summary is relaxed", least: rmo, want: "lost doorbell"},
		}},
		{"three posts", [][]int8{{0, 0, 0}}, []flawed{
			{flaw: "any is cleared by a release", least: tso, most: tso, want: "lost doorbell"},
		}},
		{"two threads", [][]int8{{0}, {1}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, func(flaw string) *weakSystem {
				y := &weakSystem{}
				posted := [2]int8{}
				for i, posts := range c.posts {
					y.scripts = append(y.scripts, ringer(flaw, fmt.Sprintf("thread %d", i), posts))
					for _, q := range posts {
						posted[q]++
					}
				}
				y.scripts = append(y.scripts, bellLoop(flaw))
				y.final = func(w *world) string {
					for q := range posted {
						if w.note[bellTaken+q] != posted[q] {
							return fmt.Sprintf("lost doorbell: the daemon sleeps, and has taken %d of %d work requests of queue pair %d", w.note[bellTaken+q], posted[q], q)
						}
					}
					return ""
				}
				return y
			}, c.wrong)
		})
	}
}
