package control

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// The example is applied and reaches the provisioner. It is there again after a restart, and applying it again changes
// nothing.
func TestApply(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s, _, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t, s)
	op := h.operator()
	if dry, err := Apply(op, example(t), true); err != nil || len(dry.Results) != 10 || len(h.provisioner.has()) != 0 {
		t.Fatalf("a dry run: %d results, %v; the provisioner has %v", len(dry.Results), err, h.provisioner.has())
	}
	if list, _, _ := s.List(""); len(list) != 0 {
		t.Fatalf("a dry run has written %d entries", len(list))
	}
	r := mustApply(t, op, example(t))
	for _, res := range r.Results {
		if res.Verb != Created {
			t.Errorf("%v was %s", res.Key, res.Verb)
		}
	}
	want := []string{"blue/db", "blue/web", "red/db", "red/slow", "red/web"}
	if got := h.provisioner.has(); !slices.Equal(got, want) {
		t.Errorf("the provisioner has %v", got)
	}
	h.provisioner.mu.Lock()
	enforced := h.provisioner.enforced
	h.provisioner.mu.Unlock()
	if enforced != h.plane.World() {
		t.Error("the rules are not enforced")
	}
	var keys []string
	list, _, _ := s.List("")
	for _, e := range list {
		keys = append(keys, e.Key)
	}
	for _, key := range []string{"meta", "generation", "spec/tenant/red", "spec/net/red/train", "spec/nic/red/train/web",
		"spec/policy/red/no-batch-to-store", "alloc/vni/000064", "alloc/vni/0000c8", "alloc/addr/red/train/0a010001", "alloc/addr/blue/train/0a010001"} {
		if !slices.Contains(keys, key) {
			t.Errorf("the store has no %s, only %v", key, keys)
		}
	}
	before, revision := worldText(t, h.plane.World()), r.Revision
	if again := mustApply(t, op, example(t)); again.Revision != revision || again.Results[0].Verb != Unchanged {
		t.Errorf("once more: revision %d, was %d; %v", again.Revision, revision, again.Results)
	}
	puts := h.provisioner.puts()
	h.plane.Close()
	s.Close()
	if s, _, err = store.Open(path); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h2 := newHost(t, s)
	if got := worldText(t, h2.plane.World()); got != before {
		t.Errorf("after a restart the world is\n%s\nwas\n%s", got, before)
	}
	if got := h2.provisioner.has(); !slices.Equal(got, want) || h2.provisioner.puts() != puts {
		t.Errorf("after a restart the provisioner has %v", got)
	}
}

// One error anywhere: nothing is changed.
func TestApplyAtomic(t *testing.T) {
	h := newHost(t, &store.Memory{})
	op := h.operator()
	bad := example(t)
	bad[0].Text += "---\napiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: x, tenant: red}\nspec: {network: none}\n"
	_, err := Apply(op, bad, false)
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), "two-tenants.yaml:") {
		t.Errorf("the error has no line: %v", err)
	}
	if list, _, _ := h.store.List(""); len(list) != 0 || len(h.provisioner.has()) != 0 {
		t.Errorf("%d entries, %v in the provisioner", len(list), h.provisioner.has())
	}
}

// TestDeleteInUse: an object in use is not deleted without force, nor are the others of the same change. The error names the
// objects that use it.
func TestDeleteInUse(t *testing.T) {
	h := newHost(t, &store.Memory{})
	op := h.operator()
	mustApply(t, op, example(t))
	before := worldText(t, h.plane.World())
	h.provisioner.set(func() { h.provisioner.used[nicKey("red", "web")] = []string{"ib_send_bw (pid 7, uid 1000)"} })
	keys := []tenant.Key{nicKey("red", "slow"), nicKey("red", "web"), nicKey("blue", "db")}
	_, err := Delete(op, keys, false, false)
	var e *Error
	if !errors.As(err, &e) || !e.InUse || !strings.Contains(err.Error(), "ib_send_bw (pid 7, uid 1000)") {
		t.Errorf("in use: %v", err)
	}
	if got := worldText(t, h.plane.World()); got != before || len(h.provisioner.has()) != 5 {
		t.Errorf("it was deleted in part: the provisioner has %v", h.provisioner.has())
	}
	r, err := Delete(op, keys, true, false)
	if err != nil || len(r.Results) != 3 || r.Results[0].Verb != Deleted {
		t.Errorf("by force: %+v, %v", r, err)
	}
	if got := h.provisioner.has(); !slices.Equal(got, []string{"blue/web", "red/db"}) {
		t.Errorf("the provisioner has %v", got)
	}
	if list, _, _ := h.store.List("alloc/addr/red"); len(list) != 1 {
		t.Errorf("%d addresses are allocated, want 1: %v", len(list), list)
	}
	if _, err := Delete(op, []tenant.Key{{Kind: tenant.KindTenant, Name: "red"}}, true, false); err != nil {
		t.Error(err)
	}
	if list, _, _ := h.store.List("alloc/"); len(list) != 2 { // blue's VNI, and web's address
		t.Errorf("allocated is %v", list)
	}
	if list, _, _ := h.store.List("alloc/addr/red"); len(list) != 0 {
		t.Errorf("a tenant that is gone has addresses: %v", list)
	}
}

