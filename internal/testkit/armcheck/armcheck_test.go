package armcheck

import (
	"strings"
	"testing"
)

var (
	forAll       = []int8{all}
	forSolicited = []int8{solicited}
	inTurn       = []int8{solicited, all}
)

// setups are the setups that every right protocol is checked with.
func setups() []setup {
	urgents := []made{{0, urgent}, {0, urgent}}
	plains := []made{{0, plain}, {0, plain}}
	first := []setup{
		{name: "all", cqs: 1, waiters: [][]int8{forAll}, completions: []made{{0, plain}, {0, urgent}, {0, failed}}},
		{name: "all, one pass", cqs: 1, waiters: [][]int8{forAll}, completions: []made{{0, plain}, {0, plain}, {0, plain}}, batch: true},
		{name: "solicited", cqs: 1, waiters: [][]int8{forSolicited}, completions: []made{{0, plain}, {0, urgent}, {0, failed}}},
		{name: "solicited, one pass", cqs: 1, waiters: [][]int8{forSolicited}, completions: []made{{0, urgent}, {0, plain}, {0, urgent}}, batch: true},
		{name: "in turn", cqs: 1, waiters: [][]int8{inTurn}, completions: []made{{0, urgent}, {0, plain}, {0, urgent}}},
		{name: "two threads", cqs: 1, waiters: [][]int8{forAll, forAll}, completions: plains},
		{name: "two threads, solicited", cqs: 1, waiters: [][]int8{forSolicited, forSolicited}, completions: urgents},
		{name: "two threads, mixed", cqs: 1, waiters: [][]int8{forAll, forSolicited}, completions: []made{{0, urgent}, {0, plain}}},
		{name: "two threads, in turn", cqs: 1, waiters: [][]int8{inTurn, forSolicited}, completions: []made{{0, urgent}, {0, plain}}},
		{name: "two queues", cqs: 2, waiters: [][]int8{forAll}, completions: []made{{0, plain}, {1, plain}, {0, plain}}},
		{name: "two queues, two threads", cqs: 2, waiters: [][]int8{forAll, forAll}, completions: []made{{0, plain}, {1, plain}}},
		{name: "resized", cqs: 1, waiters: [][]int8{forAll}, completions: []made{{0, plain}, {0, plain}, {0, plain}}, resize: true},
		{name: "resized, two threads", cqs: 1, waiters: [][]int8{forAll, forSolicited}, completions: []made{{0, urgent}, {0, plain}}, resize: true},
		{name: "traced", cqs: 1, waiters: [][]int8{forAll}, completions: []made{{0, plain}, {0, plain}, {0, plain}}, trace: true},
		{name: "traced, two threads", cqs: 1, waiters: [][]int8{forAll, forSolicited}, completions: []made{{0, urgent}, {0, plain}}, trace: true},
		{name: "destroyed", cqs: 1, waiters: [][]int8{forAll}, completions: []made{{0, plain}, {0, plain}, {0, plain}}, destroy: true, lateAck: true},
		{name: "destroyed, two threads", cqs: 1, waiters: [][]int8{forAll, inTurn}, completions: plains, destroy: true, lateAck: true},
	}
	s := first
	for _, c := range first {
		if c.trace || c.batch || len(c.waiters) > 1 && (c.cqs > 1 || c.resize || c.destroy) {
			continue // nothing that the others do not have, or too many states
		}
		c.name, c.pollFirst = c.name+", polls first", true
		s = append(s, c)
	}
	return append(s,
		setup{name: "resized, solicited, polls first", cqs: 1, waiters: [][]int8{forSolicited}, completions: []made{{0, plain}, {0, urgent}}, resize: true, pollFirst: true})
}

// No interleaving of the protocol loses a wake-up, reports twice, or hangs.
func TestEveryInterleaving(t *testing.T) {
	total := 0
	for _, variant := range []struct {
		name     string
		protocol mutation
	}{
		{"in memory", correct},
		{"in memory, skips", skipsWhenArmed},
		{"by command", byCommand},
		{"one by command", oneByCommand},
	} {
		if raceEnabled && variant.protocol != correct {
			continue // it is one goroutine, and ten times slower
		}
		for _, c := range setups() {
			if c.wrong = variant.protocol; c.pollFirst && variant.protocol != correct && variant.protocol != oneByCommand {
				continue
			}
			for _, m := range []memoryModel{sequential, tso, rmo} { // rmo allows everything that pso does
				if c.pollFirst && m != rmo {
					continue // rmo allows everything that happens there
				}
				states, fault := c.system(m).explore()
				if fault != "" {
					t.Errorf("%s, %s, %v memory: %s", variant.name, c.name, m, fault)
				}
				total += states
			}
		}
	}
	t.Logf("%d states", total)
}

