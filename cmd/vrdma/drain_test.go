package main

import (
	"context"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// TestDrainInterfaces: drain names the interfaces that are left, and does not wait for them.
func TestDrainInterfaces(t *testing.T) {
	s := protocol.Status{NICs: []protocol.NICStatus{{Tenant: "red", NIC: "web", Container: "podman web", RoCE: "daemon"}}}
	var b strings.Builder
	if err := awaitEmpty(context.Background(), &b, func() (*protocol.Status, error) { return &s, nil }); err != nil {
		t.Fatal(err)
	}
	want := "no program is left\nNIC      INTERFACE OF\nred/web  podman web\n1 interfaces have no network while no daemon runs\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
