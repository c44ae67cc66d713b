package control

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// A NIC that programs have open moves: until the next host takes the placement, the first keeps it, although its programs have gone.
// The state is used once. A host that keeps the NIC makes the state useless.
func TestMigration(t *testing.T) {
	s := &store.Memory{}
	a, b := join(t, s, "a", 1), join(t, s, "b", 2)
	mustApplyTo(t, a.plane, pinned)
	k := nicKey("red", "roams")
	refuses := func(what, says string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", what, err, says)
		}
	}
	first, err := a.plane.MoveSecret()
	if err != nil {
		t.Fatal(err)
	}
	if second, err := b.plane.MoveSecret(); err != nil || !bytes.Equal(first, second) || len(first) != secretSize {
		t.Fatalf("the hosts have secrets of %d and %d bytes: %v", len(first), len(second), err)
	}
	_, _, err = a.plane.Leave(k)
	refuses("a NIC that nobody has open", "no program has", err)
	_, _, err = a.plane.Leave(nicKey("red", "web"))
	refuses("a NIC with spec.host", "spec.host", err)
	_, _, err = a.plane.Leave(nicKey("red", "none"))
	refuses("no NIC", "not declared", err)

	if err := a.open(k); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b hears of it", func() bool { return b.plane.Where(k) == "a" })
	g, end, err := a.plane.Leave(k)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = a.plane.Leave(k)
	refuses("a NIC that leaves", "moving already", err)
	a.end(k) // its programs have let go
	if at := a.plane.snapshots.now.Load().placements[k]; !at.Open || at.Host != "a" {
		t.Fatalf("the placement of a NIC that leaves: %+v", at)
	}
	refuses("another program", "is on host a", b.open(k))

	_, err = b.plane.Expect(k, "a", g+1)
	refuses("a state of another revision", "of no use", err)
	over, err := b.plane.Expect(k, "a", g)
	if err != nil {
		t.Fatal(err)
	}
	b.provisioner.set(func() { b.provisioner.used[k] = []string{"a program"} })
	b.plane.tidy() // must not disconnect it
	if err := b.plane.Take(k, "a", g, ""); err != nil {
		t.Fatal(err)
	}
	over()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := a.plane.AwaitMoved(ctx, k); err != nil {
		t.Fatal(err)
	}
	end()
	refuses("the same state again", "was used already", b.plane.Take(k, "a", g, ""))
	refuses("to stay after that", "is on host b", a.plane.Keep(k, g))
	if at := b.plane.snapshots.now.Load().placements[k]; at.Host != "b" || !at.Open || at.Generation < 2 {
		t.Errorf("the next host has %+v", at)
	}

	g, end, err = b.plane.Leave(k)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.plane.Keep(k, g); err != nil {
		t.Fatal(err)
	}
	end()
	eventually(t, "a hears of it", func() bool { return a.plane.snapshots.now.Load().placements[k].revision != g })
	_, err = a.plane.Expect(k, "b", g)
	refuses("the state of a NIC that has stayed", "of no use", err)
}

// Hosts with stores of their own have no secret in common.
func TestMigrationAlone(t *testing.T) {
	h := newHost(t, &store.Memory{})
	if _, err := h.plane.MoveSecret(); err == nil {
		t.Error("a daemon with a store of its own has a secret for other hosts")
	}
}