// A NIC that cannot be removed is put again, because its listener may be closed already.
func TestDeleteStuck(t *testing.T) {
	h := newHost(t, &store.Memory{})
	op := h.operator()
	mustApply(t, op, example(t))
	h.provisioner.set(func() { h.provisioner.stuck[nicKey("red", "web")] = errors.New("memory that does not come") })
	puts := h.provisioner.puts()
	_, err := Delete(op, []tenant.Key{nicKey("red", "slow"), nicKey("red", "web")}, true, false)
	if err == nil || !strings.Contains(err.Error(), "NIC red/web cannot be removed: memory that does not come") {
		t.Errorf("stuck: %v", err)
	}
	if len(h.provisioner.has()) != 5 || h.provisioner.puts() != puts+2 || h.plane.World().NIC("red", "slow") == nil {
		t.Errorf("the provisioner has %v after %d puts, want five after two", h.provisioner.has(), h.provisioner.puts()-puts)
	}
}

// A failing store changes nothing, and removed NICs are put again.
func TestStoreFails(t *testing.T) {
	s := &failing{}
	h := newHost(t, s)
	op := h.operator()
	mustApply(t, op, example(t))
	before := worldText(t, h.plane.World())
	s.fail.Store(true)
	if _, err := Delete(op, []tenant.Key{nicKey("red", "web")}, false, false); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("delete: %v", err)
	}
	if _, err := Apply(op, file("apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: green}\n"), false); err == nil {
		t.Error("apply worked")
	}
	if worldText(t, h.plane.World()) != before || len(h.provisioner.has()) != 5 {
		t.Errorf("something has changed: the provisioner has %v", h.provisioner.has())
	}
	s.fail.Store(false)
	mustApply(t, op, file("apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: green}\n"))
}

type failing struct {
	store.Memory
	fail atomic.Bool
}

func (f *failing) Commit(c []store.Condition, w []store.Write) (int64, bool, error) {
	if f.fail.Load() {
		return 0, false, errors.New("no space left")
	}
	return f.Memory.Commit(c, w)
}

// Rules that cannot be enforced do not count as applied until they are. A NIC that cannot be put does not delay them.
func TestRulesFail(t *testing.T) {
	h := newHost(t, &store.Memory{})
	op := h.operator()
	h.provisioner.set(func() {
		h.provisioner.lawless = true
		h.provisioner.broken[nicKey("red", "web")] = errors.New("no directory")
	})
	r := mustApply(t, op, example(t))
	if len(r.Warnings) != 2 || !strings.Contains(r.Warnings[0], "the rules cannot be enforced") {
		t.Errorf("warnings: %v", r.Warnings)
	}
	if got, want := h.plane.Generation(), h.plane.snapshots.now.Load().generation; got >= want {
		t.Errorf("generation %d holds, %d was refused", got, want)
	}
	h.provisioner.set(func() { h.provisioner.lawless = false })
	eventually(t, "the rules hold", func() bool { return h.plane.Generation() == h.plane.snapshots.now.Load().generation })
	if got := h.provisioner.has(); slices.Contains(got, "red/web") {
		t.Errorf("the provisioner has %v", got)
	}
}

