package engine

import (
	"testing"

	"vrdma.dev/vrdma/internal/ib"
)

// TestMode takes every transition of the diagram in traffic.go.
func TestMode(t *testing.T) {
	var (
		f     traffic
		now   = ib.Time(1)
		moved uint64
	)
	move := func(bytes uint64, told bool) func() {
		return func() {
			f.told = told
			f.wake(now)
			moved += bytes
			f.pass(moved, now)
		}
	}
	quiet := func(d ib.Time) func() {
		return func() {
			now += d
			f.looked(false, now)
			f.pass(moved, now)
		}
	}
	word, other, much := move(talkBytes, true), move(talkBytes, false), move(talkBytes+1, false)
	for i, s := range []struct {
		what string
		do   func()
		want mode
	}{
		{"woken", func() { f.wake(now) }, polled},
		{"nothing for a moment", quiet(quietAfter), polled},
		{"nothing for a while", quiet(1), silent},
		{"a word", word, pingPong},
		{"nothing for a moment", quiet(quietAfter), pingPong},
		{"nothing for a while", quiet(1), silent},
		{"a word for nobody", other, polled},
		{"a word", word, pingPong},
		{"a word for nobody", other, polled},
		{"much", much, bulk},
		{"a word", word, mixed},
		{"a word for nobody", other, bulk},
		{"a word", word, mixed},
		{"much", much, bulk},
		{"a moment later, a word", func() { quiet(quietAfter)(); word() }, mixed},
		{"no more for a while", quiet(1), pingPong},
		{"much", much, bulk},
		{"a moment later, a word for nobody", func() { quiet(quietAfter)(); other() }, bulk},
		{"no more for a while", quiet(1), polled},
		{"much", much, bulk},
		{"nothing for a while", quiet(quietAfter + 1), silent},
	} {
		if s.do(); f.mode(now) != s.want {
			t.Fatalf("step %d, %s: mode %d, want %d", i, s.what, f.mode(now), s.want)
		}
	}
}
