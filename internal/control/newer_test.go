package control

import (
	"strings"
	"testing"

	"vrdma/internal/store"
)

// Old and new daemons side by side: what a newer one wrote is refused, the old one keeps what
// it had, and does not write over it; all the rest goes on.
func TestNewerBeside(t *testing.T) {
	s := &store.Memory{}
	h := newHost(t, s)
	op := h.operator()
	mustApply(t, op, example(t))
	before := h.plane.World().NIC("red", "web")
	newer := store.Write{Key: "spec/nic/red/train/web", Value: []byte(`{"schema":2,"kind":"NIC","new":"things"}`)}
	if _, ok, err := s.Commit(nil, []store.Write{newer, {Key: keyGeneration, Value: []byte(`{"schema":2}`)}}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	eventually(t, "a problem", func() bool { return len(h.plane.Problems()) > 0 })
	if got := h.plane.World().NIC("red", "web"); !same(got, before) {
		t.Errorf("the NIC is %v", got)
	}
	_, err := Apply(op, file("apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: web, tenant: red, labels: {x: y}}\nspec: {network: train, address: "+before.Spec.Addresses[0].String()+"}\n"), false)
	if err == nil || !strings.Contains(err.Error(), "newer vrdma") {
		t.Errorf("what a newer vrdma wrote was changed: %v", err)
	}
	mustApply(t, op, file("apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: green}\nspec: {}\n"))
	list, _, _ := s.List(newer.Key)
	if len(list) != 1 || string(list[0].Value) != string(newer.Value) {
		t.Errorf("the newer entry is %s", list[0].Value)
	}
}
