package nic

import (
	"testing"

	"vrdma.dev/vrdma/internal/ib"
)

// Every delay is counted where it is below the bound and not below the one before, and bounds
// are less than a quarter apart.
func TestDelays(t *testing.T) {
	for _, at := range []ib.Time{0, 1, 255, 256, 1023, 1024, 1279, 1280, 5_000, 9_999, 10_240, 60_000, 61_439, 1 << 20, 25_000_000} {
		var d Delays
		d.add(at)
		for i, n := range d {
			if n == 0 {
				continue
			}
			least := ib.Time(0)
			if i > 0 {
				least = d.Below(i - 1)
			}
			if at < least || at >= d.Below(i) || least > 1000 && d.Below(i)-least > (least+3)/4 {
				t.Errorf("%d ns is counted as %d to %d", at, least, d.Below(i))
			}
		}
	}
	var d Delays
	d.add(1 << 40)
	if last := len(d) - 1; d[last] != 1 || d.Below(last-1) > 60_000_000 {
		t.Errorf("what waited for long is counted as %v; the last bound is %v", d, d.Below(last-1))
	}
}
