package control

import (
	"context"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// The plane of the next daemon is the same host for others: nobody is fenced, placements stay open, and before Continue
// nothing is written. A plane that is paused resumes as if nothing had happened.
func TestTakeover(t *testing.T) {
	s := &store.Memory{}
	a, b := join(t, s, "a", 1), join(t, s, "b", 2)
	mustApplyTo(t, a.plane, pinned)
	roams := nicKey("red", "roams")
	if err := a.open(roams); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b knows", func() bool { return b.plane.snapshots.now.Load().placements[roams].Open })
	resume, err := a.plane.Pause(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Apply(a.operator(), nic("red", "new", "{network: train, address: 10.1.0.30, host: a}"), false); err == nil || !strings.Contains(err.Error(), "being upgraded") {
		t.Errorf("a change while the daemon is handed over: %v", err)
	}
	_, before, _ := s.List("")
	c := config(&remote{Memory: s}, newFakeProvisioner(), "a", 1)
	c.Boot, c.Self.Version = a.plane.Boot(), "next"
	failed, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	failed.Close()
	if _, now, _ := s.List(""); now != before {
		t.Errorf("the next plane has written to the store before Continue: revision %d, then %d", before, now)
	}
	resume()
	mustApplyTo(t, a.plane, "apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: green}\n")

	if resume, err = a.plane.Pause(context.Background()); err != nil {
		t.Fatal(err)
	}
	defer resume() // a process would end instead
	provisioner := newFakeProvisioner()
	provisioner.used[roams] = []string{"a program"}
	c.Provisioner = provisioner
	next, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	next.Continue()
	eventually(t, "b sees the next version", func() bool {
		return b.plane.snapshots.now.Load().hosts["a"].host.Spec.Version == "next"
	})
	if a.plane.Fenced() != "" || next.Fenced() != "" {
		t.Errorf("fenced: %q, %q", a.plane.Fenced(), next.Fenced())
	}
	next.tidy()
	if at := next.snapshots.now.Load().placements[roams]; !at.Open || at.Host != "a" || at.Generation != 1 {
		t.Errorf("a NIC that a program has open is %+v", at)
	}
	mustApplyTo(t, next, "apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: grey}\n")
}
