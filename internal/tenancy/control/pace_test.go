package control

import (
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// A tenant's administrator may make so many changes a second, the operator as many as it likes.
func TestChangePace(t *testing.T) {
	h := newHost(t, &store.Memory{})
	op, red, blue := h.operator(), h.user(1001), h.user(1002)
	mustApply(t, op, file(twoAdministrators))
	h.plane.paces.mu.Lock()
	h.plane.paces.users = map[int]*pace{1001: {2, time.Now().Add(time.Hour)}} // it is not filled meanwhile
	h.plane.paces.mu.Unlock()
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
	var p paces
	now := time.Unix(1, 0)
	made := 0
	for range 1000 {
		if p.admit(1, now) == nil {
			made++
		}
	}
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		for range 10 {
			if p.admit(1, now) == nil {
				made++
			}
		}
	}
	if want := changeBurst + 10*changeRate; made < want-1 || made > want {
		t.Errorf("%d changes, want %d", made, want)
	}
	for uid := range 3 * mostPaces {
		p.admit(uid, now)
	}
	if len(p.users) > mostPaces {
		t.Errorf("%d users are remembered", len(p.users))
	}
}
