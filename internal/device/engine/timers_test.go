package engine

import "testing"

// TestTimerOfDestroyed destroys queue pairs that wait hours for an answer: the heap of timers must not keep them.
func TestTimerOfDestroyed(t *testing.T) {
	e := newEngine(t)
	c := newClient(t, e)
	for range 3 {
		q := c.newQP(rc)
		nobody := &testQP{c: c}
		nobody.info.Num = 0xabcdef
		q.timeout = 31
		q.to(nobody)
		q.post(wr{op: opWrite, n: 8})
		c.do(func() error {
			// The doorbell was answered before the command.
			if e.first.sched.due() == 0 {
				t.Error("no timer for a request to nobody")
			}
			_, err := c.s.DestroyQP(q.info.Handle)
			return err
		})
	}
	e.Do(func() {
		if n := len(c.flow().timers); n != 0 {
			t.Errorf("%d queue pairs among the timers that are gone", n)
		}
	})
}
