package control

import (
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/ratelimit"
	"vrdma.dev/vrdma/internal/tenancy/store"
)

// A tenant's administrator has a limit of changes a second; the operator has none.
func TestChangePace(t *testing.T) {
	h := newHost(t, &store.Memory{})
	op, red, blue := h.operator(), h.user(1001), h.user(1002)
	mustApply(t, op, file(twoAdministrators))
	for range changeBurst - 2 {
		h.plane.paces.Take(1001, time.Now().Add(time.Hour)) // the bucket does not fill during the test
	}
	mustApply(t, red, nicFile("red", "a"))
	mustApply(t, red, nicFile("red", "a"))
	before := h.plane.snapshots.now.Load().revision
	if _, err := Apply(red, nicFile("red", "b"), false); err == nil || !strings.Contains(err.Error(), "too many changes: 5 a second") {
		t.Errorf("one too many: %v", err)
	}
	if h.plane.snapshots.now.Load().revision != before {
		t.Error("it was made")
	}
	mustApply(t, blue, nicFile("blue", "a"))
	for range 2 * changeBurst {
		mustApply(t, op, nicFile("red", "a"))
	}
}

func TestPaces(t *testing.T) {
	p := ratelimit.Buckets[int]{Rate: changeRate, Burst: changeBurst, Most: mostPaces}
	now := time.Unix(1, 0)
	made := 0
	for range 1000 {
		if admitChange(&p, 1, now) == nil {
			made++
		}
	}
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		for range 10 {
			if admitChange(&p, 1, now) == nil {
				made++
			}
		}
	}
	if want := changeBurst + 10*changeRate; made < want-1 || made > want {
		t.Errorf("%d changes, want %d", made, want)
	}
	for uid := range 3 * mostPaces {
		admitChange(&p, uid, now)
	}
	if p.Len() > mostPaces {
		t.Errorf("%d users are remembered", p.Len())
	}
}