// An error of the provisioner for one NIC is that NIC's status, and is retried.
func TestRackFails(t *testing.T) {
	h := newHost(t, &store.Memory{})
	op := h.operator()
	h.provisioner.set(func() { h.provisioner.broken[nicKey("red", "web")] = errors.New("no directory") })
	r := mustApply(t, op, example(t))
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "red/web: no directory") {
		t.Errorf("warnings: %v", r.Warnings)
	}
	if got := h.provisioner.has(); len(got) != 4 {
		t.Errorf("the provisioner has %v", got)
	}
	status := func() *Status {
		r, err := Describe(op, nicKey("red", "web"))
		if err != nil {
			t.Fatal(err)
		}
		return r.Items[0].Status
	}
	if s := status(); s == nil || s.State != Failed || s.Reason != "no directory" || s.Since.IsZero() {
		t.Errorf("its status is %+v", s)
	}
	h.provisioner.set(func() { delete(h.provisioner.broken, nicKey("red", "web")) })
	eventually(t, "it is tried again", func() bool { return status().State == Ready })
	if s := status(); s.Socket != "/sockets/red/web" {
		t.Errorf("its listener is %q", s.Socket)
	}
	h.provisioner.set(func() { h.provisioner.panics = true })
	r = mustApply(t, op, file("apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: x, tenant: red}\nspec: {network: train}\n"))
	if len(r.Warnings) != 1 {
		t.Errorf("a panic: %v", r.Warnings)
	}
	h.provisioner.set(func() { h.provisioner.panics = false })
}

// A NIC of another host is not put here, and is removed when it moves there.
func TestOtherHost(t *testing.T) {
	h := newHost(t, &store.Memory{})
	op := h.operator()
	mustApply(t, op, example(t))
	nic := func(host string) []File {
		return file("apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: web, tenant: red, labels: {role: web}}\nspec: {network: train, address: 10.1.0.1, host: " + host + "}\n")
	}
	mustApply(t, op, nic("here"))
	if !slices.Contains(h.provisioner.has(), "red/web") {
		t.Error("it is not here")
	}
	h.provisioner.set(func() { h.provisioner.used[nicKey("red", "web")] = []string{"somebody"} })
	if _, err := Apply(op, nic("there"), false); err == nil || !strings.Contains(err.Error(), "somebody") {
		t.Errorf("it was moved while in use: %v", err)
	}
	h.provisioner.set(func() { delete(h.provisioner.used, nicKey("red", "web")) })
	moved, err := Apply(op, nic("there"), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"moves from host here to there; a file that says host: here moves it back", "host: anywhere", "host there, which does not exist", "there are here"} {
		if !strings.Contains(strings.Join(moved.Warnings, "\n"), want) {
			t.Errorf("the warnings have no %q: %q", want, moved.Warnings)
		}
	}
	if slices.Contains(h.provisioner.has(), "red/web") {
		t.Error("it is still here")
	}
	r, err := Describe(op, nicKey("red", "web"))
	if err != nil || r.Items[0].Status == nil || r.Items[0].Status.State != Elsewhere {
		t.Errorf("%+v, %v", r, err)
	}
	mustApply(t, op, nic("anywhere"))
	if !slices.Contains(h.provisioner.has(), "red/web") {
		t.Error("it did not come back")
	}
}

