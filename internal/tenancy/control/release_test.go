package control

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// TestRelease: a NIC that was released can be claimed by another host at once, and one with users is not released. This is the end of a
// virtual machine's migration.
func TestRelease(t *testing.T) {
	s := &store.Memory{}
	a, b := join(t, s, "a", 1), join(t, s, "b", 2)
	mustApplyTo(t, a.plane, pinned)
	k := nicKey("red", "roams")
	placed := func() placement { return a.plane.snapshots.now.Load().placements[k] }
	if err := a.plane.Release(k); err != nil {
		t.Errorf("a NIC that is nowhere: %v", err)
	}
	if err := a.open(k); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := a.plane.Release(k); err != nil || !placed().Open {
			t.Fatalf("a NIC with users is released: %v, %+v", err, placed())
		}
	}
	if err := b.plane.Release(k); err != nil || !placed().Open {
		t.Errorf("another host releases it: %v, %+v", err, placed())
	}
	eventually(t, "b hears of it", func() bool { return b.plane.Where(k) == "a" })
	if err := b.plane.Claim(k); err == nil || !strings.Contains(err.Error(), "is on host a") {
		t.Errorf("b: %v", err)
	}
	release := func(n *node) {
		t.Helper()
		n.provisioner.set(func() { delete(n.provisioner.used, k) })
		if err := n.plane.Release(k); err != nil {
			t.Fatal(err)
		}
	}
	release(a)
	if at := placed(); at.Open || at.Host != "a" {
		t.Errorf("released: %+v", at)
	}
	// The migration goes to b and back.
	eventually(t, "b claims it", func() bool { return b.open(k) == nil })
	eventually(t, "a's map says b", func() bool { return a.plane.Where(k) == "b" })
	release(b)
	eventually(t, "a claims it", func() bool { return a.open(k) == nil })
	// It fails, and the source goes on.
	release(a)
	if err := a.open(k); err != nil || !placed().Open {
		t.Errorf("a goes on: %v, %+v", err, placed())
	}
	a.way.partition(true)
	eventually(t, "a's store is away", func() bool { return a.plane.health.away() != "" })
	a.provisioner.set(func() { delete(a.provisioner.used, k) })
	if err := a.plane.Release(k); err == nil {
		t.Error("released without a store")
	}
	a.way.partition(false)
}
