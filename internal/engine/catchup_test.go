package engine

import "testing"

// A packet for a queue pair that is not ready has its program's commands run first, and finds it ready:
// it is not sent again, which here would take hours.
func TestCatchUp(t *testing.T) {
	t.Run("one host", func(t *testing.T) {
		e := newEngine(t)
		catchUp(t, newClient(t, e).newQP(rc), newClient(t, e).newQP(rc))
	})
	t.Run("two hosts", func(t *testing.T) {
		a, b := twoHosts(t, func(*program) {})
		catchUp(t, a, b)
	})
}

func catchUp(t *testing.T, a, b *testQP) {
	a.timeout = 31
	a.to(b)
	calls := 0
	b.c.do(func() error {
		b.c.s.OnCatchUp(func() {
			if calls++; calls == 1 {
				if err := b.move(a); err != nil {
					t.Error(err)
				}
			}
		})
		return nil
	})
	for range 3 {
		a.post(wr{op: opWrite, flags: signal, n: 64, remote: b.c.base, rkey: b.mr.RKey})
		if w := a.wait(); w.status != 0 {
			t.Fatalf("write: %+v", w)
		}
	}
	b.c.do(func() error {
		if calls != 1 {
			t.Errorf("it was caught up with %d times, want once", calls)
		}
		b.c.s.OnCatchUp(nil)
		return nil
	})
}
