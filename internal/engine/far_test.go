package engine

import (
	"testing"

	"vrdma/internal/ib"
)

// A program in a virtual machine is waited for if it rang twice within farPace, and for as long once more.
func TestFarRings(t *testing.T) {
	e := &Engine{}
	e.opts.Spin = defaultSpin
	b := &bell{far: true}
	at := ib.Time(10 * farPace)
	for _, c := range []struct {
		what  string
		after ib.Time
		waits bool
	}{
		{"the first ring", 0, false},
		{"the next, soon", farPace - 1, true},
		{"one that comes late", farPace, false},
		{"and late again", 3 * farPace, false},
		{"soon after that", 1, true},
	} {
		at += c.after
		e.bells.rung(b, at)
		e.now = at + 1
		if got := e.patience() == farPace; got != c.waits {
			t.Errorf("%s: the loop waits: %v, want %v", c.what, got, c.waits)
		}
	}
	e.now = at + farPace
	if e.patience() != ib.Time(defaultSpin) {
		t.Error("it is waited for without end")
	}
}