// The checker finds the fault of each wrong protocol. A fault that needs a processor with a store buffer is not found
// without one.
func TestWrongProtocols(t *testing.T) {
	for _, w := range []struct {
		name  string
		wrong mutation
		in    string      // the setup that shows it
		least memoryModel // that is needed
		want  string
	}{
		{"the daemon looks before it writes", looksFirst, "all", sequential, "lost wake-up"},
		{"the daemon looks before it writes, solicited", looksFirst, "solicited", sequential, "lost wake-up"},
		{"no fence in the daemon", noFence, "all", tso, "lost wake-up"},
		{"no fence in the daemon, solicited", noFence, "solicited", tso, "lost wake-up"},
		{"no fence in the shim", shimNoFence, "all", tso, "lost wake-up"},
		{"no fence in the shim, solicited", shimNoFence, "solicited", tso, "lost wake-up"},
		{"solicited lowers all", storesPlainly, "two threads, mixed", sequential, "lost wake-up"},
		{"the bit is set, not atomically", orNotAtomic, "two threads, mixed", sequential, "lost wake-up"},
		{"a command lowers", commandLowers, "two threads, mixed", sequential, "lost wake-up"},
		{"cleared apart from the look", clearsApart, "all", tso, "lost wake-up"},
		{"cleared after the event", clearsLast, "all", sequential, "lost wake-up"},
		{"never cleared", neverClears, "all", sequential, "reported"},
		{"the shim does not look", neverLooks, "all, polls first", sequential, "lost wake-up"},
		{"the shim looks before it arms", looksTooSoon, "all, polls first", sequential, "lost wake-up"},
		{"no fence before the look", shimNoFence, "all, polls first", tso, "lost wake-up"},
		{"no fence in the daemon before the look", noFence, "all, polls first", tso, "lost wake-up"},
		{"a look arms again", lookArms, "all, polls first", sequential, "reported"},
		{"a look reports without an arm", lookIgnoresArm, "all, polls first", sequential, "reported"},
		{"woken, and nothing to poll", wokenAlways, "all, polls first", sequential, "lost wake-up"},
		{"solicited after it is published", urgentLast, "solicited, polls first", sequential, "lost wake-up"},
		{"notes stay when the ring moves", resizeKeeps, "resized, polls first", sequential, "lost wake-up"},
		{"the shim looks for itself", looksForItself, "two threads, mixed, polls first", tso, "lost wake-up"},
		{"the note of a solicited one is lost", resizeForgets, "resized, solicited, polls first", sequential, "lost wake-up"},
		{"the arm word is in the ring", armInRing, "resized", sequential, "lost wake-up"},
		{"the index before the completion", producerUnfenced, "all", pso, "not written"},
		{"no fence behind the bit", orUnfenced, "all, polls first", rmo, "lost wake-up"},
		{"the completion before the index", pollsRelaxed, "all", rmo, "not written"},
		{"a new queue keeps the word", createKeepsWord, "destroyed", sequential, "nobody armed"},
		{"destroying keeps events", destroyKeeps, "destroyed", sequential, "nobody armed"},
	} {
		t.Run(w.name, func(t *testing.T) {
			for _, c := range setups() {
				if c.name != w.in {
					continue
				}
				c.wrong = w.wrong
				for _, m := range []memoryModel{sequential, tso, pso, rmo} {
					states, fault := c.system(m).explore()
					if m == w.least {
						t.Logf("%v memory, %d states: %s", m, states, fault)
					}
					if found := fault != ""; found != (m >= w.least) {
						t.Errorf("%v memory: found a fault: %v, want %v", m, found, m >= w.least)
					}
					if fault != "" && !strings.Contains(fault, w.want) {
						t.Errorf("%v memory: want %q in: %s", m, w.want, fault)
					}
				}
				return
			}
			t.Fatalf("there is no setup %q", w.in)
		})
	}
}
