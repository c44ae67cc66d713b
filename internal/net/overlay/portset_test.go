package overlay

import (
	"slices"
	"testing"
)

// TestPortSet checks the set against the list, for every port.
func TestPortSet(t *testing.T) {
	list := []uint16{0xc000, 0xc001, 0xc03f, 0xc040, 0xd123, 0xffff}
	s := NewPortSet(list)
	for p := range 1 << 16 {
		if got, want := s.Has(uint16(p)), slices.Contains(list, uint16(p)); got != want {
			t.Fatalf("port %d: %v, want %v", p, got, want)
		}
	}
	var all *PortSet
	if NewPortSet(nil) != nil || !all.Has(1) || !all.Has(0xc000) {
		t.Error("without a list not every port is in the set")
	}
	if !s.Equal(NewPortSet(list)) || s.Equal(nil) || all.Equal(s) || !all.Equal(nil) || s.Equal(NewPortSet(list[1:])) {
		t.Error("equal sets differ, or others do not")
	}
	if NewPortSet([]uint16{80}).Has(80) {
		t.Error("a port below the range is in the set")
	}
}
