//go:build !race

package eventfile

import "testing"

// The race detector makes the bytes of a write escape.
func TestPostDoesNotAllocate(t *testing.T) {
	s, _ := pair(t)
	if n := testing.AllocsPerRun(100, func() { s.Post([16]byte{1}, 8) }); n != 0 {
		t.Errorf("an event allocates %v times", n)
	}
}
