package engine

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
)

// moveGroup moves the group of a program to another loop of its host, if the group can be moved.
func (w *world) moveGroup() {
	h := w.hosts[w.frng.IntN(len(w.hosts))]
	h.unite()
	c := clientOf(h.progs[w.frng.IntN(len(h.progs))].s)
	if c == nil {
		return
	}
	g := h.e.loops.group(nil, c)
	to := h.e.first
	for _, o := range g {
		if h.e.loops.pinned(o) {
			to = nil
		}
	}
	if i := w.frng.IntN(w.loops); to != nil && i > 0 {
		to = h.e.loops.others[i-1]
	}
	if to != nil && to != c.e && h.e.loops.move(g, to) {
		w.frozen++
	}
}

// TestMovedBehavesAsBefore runs random programs of verbs calls twice: once with one loop, and once with three, between
// which groups of sessions move at any time. Both give the same answers, completions, events and data.
func TestMovedBehavesAsBefore(t *testing.T) {
	seeds, rounds := 4, 8
	if os.Getenv("VRDMA_TEST_ALL") != "" {
		seeds, rounds = 80, 30
	}
	for _, c := range []struct {
		name  string
		hosts int
		kind  memory.ExtentKind
	}{
		{"one host", 1, memory.Own}, {"two hosts", 2, memory.Own}, {"foreign memory", 1, memory.Foreign}, {"mixed memory, two hosts", 2, memory.Hole},
	} {
		t.Run(c.name, func(t *testing.T) {
			moved := 0
			for seed := range uint64(seeds) {
				var traces [2][]string
				var at []netip.Addr
				for i := range traces {
					w := newWorld(t, seed, c.hosts, c.kind, i == 1, 3*i, at)
					w.run(rounds)
					w.close()
					at = w.at
					traces[i] = w.trace
					moved += w.frozen
				}
				for i, want := range traces[0] {
					if i >= len(traces[1]) || traces[1][i] != want {
						t.Fatalf("seed %d, line %d of %d:\n%s\nwith one loop\n%s", seed, i, len(traces[0]),
							strings.Join(traces[1][max(i-5, 0):min(i+3, len(traces[1]))], "\n"), strings.Join(traces[0][max(i-5, 0):i+1], "\n"))
					}
				}
			}
			if moved < 2*seeds {
				t.Errorf("%d moves of %d programs", moved, seeds)
			}
			t.Logf("%d moves", moved)
		})
	}
}

// BenchmarkCommand measures a command beside loops that sleep.
func BenchmarkCommand(b *testing.B) {
	for _, n := range []int{1, 2, 8} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			e, err := New(Options{Resolver: &flatNetwork{}, Loops: n})
			if err != nil {
				b.Fatal(err)
			}
			e.Start()
			defer e.Stop()
			for b.Loop() {
				e.Do(func() {})
			}
		})
	}
}
