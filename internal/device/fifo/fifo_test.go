package fifo

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestQueue compares a queue with a slice, also where the ring wraps and grows.
func TestQueue(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		var q Queue[int]
		var want []int
		for i := range 2000 {
			switch r.IntN(5) {
			case 0, 1:
				*q.Push() = i
				want = append(want, i)
			case 2:
				if len(want) > 0 {
					if got := *q.Pop(); got != want[0] {
						t.Fatalf("seed %d: got %d, want %d", seed, got, want[0])
					}
					want = want[1:]
				}
			case 3:
				if len(want) > 0 {
					if got := q.Take(); got != want[0] {
						t.Fatalf("seed %d: got %d, want %d", seed, got, want[0])
					}
					want = want[1:]
				}
			case 4:
				if r.IntN(100) == 0 {
					odd := func(v int) bool { return v&1 == 1 }
					q.Remove(odd)
					want = slices.DeleteFunc(want, odd)
				}
			}
			if q.Len() != len(want) {
				t.Fatalf("seed %d: %d elements, want %d", seed, q.Len(), len(want))
			}
			if last := q.Last(); len(want) == 0 {
				if last != nil {
					t.Fatalf("seed %d: an empty queue has the last element %d", seed, *last)
				}
			} else if *last != want[len(want)-1] || *q.First() != want[0] {
				t.Fatalf("seed %d: %d to %d, want %d to %d", seed, *q.First(), *last, want[0], want[len(want)-1])
			}
		}
	}
}

// TestClears: what Take and Remove take out is not kept alive by the ring. A queue of constant length does not allocate.
func TestClears(t *testing.T) {
	var q Queue[*int]
	for range 10 {
		*q.Push() = new(int)
	}
	q.Take()
	q.Remove(func(*int) bool { return true })
	for i, p := range q.buf {
		if p != nil {
			t.Errorf("element %d is kept", i)
		}
	}
	if n := testing.AllocsPerRun(1000, func() { *q.Push() = nil; q.Pop() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
