package armcheck

import (
	"fmt"
	"testing"
)

// The shelf: take in shim/ahead.c; internal/client/protocol/shelf.go and internal/cm/rdmacm/shelf.go. It has two slots.
const (
	shelfTaken int8 = 0 // number << 1 | frozen
	shelfReady int8 = 1
	shelfSlot  int8 = 2 // two

	shelfBegin = 0 // note: of the daemon
	shelfGone  = 1 // note: a bit for each number whose event somebody has
	shelfEvent = 4 // notes: the event with each number
)

// leaves says that the event with number n is taken from the shelf.
func leaves(x *cpu, n int8) {
	if x.note[shelfGone]>>n&1 != 0 {
		x.breaks("event %d is taken twice", x.note[shelfEvent+n])
	}
	x.note[shelfGone] |= 1 << n
}

// shopper is a thread that takes this number of events.
func shopper(flaw string, i, times int) *script {
	p := newScript(fmt.Sprintf("thread %d", i))
	for range times {
		var again, fresh label
		p.here(&fresh)
		p.load("load taken", seqCst, shelfTaken, func(x *cpu, v int8) { x.reg[0] = v })
		p.here(&again)
		p.load("load ready", pickOrder(flaw == "ready is loaded relaxed", plainly, seqCst), shelfReady, func(x *cpu, v int8) {
			if x.reg[0]&1 != 0 && flaw != "FROZEN is ignored" || x.reg[0]>>1 >= v {
				x.jump(&fresh)
			}
		})
		p.copyAt("copy the slot", 1, func(x *cpu) int8 { return shelfSlot + x.reg[0]>>1%2 }, shelfSlot, shelfSlot+1)
		p.rmw("compare and exchange taken", pickOrder(flaw == "an event is taken relaxed", plainly, seqCst), shelfTaken, func(x *cpu, v int8) (int8, bool) {
			if v != x.reg[0] {
				x.reg[0] = v
				x.jump(&again)
				return 0, false
			}
			x.reg[2] = x.note[shelfEvent+v>>1]
			if leaves(x, v>>1); v&1 != 0 {
				x.breaks("event %d is taken from a frozen shelf", x.reg[2])
			}
			return v + 2, true
		})
		p.then("is it the right one?", func(x *cpu) {
			if x.reg[1] != x.reg[2] {
				x.breaks("event %d reads as %d", x.reg[2], x.reg[1])
			}
			x.reg = [weakRegs]int8{}
		})
	}
	return p
}

// stocker is the daemon. Its registers: next, laid, and the first and the last waiting event.
func stocker(flaw string) *script {
	const next, laid, first, last = 0, 1, 2, 3
	p := newScript("daemon")
	took := func(x *cpu, n int8) {
		x.reg[first] += n - x.reg[next]
		x.reg[next] = n
	}
	settle := func() {
		p.load("load taken", seqCst, shelfTaken, func(x *cpu, v int8) { took(x, v>>1) })
	}
	ready := func() {
		p.mem("store ready", func(x *cpu) bool {
			return x.write(shelfReady, x.reg[laid], pickOrder(flaw == "ready is stored relaxed", plainly, seqCst), false)
		})
	}
	lay := func() {
		var more, end, same label
		p.then("lay", func(x *cpu) { x.note[shelfBegin] = x.reg[laid] })
		p.here(&more)
		p.then("is there an event, and a slot?", func(x *cpu) {
			if n := x.reg[laid] - x.reg[next]; n+1 >= x.reg[last]-x.reg[first]+1 || n >= 2 && flaw != "the shelf is overfilled" {
				x.jump(&end)
			}
		})
		p.mem("write a slot", func(x *cpu) bool {
			n := x.reg[laid]
			event := x.reg[first] + n - x.reg[next]
			if !x.write(shelfSlot+n%2, event, plainly, false) {
				return false
			}
			x.note[shelfEvent+n] = event
			x.reg[laid]++
			x.jump(&more)
			return true
		})
		p.here(&end)
		p.then("is something new there?", func(x *cpu) {
			if x.reg[laid] == x.note[shelfBegin] {
				x.jump(&same)
			}
			x.note[shelfBegin] = 0
		})
		ready()
		p.here(&same)
	}
	arrive := func(said string) {
		settle()
		p.then(said, func(x *cpu) { x.reg[last]++ })
		lay()
	}
	p.then("three events wait", func(x *cpu) { x.reg[first], x.reg[last] = 1, 3 })
	lay()
	arrive("a fourth")
	// A client that does not look at the shelf requests one.
	var claim, claimed, behind label
	p.here(&claim)
	settle()
	if flaw == "the daemon claims by a store" {
		p.mem("claim the first", func(x *cpu) bool { return x.write(shelfTaken, (x.reg[next]+1)<<1, seqCst, false) })
		p.then("claimed", func(x *cpu) { leaves(x, x.reg[next]) })
	} else {
		p.rmw("claim the first", seqCst, shelfTaken, func(x *cpu, v int8) (int8, bool) {
			if v != x.reg[next]<<1 {
				x.jump(&claim)
				return 0, false
			}
			leaves(x, x.reg[next])
			return v + 2, true
		})
	}
	p.then("it is gone", func(x *cpu) {
		x.reg[next]++
		if x.reg[first]++; x.reg[laid] < x.reg[next] {
			x.reg[laid] = x.reg[next]
			x.jump(&behind)
		} else {
			x.jump(&claimed)
		}
	})
	p.here(&behind)
	ready()
	p.here(&claimed)
	lay()
	// They are taken back, change, and are laid again.
	p.rmw("freeze", seqCst, shelfTaken, func(x *cpu, v int8) (int8, bool) {
		took(x, v>>1)
		return v | 1, true
	})
	p.then("the events are others", func(x *cpu) {
		x.reg[first] += 10
		x.reg[last] += 10
		if flaw != "the numbers are used again" {
			x.reg[next] = max(x.reg[next], x.reg[laid]) + 1
		}
		x.reg[laid] = x.reg[next]
	})
	ready()
	lay()
	p.mem("thaw", func(x *cpu) bool { return x.write(shelfTaken, x.reg[next]<<1, seqCst, false) })
	return p
}

// Threads take every event as it was written, under its number.
func TestShelf(t *testing.T) {
	const want = "reads as"
	for _, c := range []struct {
		name  string
		times []int
		wrong []flawed
	}{
		{"one thread", []int{4}, []flawed{
			{flaw: "the shelf is overfilled", least: sequential, want: want},
			{flaw: "the numbers are used again", least: sequential, want: want},
			{flaw: "FROZEN is ignored", least: sequential, want: "from a frozen shelf"},
			{flaw: "the daemon claims by a store", least: sequential, want: "taken twice"},
			{flaw: "ready is stored relaxed", least: rmo, want: want},
			{flaw: "ready is loaded relaxed", least: rmo, want: want},
			{flaw: "an event is taken relaxed", least: rmo, want: want},
		}},
		{"two threads", []int{1, 1}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, func(flaw string) *weakSystem {
				y := &weakSystem{long: len(c.times) > 1, final: func(*world) string { return "" }}
				for i, times := range c.times {
					y.scripts = append(y.scripts, shopper(flaw, i, times))
				}
				y.scripts = append(y.scripts, stocker(flaw))
				return y
			}, c.wrong)
		})
	}
}
