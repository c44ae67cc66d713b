package main

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHalfOf(t *testing.T) {
	for _, c := range []struct {
		may, even, odd []int
	}{
		{[]int{3}, nil, nil},
		{[]int{0, 1}, []int{0}, []int{1}},
		{[]int{2, 5, 64}, []int{2}, []int{64}},
		{[]int{0, 1, 2, 3}, []int{0, 1}, []int{2, 3}},
	} {
		var may unix.CPUSet
		for _, cpu := range c.may {
			may.Set(cpu)
		}
		for pid, want := range [][]int{c.even, c.odd} {
			half, n := halfOf(&may, pid)
			var got []int
			for cpu := range 128 {
				if half.IsSet(cpu) {
					got = append(got, cpu)
				}
			}
			if !slices.Equal(got, want) || n != len(want) {
				t.Errorf("of %v, process %d: %v (%d), want %v", c.may, pid, got, n, want)
			}
		}
	}
}
