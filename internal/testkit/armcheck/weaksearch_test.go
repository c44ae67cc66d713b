package armcheck

import (
	"fmt"
	"hash/maphash"
	"os"
	"strings"
	"testing"
)

// A weakSystem is a protocol for this machine.
type weakSystem struct {
	scripts []*script
	model   memoryModel
	start   world
	long    bool // too many states in rmo memory: only in the long form of the tests
	final   func(*world) string
}

// A deed is a possible next event.
type deed struct{ core, what, pick int8 } // what: a step, or the store or the late load with this number

const (
	aStep   int8 = -1
	firstLt      = weakBuffer // late loads
)

// runs reports whether core i has a next step.
func (y *weakSystem) runs(w *world, i int) bool {
	return i < len(y.scripts) && int(w.cores[i].pc) < len(y.scripts[i].steps)
}

// tidy makes equal worlds equal: it forgets what no thread can tell.
func (y *weakSystem) tidy(w *world) {
	for i := range w.cores {
		c := &w.cores[i]
		if y.model != rmo || !y.runs(w, i) {
			c.floor = w.now
		}
		if c.last <= c.floor {
			c.last = 0
		}
		if c.stored <= c.floor {
			c.stored = 0
		}
		for a := range c.seen {
			if i >= len(y.scripts) || c.seen[a] <= c.floor || !y.scripts[i].loads[a] {
				c.seen[a] = 0
			}
		}
	}
	var oldest [weakWords]int8 // time of the oldest value that can be read
	for a := range oldest {
		oldest[a] = w.now
		for i := range w.cores {
			c := &w.cores[i]
			if !y.runs(w, i) || !y.scripts[i].loads[a] {
				continue
			}
			oldest[a] = min(oldest[a], max(c.floor, c.seen[a]))
		}
	}
	var shift [weakHistory + 1]int8 // new time of each time
	kept := int8(0)
	for i := range w.now {
		h := w.history[i]
		if i+1 <= oldest[h.word] {
			w.base[h.word] = h.value
		} else {
			w.history[kept] = h
			kept++
		}
		shift[i+1] = kept
	}
	for i := kept; i < w.now; i++ {
		w.history[i] = visible{}
	}
	w.now = kept
	for i := range w.cores {
		c := &w.cores[i]
		c.floor, c.last, c.stored = shift[c.floor], shift[c.last], shift[c.stored]
		for a := range c.seen {
			if c.seen[a] = shift[c.seen[a]]; c.seen[a] <= c.floor {
				c.seen[a] = 0
			}
		}
		if c.last <= c.floor {
			c.last = 0
		}
		if c.stored <= c.floor {
			c.stored = 0
		}
	}
}

// try makes a deed in w. It returns false if it is not possible.
func (y *weakSystem) try(x *cpu, w *world, d deed) bool {
	c := &w.cores[d.core]
	x.world, x.core, x.model, x.pick, x.choices = w, c, y.model, d.pick, 1
	switch {
	case d.what == aStep:
		p := y.scripts[d.core]
		at := c.pc
		if int(at) >= len(p.steps) {
			return false
		}
		c.pc++
		if !p.steps[at](x) {
			return false
		}
		for p.local[c.pc] && !c.waits() && !w.broken {
			at := c.pc
			c.pc++
			p.steps[at](x)
		}
	case d.what < firstLt:
		if !x.drain(d.what) {
			return false
		}
	default:
		if !x.perform(d.what - firstLt) {
			return false
		}
	}
	y.tidy(w)
	return true
}

