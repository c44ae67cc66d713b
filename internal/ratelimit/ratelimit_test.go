package ratelimit

import (
	"testing"
	"time"
)

func TestTake(t *testing.T) {
	b := Buckets[string]{Rate: 5, Burst: 50}
	now := time.Unix(1, 0)
	take := func(key string, n int) (taken int) {
		for range n {
			if _, ok := b.Take(key, now); ok {
				taken++
			}
		}
		return taken
	}
	if got := take("a", 1000); got != 50 {
		t.Errorf("%d tokens of a full bucket, want 50", got)
	}
	if got := take("b", 1); got != 1 {
		t.Error("another key has no token")
	}
	now = now.Add(2 * time.Second)
	if missed, ok := b.Take("a", now); !ok || missed != 950 {
		t.Errorf("after 950 refusals: missed %d, %v", missed, ok)
	}
	if missed, ok := b.Take("a", now); !ok || missed != 0 {
		t.Errorf("the next: missed %d, %v", missed, ok)
	}
	if got := take("a", 100); got != 8 {
		t.Errorf("%d tokens are left of those of two seconds, want 8", got)
	}
	now = now.Add(-time.Second)
	if got := take("a", 1); got != 0 {
		t.Error("a token of a time that runs backwards")
	}
	now = now.Add(time.Hour)
	if got := take("a", 1000); got != 50 {
		t.Errorf("%d tokens after an hour, want 50", got)
	}
}

func TestMost(t *testing.T) {
	b := Buckets[int]{Rate: 1, Burst: 2, Most: 10}
	now := time.Unix(1, 0)
	for key := range 9 {
		b.Take(key, now)
	}
	b.Take(9, now.Add(time.Hour)) // the others are full again
	b.Take(10, now.Add(time.Hour))
	if got := b.Len(); got != 2 {
		t.Errorf("%d keys, want those two whose buckets are not full", got)
	}
	for key := range 100 {
		if b.Take(key, now.Add(time.Hour)); b.Len() > 10 {
			t.Fatalf("%d keys, want at most 10", b.Len())
		}
	}
}
