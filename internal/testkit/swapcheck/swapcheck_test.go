package swapcheck

import (
	"strings"
	"testing"
)

// A setup is the actors beside the registering thread.
type setup struct {
	name   string
	others func() []*program
}

func setups() []setup {
	with := func(make ...func(*counter) *program) func() []*program {
		return func() []*program {
			var c counter
			var all []*program
			for _, m := range make {
				all = append(all, m(&c))
			}
			return all
		}
	}
	stores := func(c *counter) *program { return thread(c, store, store, store) }
	calls := func(c *counter) *program { return thread(c, call, store, call) }
	directs := func(c *counter) *program { return thread(c, direct, store, direct) }
	process := func(c *counter) *program { return remote(c, true) }
	return []setup{
		{"stores", with(stores)},
		{"system calls", with(calls)},
		{"O_DIRECT", with(directs)},
		{"pinned io_uring", with(pinnedRing)},
		{"pending io_uring", with(pendingRing)},
		{"other process", with(process, process)},
		{"stores and other process", with(stores, process)},
		{"O_DIRECT and other process", with(directs, process)},
		{"O_DIRECT and pinned io_uring", with(directs, pinnedRing)},
		{"O_DIRECT and pending io_uring", with(directs, pendingRing)},
		{"two io_urings and other process", with(pinnedRing, pendingRing, process)},
	}
}

// No interleaving of the protocol loses a write or fails a call.
func TestEveryInterleaving(t *testing.T) {
	total := 0
	for _, m := range []method{byUserfaultfd, byMremap} {
		for _, s := range setups() {
			states, fault := build(registrar{turns: 2, method: m}, s.others()...).explore()
			if fault != "" {
				t.Errorf("method %d, %s: %s", m, s.name, fault)
			}
			total += states
		}
	}
	t.Logf("%d states", total)
}

// A pin of another process around the move of a registration is seen.
func TestRemotePin(t *testing.T) {
	for _, m := range []method{byUserfaultfd, byMremap} {
		var c counter
		// The page is never deregistered.
		p := &program{name: "registering thread"}
		registrar{method: m}.register(p)
		y := build(registrar{}, remote(&c, false), remote(&c, false))
		y.programs[0] = p
		if _, fault := y.explore(); fault != "" {
			t.Errorf("method %d: %s", m, fault)
		}
	}
}

// A pin of another process that lasts from before the move of a deregistration until after its
// end loses one write. It is among the documented exceptions.
func TestKnownLoss(t *testing.T) {
	var c counter
	_, fault := build(registrar{turns: 1}, remote(&c, false)).explore()
	if !strings.Contains(fault, "lost write") {
		t.Fatalf("the model does not know it any more: correct the exceptions in doc.go and in shim/README.md (%q)", fault)
	}
	t.Log(fault)
}

// The model finds the fault of each wrong protocol.
func TestMistakes(t *testing.T) {
	for _, w := range []struct {
		name   string
		wrong  mistake
		method method
		in     string // the setup that shows it
		want   string
	}{
		{"no halt", noHalt, byMremap, "stores", "SIGSEGV"},
		{"no halt, system calls", noHalt, byUserfaultfd, "system calls", "EFAULT"},
		{"halts after the look for pins", haltsLate, byUserfaultfd, "O_DIRECT and pinned io_uring", "lost write"},
		{"halts after the look for pins, mremap", haltsLate, byMremap, "pinned io_uring", "lost write"},
		{"halts after the look for an io_uring", haltsLate, byUserfaultfd, "pending io_uring", "EFAULT"},
		{"ignores an io_uring", ignoresRing, byUserfaultfd, "pending io_uring", "EFAULT"},
		{"no look for pins", noPinCheck, byUserfaultfd, "two io_urings and other process", ""},
		{"copies before it moves", copiesFirst, byUserfaultfd, "other process", "lost write"},
		{"copies before it halts", copiesFirst, byMremap, "other process", "lost write"},
		{"leaves the source empty", leavesVacant, byUserfaultfd, "other process", "lost write"},
		{"maps before it copies", mapsFirst, byUserfaultfd, "other process", "lost write"},
		{"resumes before it maps", resumesEarly, byMremap, "stores", "SIGSEGV"},
		{"deregisters without a halt", deregNoHalt, byUserfaultfd, "stores", "SIGSEGV"},
		{"deregisters pinned pages", deregIgnoresRing, byUserfaultfd, "pinned io_uring", "lost write"},
		{"deregisters under a pending operation", deregIgnoresRing, byUserfaultfd, "pending io_uring", "EFAULT"},
		{"deregisters: copies before it moves", deregCopiesFirst, byUserfaultfd, "other process", "lost write"},
		{"deregisters: maps before it copies", deregMapsFirst, byUserfaultfd, "other process", "lost write"},
		{"deregisters: punches before it copies", punchesFirst, byUserfaultfd, "stores", "lost write"},
	} {
		t.Run(w.name, func(t *testing.T) {
			for _, s := range setups() {
				if s.name != w.in {
					continue
				}
				states, fault := build(registrar{turns: 2, method: w.method, wrong: w.wrong}, s.others()...).explore()
				if w.want == "" { // the check for an io_uring covers it
					if fault != "" {
						t.Errorf("found: %s", fault)
					}
					return
				}
				if !strings.Contains(fault, w.want) {
					t.Errorf("%d states: want %q, got %q", states, w.want, fault)
				}
				t.Log(fault)
				return
			}
			t.Fatalf("there is no setup %q", w.in)
		})
	}
}

// Faults that only a pin of another process shows, at a registration.
func TestPinMistakes(t *testing.T) {
	for _, w := range []struct {
		name   string
		wrong  mistake
		method method
		want   string
	}{
		{"no look for pins", noPinCheck, byUserfaultfd, "lost write"},
		{"no look for pins, mremap", noPinCheck, byMremap, "lost write"},
		{"looks, then moves", checksFirst, byMremap, "lost write"},
		{"halts after the look", haltsLate, byMremap, "lost write"},
		{"moves a pinned page back after it resumes", resumesUnmended, byMremap, "SIGSEGV"},
	} {
		t.Run(w.name, func(t *testing.T) {
			var c counter
			p := &program{name: "registering thread"}
			registrar{method: w.method, wrong: w.wrong}.register(p)
			y := build(registrar{}, remote(&c, false), thread(&c, store))
			y.programs[0] = p
			if _, fault := y.explore(); !strings.Contains(fault, w.want) {
				t.Errorf("want %q, got %q", w.want, fault)
			}
		})
	}
}

// A page that is foreign to one region stays foreign to all: the daemon may copy there at any time.
func TestCovered(t *testing.T) {
	for _, c := range []struct {
		wrong  mistake
		method method
		want   string
	}{
		{none, byUserfaultfd, ""},
		{none, byMremap, ""},
		{ignoresRegions, byUserfaultfd, "EFAULT"},
		{ignoresRegions, byMremap, "EFAULT"},
	} {
		var n counter
		y := build(registrar{turns: 2, method: c.method, wrong: c.wrong}, daemon(&n), thread(&n, store))
		y.start.covered = true
		if _, fault := y.explore(); c.want == "" && fault != "" || !strings.Contains(fault, c.want) {
			t.Errorf("mistake %d, method %d: want %q, got %q", c.wrong, c.method, c.want, fault)
		}
	}
}
