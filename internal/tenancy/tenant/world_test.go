package tenant

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// A source of VNIs that is the same in every run.
func seeded() Rand { return rand.New(rand.NewPCG(1, 2)) }

// parse is a file without errors.
func parse(t testing.TB, text string) []Object {
	t.Helper()
	objects, err := Parse("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// apply is the world after a file without errors.
func apply(t testing.TB, w *World, text string) *World {
	t.Helper()
	next, _, err := w.Next(Change{Put: parse(t, text)}, seeded())
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func example(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("../../../examples/two-tenants.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestExample(t *testing.T) {
	w := apply(t, &World{}, example(t))
	if got := len(w.Objects("")); got != 10 {
		t.Fatalf("%d objects, want 10", got)
	}
	slow := w.NIC("red", "slow")
	if want := []netip.Addr{netip.MustParseAddr("10.1.0.3")}; !slices.Equal(slow.Spec.Addresses, want) {
		t.Errorf("red/slow has %v, want %v: .1 and .2 are given", slow.Spec.Addresses, want)
	}
	if slow.Spec.Rate.Out != 1e9 || w.Tenant("red").Spec.Quota.Memory != 4<<30 {
		t.Errorf("rate %v, memory %v", slow.Spec.Rate.Out, w.Tenant("red").Spec.Quota.Memory)
	}
	red, blue := Key{KindNetwork, "red", "train"}, Key{KindNetwork, "blue", "train"}
	at := netip.MustParseAddr("10.1.0.1")
	if a, b := w.NICAt(red, at), w.NICAt(blue, at); a != w.NIC("red", "web") || b != w.NIC("blue", "web") {
		t.Errorf("at %v: %v and %v", at, a.Key(), b.Key())
	}
	if n := w.NetworkByVNI(200); n == nil || n.Key() != blue {
		t.Errorf("VNI 200 is %v", n)
	}
	policy := w.Get(Key{KindPolicy, "red", "no-batch-to-store"}).(*Policy)
	if about := &policy.Spec.NICs; !about.Selects(w.NIC("red", "db")) || about.Selects(w.NIC("red", "web")) || about.Selects(slow) {
		t.Error("the policy is not about red/db alone")
	}
	if p := &policy.Spec.Deny[0].Peer; !p.Matches(slow) || p.Matches(w.NIC("red", "web")) {
		t.Error("the rule does not match red/slow alone")
	}

	// Applied again: nothing changes, and the allocated address stays.
	again, effects, err := w.Next(Change{Put: parse(t, example(t))}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range effects {
		if e.What() != "unchanged" || again.Get(e.Key) != w.Get(e.Key) {
			t.Errorf("%s %s", e.Key, e.What())
		}
	}

	// From a store.
	var stored []Object
	for _, o := range w.Objects("") {
		text, err := Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Unmarshal(text)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, back)
	}
	slices.Reverse(stored)
	kept, err := NewWorld(stored)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(kept.Objects(""), w.Objects("")) {
		t.Error("the world from the store is another")
	}
}

// refused is the text of the errors that a change gives.
func refused(t *testing.T, w *World, c Change) string {
	t.Helper()
	next, effects, err := w.Next(c, seeded())
	var list Errors
	if !errors.As(err, &list) || next != nil || effects != nil {
		t.Fatalf("got %v, %v, %v, want errors alone", next, effects, err)
	}
	return err.Error()
}

// wantLines compares errors line by line; a line that is wanted is a part of one.
func wantLines(t *testing.T, got string, want ...string) {
	t.Helper()
	lines := strings.Split(got, "\n")
	if len(lines) != len(want) {
		t.Errorf("got %d errors:\n%s\nwant %d", len(lines), got, len(want))
		return
	}
	for i, line := range lines {
		if !strings.Contains(line, want[i]) {
			t.Errorf("error %d is\n  %s\nwant in it\n  %s", i, line, want[i])
		}
	}
}

func TestNamespaces(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"{namespaces: [team, other]}", ""},
		{"{namespaces: [Team]}", "a name is a DNS label"},
		{"{namespaces: [team, team]}", "is there twice"},
		{"{namespaces: [taken]}", `"taken" is tenant blue's already`},
	} {
		objects, err := Parse("f", []byte("apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: blue}\nspec: {namespaces: [taken]}\n---\napiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: red}\nspec: "+c.text+"\n"))
		if err == nil {
			_, _, err = new(World).Next(Change{Put: objects}, nil)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
}
