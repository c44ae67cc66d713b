package engine

import (
	"testing"

	"vrdma/internal/ib"
)

// A program in a virtual machine is waited for if it rang twice within farIdleAfter, and for as long once more.
func TestFarRings(t *testing.T) {
	e := &Engine{}
	e.opts.Spin = defaultSpin
	b := &bell{far: true}
	at := ib.Time(10 * farIdleAfter)
	for _, c := range []struct {
		what  string
		after ib.Time
		waits bool
	}{
		{"the first ring", 0, false},
		{"the next, soon", farIdleAfter - 1, true},
		{"one that comes late", farIdleAfter, false},
		{"and late again", 3 * farIdleAfter, false},
		{"soon after that", 1, true},
	} {
		at += c.after
		e.bells.rung(b, at)
		e.now = at + 1
		if got := e.patience() == farIdleAfter; got != c.waits {
			t.Errorf("%s: the loop waits: %v, want %v", c.what, got, c.waits)
		}
	}
	e.now = at + farIdleAfter
	if e.patience() != ib.Time(defaultSpin) {
		t.Error("it is waited for without end")
	}
}