// explore visits every state, nearest first, and returns their number and the first fault.
func (y *weakSystem) explore() (states int, fault string) {
	type node struct {
		world
		parent, chain int32
		by            deed
	}
	var nodes []node
	index, seed := map[uint64]int32{}, maphash.MakeSeed()
	add := func(w *world, parent int32, by deed) bool {
		h := maphash.Comparable(seed, *w)
		first, found := index[h]
		if !found {
			first = -1
		}
		for i := first; i >= 0; i = nodes[i].chain {
			if nodes[i].world == *w {
				return false
			}
		}
		index[h] = int32(len(nodes))
		nodes = append(nodes, node{*w, parent, first, by})
		return true
	}
	story := func(at int32) string {
		text := ""
		for ; nodes[at].parent >= 0; at = nodes[at].parent {
			n := &nodes[at]
			text = "\n  " + y.tell(&nodes[n.parent].world, n.by) + text
		}
		return text
	}
	add(&y.start, -1, deed{})
	x := new(cpu)
	for at := int32(0); at < int32(len(nodes)) && fault == ""; at++ {
		moved := false
		for c := range int8(len(y.scripts)) {
			for what := aStep; what < firstLt+weakRegs; what++ {
				for pick, choices := int8(0), int8(1); pick < choices && fault == ""; pick++ {
					next := nodes[at].world
					if !y.try(x, &next, deed{c, what, pick}) {
						break
					}
					choices, moved = x.choices, true
					if add(&next, at, deed{c, what, pick}) && next.broken {
						fault = x.why + story(int32(len(nodes)-1))
					}
				}
			}
		}
		if !moved {
			if wrong := y.verdict(&nodes[at].world); wrong != "" {
				fault = wrong + story(at)
			}
		}
	}
	return len(nodes), fault
}

// verdict returns what is wrong with a state without deeds.
func (y *weakSystem) verdict(w *world) string {
	for i, p := range y.scripts {
		if pc := w.cores[i].pc; int(pc) < len(p.steps) && !p.sleep[pc] {
			return fmt.Sprintf("%s hangs at: %s", p.name, p.said[pc])
		}
	}
	return y.final(w)
}

func (y *weakSystem) tell(w *world, d deed) string {
	c, p := &w.cores[d.core], y.scripts[d.core]
	switch {
	case d.what == aStep:
		return fmt.Sprintf("%s: %s (%d)", p.name, p.said[c.pc], d.pick)
	case d.what < firstLt:
		return fmt.Sprintf("%s: its store of %d to word %d becomes visible", p.name, c.buffer[d.what].value, c.buffer[d.what].word)
	}
	return fmt.Sprintf("%s: its late load of word %d is made", p.name, c.late[d.what-firstLt]-1)
}

// A flawed protocol has a deliberate mistake, which is found in the memory models from least to most.
type flawed struct {
	flaw  string
	least memoryModel
	want  string
	most  memoryModel // 0: rmo. An x86-64 needs a fence behind some stores that are STLR on arm64
}

// shows reports whether the mistake is found with this memory.
func (f *flawed) shows(m memoryModel) bool {
	return m >= f.least && (f.most == sequential || m <= f.most)
}

// check searches a protocol and its flawed forms. protocol makes the form with a flaw, or the right one for "".
func check(t *testing.T, protocol func(flaw string) *weakSystem, wrong []flawed) {
	t.Helper()
	for _, m := range []memoryModel{sequential, tso, rmo} {
		y := protocol("")
		if y.model = m; m == rmo && (y.long && os.Getenv("VRDMA_TEST_ALL") == "" || raceEnabled && len(y.scripts) > 2) {
			continue // the race detector makes it ten times slower, and it is one goroutine
		}
		states, fault := y.explore()
		if fault != "" {
			t.Errorf("%v memory: %s", m, fault)
		}
		t.Logf("%v memory: %d states", m, states)
	}
	for _, w := range wrong {
		t.Run(strings.ReplaceAll(w.flaw, " ", "-"), func(t *testing.T) {
			for _, m := range []memoryModel{sequential, tso, rmo} {
				if m > w.least && w.most == sequential {
					break // weaker memory allows everything that this does
				}
				y := protocol(w.flaw)
				y.model = m
				states, fault := y.explore()
				if m == w.least {
					t.Logf("%v memory, %d states: %s", m, states, fault)
				}
				if found := fault != ""; found != w.shows(m) {
					t.Errorf("%v memory: found a fault: %v, want %v. %s", m, found, w.shows(m), fault)
				}
				if fault != "" && !strings.Contains(fault, w.want) {
					t.Errorf("%v memory: want %q in: %s", m, w.want, fault)
				}
			}
		})
	}
}

// pickOrder returns o, or the weaker one of a flawed protocol.
func pickOrder(flawed bool, weaker, o order) order {
	if flawed {
		return weaker
	}
	return o
}
