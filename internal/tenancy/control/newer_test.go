package control

import (
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// Old and new daemons share a store. The old one rejects what a newer one wrote, keeps its own state and does not
// overwrite the newer entry; everything else goes on.
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

// Fields of a later version of the same schema are ignored and kept: in objects, in the store's own entry, and in those
// of hosts and placements.
func TestLaterFields(t *testing.T) {
	s := &store.Memory{}
	a, b := join(t, s, "a", 1), join(t, s, "b", 2)
	mustApply(t, a.operator(), file(pinned))
	if err := a.open(nicKey("red", "roams")); err != nil {
		t.Fatal(err)
	}
	before := make(map[string]string)
	list, _, err := s.List("")
	if err != nil {
		t.Fatal(err)
	}
	var writes []store.Write
	for _, e := range list {
		if e.Value[0] != '{' {
			continue // of live/
		}
		value := `{"later":{"things":[1,2]},` + string(e.Value[1:])
		value = strings.Replace(value, `"spec":{`, `"spec":{"more":true,`, 1)
		value = strings.Replace(value, `true,}`, `true}`, 1)
		before[e.Key] = value
		writes = append(writes, store.Write{Key: e.Key, Value: []byte(value)})
	}
	if len(writes) < 15 {
		t.Fatalf("only %d entries", len(writes))
	}
	if _, ok, err := s.Commit(nil, writes); !ok || err != nil {
		t.Fatal(ok, err)
	}
	c := join(t, s, "c", 3) // starts with them
	eventually(t, "b has heard of it", func() bool { return b.plane.snapshots.now.Load().hosts["c"] != nil })
	mustApply(t, b.operator(), nic("red", "more", "{network: train, address: 10.1.0.77, host: c}"))
	for _, n := range []*node{a, b, c} {
		eventually(t, "all go on", func() bool { return n.plane.World().NIC("red", "more") != nil && n.agrees(s) })
		if p := n.plane.Problems(); len(p) > 0 {
			t.Errorf("%s complains: %q", n.plane.cfg.Host, p)
		}
	}
	if got := c.provisioner.has(); !slices.Equal(got, []string{"red/more", "red/roams"}) {
		t.Errorf("c has %v", got)
	}
	list, _, _ = s.List("spec/")
	for _, e := range list {
		if want := before[e.Key]; want != "" && string(e.Value) != want {
			t.Errorf("%s is %s", e.Key, e.Value)
		}
	}
}