// Two planes share one store: each sees the other's changes, and neither overwrites them.
func TestTwoPlanes(t *testing.T) {
	s := &store.Memory{}
	a, b := newHost(t, s), newHost(t, s)
	aop, bop := a.operator(), b.operator()
	mustApply(t, aop, example(t))
	mustApply(t, bop, file("apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: green}\n"))
	done := make(chan error)
	for i, op := range []string{aop, bop} {
		go func() {
			for n := range 20 {
				_, err := Apply(op, file(fmt.Sprintf("apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: n%d-%d, tenant: red}\nspec: {network: train}\n", i, n)), false)
				if err != nil && !strings.Contains(err.Error(), "quota") && !strings.Contains(err.Error(), "NICs") {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	eventually(t, "both have the same world", func() bool {
		return worldText(t, a.plane.World()) == worldText(t, b.plane.World()) && slices.Equal(a.provisioner.has(), b.provisioner.has())
	})
	if n := len(a.plane.World().ObjectsOf(tenant.KindNIC, "red")); n != 10 {
		t.Errorf("red has %d NICs, its quota is 10", n)
	}
}

// A store with another identity is rejected.
func TestStoreReplaced(t *testing.T) {
	s := &store.Memory{}
	h := newHost(t, s)
	mustApply(t, h.operator(), example(t))
	before := worldText(t, h.plane.World())
	list, _, _ := s.List("spec/")
	writes := []store.Write{{Key: "meta", Value: []byte(`{"schema":1,"id":"other"}`)}}
	for _, e := range list {
		writes = append(writes, store.Write{Key: e.Key, Delete: true})
	}
	s.Commit(nil, writes)
	eventually(t, "it is reported", func() bool {
		recorded, _, _, _ := h.plane.journal.feed.after(0, 1000)
		return slices.ContainsFunc(recorded, func(e events.Event) bool {
			return e.Verb == events.Failed && strings.Contains(e.Reason, "another one")
		})
	})
	if worldText(t, h.plane.World()) != before || len(h.provisioner.has()) != 5 {
		t.Error("everything is gone")
	}
}

// Wrong entries of the store are left out and reported; the rest is served.
func TestHostileStore(t *testing.T) {
	s := &store.Memory{}
	h := newHost(t, s)
	mustApply(t, h.operator(), example(t))
	h.plane.Close()
	put := func(key, value string) store.Write { return store.Write{Key: key, Value: []byte(value)} }
	s.Commit(nil, []store.Write{
		put("spec/nic/blue/train/web", `{"schema":2}`),
		put("spec/nic/blue/train/db", `[`),
		put("spec/nic/red/train/x", `{"schema":1,"apiVersion":"vrdma.io/v1","kind":"NIC","metadata":{"name":"x","tenant":"red"},"spec":{"network":"none","addresses":["10.1.0.9"]}}`),
		put("spec/tenant/red2", `{"schema":1,"apiVersion":"vrdma.io/v1","kind":"Tenant","metadata":{"name":"red"}}`),
		put("spec/what", ""),
		put("spec/policy/red/p", strings.Repeat("[", 100000)),
		put("alloc/addr/red/train/0a01000a", `nonsense`),
		put("other", "\xff"),
	})
	h2 := newHost(t, s)
	if got := h2.provisioner.has(); !slices.Equal(got, []string{"red/db", "red/slow", "red/web"}) {
		t.Errorf("the provisioner has %v", got)
	}
	if got := h2.plane.Problems(); len(got) != 6 {
		t.Errorf("%d problems, want 6:\n%s", len(got), strings.Join(got, "\n"))
	}
	stream, err := Events(h2.operator(), Selection{}, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	refused := 0
	for {
		r, err := stream.Next()
		if err != nil {
			break
		}
		for _, e := range r.Events {
			if e.Verb == events.Refused {
				refused++
			}
		}
	}
	if refused != 6 {
		t.Errorf("%d events, want 6", refused)
	}
	mustApply(t, h2.operator(), example(t)) // overwrites them with good ones
	if got := h2.provisioner.has(); len(got) != 5 {
		t.Errorf("then the provisioner has %v", got)
	}
}

// The plane opens with any entries.
func FuzzStore(f *testing.F) {
	o := `{"schema":1,"apiVersion":"vrdma.io/v1","kind":"NIC","metadata":{"name":"web","tenant":"red"},"spec":{"network":"train","addresses":["10.1.0.1"]}}`
	f.Add("spec/nic/red/train/web", []byte(o), "spec/tenant/red", []byte(`{"schema":1,"apiVersion":"vrdma.io/v1","kind":"Tenant","metadata":{"name":"red"}}`))
	f.Add("spec/net/red/train", []byte(`{"schema":1,"apiVersion":"vrdma.io/v1","kind":"Network","metadata":{"name":"train","tenant":"red"},"spec":{"vni":1,"subnets":["10.0.0.0/0"]}}`), "generation", []byte("x"))
	f.Add("meta", []byte(`{"schema":1,"id":"a"}`), "alloc/vni/1", []byte("{}"))
	f.Add("spec/policy/red/p", []byte(`{"schema":1,"apiVersion":"vrdma.io/v1","kind":"Policy","metadata":{"name":"p","tenant":"red"},"spec":{"deny":[{"service":"manual"}]}}`), "spec/", []byte("null"))
	f.Fuzz(func(t *testing.T, k1 string, v1 []byte, k2 string, v2 []byte) {
		s := &store.Memory{}
		if _, ok, err := s.Commit(nil, []store.Write{{Key: k1, Value: v1}, {Key: k2, Value: v2}}); !ok || err != nil {
			return
		}
		provisioner := newFakeProvisioner()
		p, err := Open(Config{Store: s, Provisioner: provisioner, Host: "here"})
		if err != nil {
			return
		}
		defer p.Close()
		p.Change(tenant.Caller{Operator: true}, events.Actor{}, tenant.Change{Put: []tenant.Object{&tenant.Tenant{Metadata: tenant.Metadata{Name: "red"}}}}, false)
	})
}
