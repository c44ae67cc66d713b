package engine

import (
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/device/transport"
)

// declare gives the NIC of q a plan with one rule, and returns what removes it.
func declare(t testing.TB, q *testQP, spec string) (remove func()) {
	t.Helper()
	rule, err := fault.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	e, n := q.c.e, q.c.s.NIC()
	set := func(plans ...*fault.Plan) { q.c.do(func() error { e.SetFaults(n, plans); return nil }) }
	q.c.do(func() error {
		e.SetFaults(n, []*fault.Plan{fault.New([]fault.Named{{Name: "f", Rule: rule}}, time.Duration(e.Now()))})
		return nil
	})
	return func() { set() }
}

// faultless reports whether the loop has nothing to ask.
func faultless(q *testQP) (yes bool) {
	q.c.do(func() error { yes = q.c.e.first.faults == nil; return nil })
	return yes
}

// TestFaultsAreOptional: the loop has the pointer to faults only while a plan is declared, and a plan that hits nothing
// costs no memory for each message.
func TestFaultsAreOptional(t *testing.T) {
	a, b := pair(t)
	if !faultless(a) {
		t.Error("an engine has faults before any is declared")
	}
	remove := declare(t, a, "drop,packet=1000000000")
	work := func() {
		for range 100 {
			a.write(wr{op: opWrite, flags: signal, n: 4096, remote: b.c.base, rkey: b.mr.RKey})
		}
		a.ring()
		for range 100 {
			if w := a.wait(); w.status != uint32(transport.Success) {
				t.Fatalf("a write that no rule hits: %+v", w)
			}
		}
	}
	work()
	if n := testing.AllocsPerRun(20, work); n > 0 && !raceEnabled {
		t.Errorf("%v allocations for 100 messages, want 0", n)
	}
	if faultless(a) {
		t.Error("a declared plan is not asked")
	}
	if remove(); !faultless(a) {
		t.Error("the engine asks although nothing is declared any more")
	}
	work()
}

// BenchmarkFaults is a write of 8 bytes while nothing is declared, and while a rule is asked and hits nothing.
func BenchmarkFaults(b *testing.B) {
	for _, c := range []struct{ name, spec string }{{"none", ""}, {"declared", "drop,packet=1000000000"}} {
		b.Run(c.name, func(b *testing.B) {
			a, p := pair(b)
			if c.spec != "" {
				defer declare(b, a, c.spec)()
			}
			b.ReportAllocs()
			done, sent := 0, 0
			for done < b.N {
				for sent-done < 64 && sent < b.N {
					a.post(wr{op: opWrite, flags: signal, n: 8, remote: p.c.base, rkey: p.mr.RKey})
					sent++
				}
				if _, ok := a.try(); ok {
					done++
				}
			}
		})
	}
}
