package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// twoAdministrators are tenants with an administrator each, 1001 for red and 1002 for blue.
const twoAdministrators = `
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: red}
spec: {quota: {nics: 3}, administrators: {uids: [1001]}}
---
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: blue}
spec: {administrators: {gids: [101002]}}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: train, tenant: red}
spec: {vni: 100, subnets: [10.1.0.0/24]}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: train, tenant: blue}
spec: {vni: 200, subnets: [10.1.0.0/24]}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: web, tenant: blue}
spec: {network: train, address: 10.1.0.1, open: {uids: [1500]}}
`

func nicFile(of, name string) []File {
	return file(fmt.Sprintf("apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: %s, tenant: %s}\nspec: {network: train}\n", name, of))
}

func wantDenied(t *testing.T, what string, err error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || !e.Denied {
		t.Errorf("%s: %v, want that it is denied", what, err)
	}
}

func getNames(t *testing.T, socket string, s Selection) []string {
	t.Helper()
	r, err := Get(socket, s)
	if err != nil {
		t.Fatal(err)
	}
	return names(r.Items)
}

// TestRights: the operator may do everything. Administrators change NICs and policies of their tenant and see its objects.
// Other users see their own NICs. A process in other namespaces sees nothing.
func TestRights(t *testing.T) {
	h := newHost(t, &store.Memory{})
	op, red, blue := h.operator(), h.user(1001), h.user(1002)
	mustApply(t, op, file(twoAdministrators))
	nobody, opener := h.user(1003), h.user(1500)
	container := h.as(credentials.Peer{}, 1001) // the user number of red's administrator, in another namespace

	mustApply(t, red, nicFile("red", "a"))
	mustApply(t, blue, nicFile("blue", "a"))
	mustApply(t, red, file("apiVersion: vrdma.io/v1\nkind: Policy\nmetadata: {name: p, tenant: red}\nspec: {nics: {network: train}, deny: [{direction: in}]}\n"))

	for what, try := range map[string]func() error{
		"red changes blue's NICs":       func() error { _, err := Apply(red, nicFile("blue", "b"), false); return err },
		"red tries it dry":              func() error { _, err := Apply(red, nicFile("blue", "b"), true); return err },
		"blue deletes red's NIC":        func() error { _, err := Delete(blue, []tenant.Key{nicKey("red", "a")}, true, false); return err },
		"a stranger applies":            func() error { _, err := Apply(nobody, nicFile("red", "b"), false); return err },
		"a stranger deletes":            func() error { _, err := Delete(nobody, []tenant.Key{nicKey("red", "a")}, false, false); return err },
		"who may open a NIC deletes it": func() error { _, err := Delete(opener, []tenant.Key{nicKey("blue", "web")}, false, false); return err },
		"a container applies":           func() error { _, err := Apply(container, nicFile("red", "b"), false); return err },
		"red exports":                   func() error { _, err := Export(red); return err },
		"red imports":                   func() error { _, err := Import(red, nicFile("red", "b")[0], true, false); return err },
		"red deletes its tenant": func() error {
			_, err := Delete(red, []tenant.Key{{Kind: tenant.KindTenant, Name: "red"}}, true, false)
			return err
		},
		"red raises its quota": func() error {
			_, err := Apply(red, file(strings.Replace(twoAdministrators, "nics: 3", "nics: 9", 1)), false)
			return err
		},
		"red takes a VNI": func() error {
			_, err := Apply(red, file("apiVersion: vrdma.io/v1\nkind: Network\nmetadata: {name: n, tenant: red}\nspec: {vni: 200, subnets: [10.2.0.0/24]}\n"), false)
			return err
		},
		"red guarantees itself a rate": func() error {
			_, err := Apply(red, file("apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: b, tenant: red}\nspec: {network: train, guarantee: 1Gbit}\n"), false)
			return err
		},
		"an administrator through a listener": func() error {
			_, err := Apply(h.as(credentials.Peer{Resident: true, NIC: "red/a"}, 1001), nicFile("red", "b"), false)
			return err
		},
	} {
		wantDenied(t, what, try())
	}
	mustApply(t, red, nicFile("red", "b"))
	mustApply(t, red, nicFile("red", "c"))
	if _, err := Apply(red, nicFile("red", "d"), false); err == nil || !strings.Contains(err.Error(), "3") {
		t.Errorf("more than the quota: %v", err)
	}

	all := Selection{}
	for who, c := range map[string]struct {
		socket string
		want   []string
	}{
		"red":        {red, []string{"Tenant red", "Network red/train", "NIC red/a", "NIC red/b", "NIC red/c", "Policy red/p"}},
		"blue":       {blue, []string{"Tenant blue", "Network blue/train", "NIC blue/a", "NIC blue/web"}},
		"nobody":     {nobody, nil},
		"opener":     {opener, []string{"Network blue/train", "NIC blue/web"}},
		"container":  {container, nil},
		"a listener": {h.as(credentials.Peer{NIC: "red/a"}, 0), []string{"NIC red/a"}},
	} {
		if got := getNames(t, c.socket, all); !slices.Equal(got, c.want) {
			t.Errorf("%s sees %v, want %v", who, got, c.want)
		}
	}
	if got := getNames(t, op, all); len(got) != 10 {
		t.Errorf("the operator sees %v", got)
	}
	if got := getNames(t, op, Selection{Kind: tenant.KindNIC, Tenant: "red", Name: "a"}); len(got) != 1 {
		t.Errorf("one NIC: %v", got)
	}
	if got := getNames(t, op, Selection{Kind: tenant.KindTenant, Tenant: "red", Name: "red"}); len(got) != 1 {
		t.Errorf("one tenant: %v", got)
	}
	// The error does not say whether the object exists.
	_, hidden := Describe(red, nicKey("blue", "web"))
	_, absent := Describe(red, nicKey("blue", "none"))
	if hidden == nil || strings.ReplaceAll(hidden.Error(), "web", "none") != absent.Error() {
		t.Errorf("hidden: %v; absent: %v", hidden, absent)
	}
}

// TestEvents: every change is an event that names the caller. A caller sees the events of the objects that it may see.
func TestEvents(t *testing.T) {
	h := newHost(t, &store.Memory{})
	op, red := h.operator(), h.user(1001)
	mustApply(t, op, file(twoAdministrators))
	mustApply(t, red, nicFile("red", "a"))
	if _, err := Apply(red, nicFile("blue", "a"), false); err == nil {
		t.Fatal("red may change blue")
	}
	if _, err := Delete(red, []tenant.Key{nicKey("red", "a")}, false, false); err != nil {
		t.Fatal(err)
	}
	h.plane.Record(events.Event{Verb: events.Refused, Object: nicKey("blue", "web"), Peer: "10.1.0.9", Reason: "policy blue/p denies it"})

	read := func(socket string, which Selection, last int) (out []string) {
		s, err := Events(socket, which, last, false)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for {
			r, err := s.Next()
			if errors.Is(err, io.EOF) {
				return out
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range r.Events {
				out = append(out, fmt.Sprintf("%s %v by %d", e.Verb, e.Object, e.By.UID))
			}
		}
	}
	all := read(op, Selection{}, 0)
	want := []string{"applied NIC red/a by 1001", "refused NIC blue/a by 1001", "deleted NIC red/a by 1001", "refused NIC blue/web by 0"}
	if len(all) != 9 || !slices.Equal(all[5:], want) {
		t.Errorf("the operator sees %v", all)
	}
	if got := read(op, Selection{Kind: tenant.KindNIC, Tenant: "red"}, 1); !slices.Equal(got, want[2:3]) {
		t.Errorf("the last of red's NICs: %v", got)
	}
	if got, want := read(red, Selection{}, 0), []string{"applied Tenant red by 0", "applied Network red/train by 0", want[0], want[2]}; !slices.Equal(got, want) {
		t.Errorf("red sees %v, want %v", got, want)
	}
	if got := read(h.user(1003), Selection{}, 0); len(got) != 0 {
		t.Errorf("a stranger sees %v", got)
	}

	s, err := Events(op, Selection{}, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h.plane.Record(events.Event{Verb: events.Revoked, Object: nicKey("blue", "web")})
	var verbs []events.Verb
	for len(verbs) < 2 {
		r, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range r.Events {
			verbs = append(verbs, e.Verb)
		}
	}
	if !slices.Equal(verbs, []events.Verb{events.Refused, events.Revoked}) {
		t.Errorf("followed: %v", verbs)
	}
	// A plane that closes ends the streams of followers.
	go h.plane.Close()
	if _, err := s.Next(); err == nil {
		t.Error("there is more")
	}
}

// A watch lists the objects, then every change once and in order.
func TestWatch(t *testing.T) {
	h := newHost(t, &store.Memory{})
	op := h.operator()
	mustApply(t, op, file(twoAdministrators))
	w, err := Watch(h.user(1001), Selection{Kind: tenant.KindNIC})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if r, err := w.Next(); err != nil || !r.Synced || len(r.Items) != 0 {
		t.Fatalf("at first: %+v, %v", r, err)
	}
	const rounds = 60
	go func() {
		for i := range rounds {
			Apply(op, file(fmt.Sprintf("apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: a, tenant: red, labels: {n: \"%d\"}}\nspec: {network: train}\n", i)), false)
			Apply(op, nicFile("blue", "x"), false)
		}
		Delete(op, []tenant.Key{nicKey("red", "a")}, false, false)
	}()
	var labels []string
	for deleted := false; !deleted; {
		r, err := w.Next()
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range r.Items {
			if it.Key != nicKey("red", "a") {
				t.Fatalf("red is told of %v", it.Key)
			}
			if deleted = it.Deleted; deleted {
				continue
			}
			o, err := tenant.Unmarshal(it.Object)
			if err != nil {
				t.Fatal(err)
			}
			// The first is reported again when it is ready.
			if n := o.Meta().Labels["n"]; len(labels) == 0 || n != "0" {
				labels = append(labels, n)
			}
		}
	}
	for i := range rounds {
		if i >= len(labels) || labels[i] != fmt.Sprint(i) {
			t.Fatalf("change %d: %v", i, labels)
		}
	}
	if len(labels) != rounds {
		t.Errorf("%d changes, want %d: %v", len(labels), rounds, labels)
	}
}

// TestSlowWatch: a watcher that did not read gets the changes that it missed.
func TestSlowWatch(t *testing.T) {
	h := newHost(t, &store.Memory{})
	mustApply(t, h.operator(), file(twoAdministrators))
	w, err := Watch(h.operator(), Selection{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Next(); err != nil {
		t.Fatal(err)
	}
	// More than the socket and the feed hold, so that the watcher has to catch up.
	big := strings.Repeat("x", 60)
	for i := range 40 {
		text := ""
		for n := range 100 {
			text += fmt.Sprintf("---\napiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: n%d, tenant: blue, labels: {a: \"%s%d\"}}\nspec: {network: train}\n", n, big[:50], i)
		}
		mustApply(t, h.operator(), file(text))
	}
	last := make(map[tenant.Key]string)
	eventually(t, "the last change is told", func() bool {
		r, err := w.Next()
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range r.Items {
			if o, err := tenant.Unmarshal(it.Object); err == nil {
				last[it.Key] = o.Meta().Labels["a"]
			}
		}
		done := 0
		for _, a := range last {
			if strings.HasSuffix(a, "x39") {
				done++
			}
		}
		return done == 100
	})
}

// An export makes an equal world elsewhere, and replaces another.
func TestExportImport(t *testing.T) {
	a, b := newHost(t, &store.Memory{}), newHost(t, &store.Memory{})
	mustApply(t, a.operator(), example(t))
	text, err := Export(a.operator())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(text, "# vrdma store export: schema 1") {
		t.Errorf("it begins %.60q", text)
	}
	mustApply(t, b.operator(), file(strings.ReplaceAll(twoAdministrators, "blue", "green")))
	if _, err := Import(b.operator(), File{"export", text}, true, false); err != nil {
		t.Fatal(err)
	}
	if x, y := worldText(t, a.plane.World()), worldText(t, b.plane.World()); x != y {
		t.Errorf("exported\n%s\nimported\n%s", x, y)
	}
	c := newHost(t, &store.Memory{})
	if _, err := Import(c.operator(), File{"export", text}, false, false); err != nil || worldText(t, c.plane.World()) != worldText(t, a.plane.World()) {
		t.Errorf("into an empty store: %v", err)
	}
	if !slices.Equal(a.provisioner.has(), b.provisioner.has()) {
		t.Errorf("the provisioner has %v", b.provisioner.has())
	}
}

// TestRequestLimits: requests that are too long, malformed, or longer than their sender may send.
func TestRequestLimits(t *testing.T) {
	h := newHost(t, &store.Memory{})
	mustApply(t, h.operator(), file(twoAdministrators))
	long := func(socket string, bytes int) (*Reply, error) {
		return once(socket, &Request{Op: OpApply, Policy: &PolicyQuestion{From: strings.Repeat("#", bytes)}})
	}
	if _, err := long(h.user(1003), mostQuestion); err == nil {
		t.Error("a stranger sends a long request")
	}
	if _, err := long(h.user(1001), mostTenant); err == nil || !strings.Contains(err.Error(), "several files") {
		t.Errorf("an administrator's file that is too long: %v", err)
	}
	if _, err := long(h.operator(), mostRequest); err == nil || !strings.Contains(err.Error(), "several files") {
		t.Errorf("a file that is too long: %v", err)
	}
	s, err := protocol.DialObjects(h.operator())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.SendJSON(json.RawMessage(`{"op":["x"]}`))
	var r Reply
	if err := s.ReceiveJSON(&r); err != nil || r.Error == nil {
		t.Errorf("nonsense: %+v, %v", r, err)
	}
	if _, err := once(h.operator(), &Request{Op: "dance"}); err == nil || !strings.Contains(err.Error(), "dance") {
		t.Errorf("an unknown request: %v", err)
	}
	if _, err := once(h.operator(), &Request{Op: OpDescribe}); err == nil {
		t.Error("nothing is described")
	}
	// Everything charged is refunded.
	for _, uid := range []int{0, 1003} {
		a := h.budget.User(uid)
		eventually(t, "nothing is held", func() bool { used := a.Used(); return used == [len(used)]uint64{} })
		a.Drop()
	}
}

// An administrator's refused requests are kept as short events, under valid names, with a limit per second for all
// names together.
func TestRefusedIsBrief(t *testing.T) {
	h := newHost(t, &store.Memory{})
	op, red, blue := h.operator(), h.user(1001), h.user(1002)
	mustApply(t, op, file(twoAdministrators))
	mustApply(t, blue, nicFile("blue", "a"))
	long := strings.Repeat("x", 100<<10)
	var keys []tenant.Key
	for range mostKeys {
		keys = append(keys, nicKey("red", "x"))
	}
	for what, try := range map[string]func() error{
		"a long name":        func() error { _, err := Delete(red, []tenant.Key{nicKey("red", long)}, false, false); return err },
		"a long tenant":      func() error { _, err := Delete(red, []tenant.Key{nicKey(long, "x")}, false, false); return err },
		"a name with escape": func() error { _, err := Delete(red, []tenant.Key{nicKey("red", "\x1b[2J")}, false, false); return err },
		"a NIC of blue":      func() error { _, err := Delete(red, []tenant.Key{nicKey("blue", "a")}, false, false); return err },
		"many":               func() error { _, err := Delete(red, keys, false, false); return err },
		"too many":           func() error { _, err := Delete(red, append(keys, keys[0]), false, false); return err },
		"a long name in a file": func() error {
			_, err := Apply(red, nicFile("red", long), false)
			return err
		},
		"a file with many": func() error {
			_, err := Apply(red, file("apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: a, tenant: red}\nspec: {network: train, open: {uids: ["+strings.Repeat("a,", 100<<10)+"1]}}\n"), false)
			return err
		},
	} {
		if try() == nil {
			t.Errorf("%s: no error", what)
		}
	}
	recorded, _, _, _ := h.plane.journal.feed.after(0, 1<<30)
	refused := 0
	for _, e := range recorded {
		if e.Verb != events.Refused {
			continue
		}
		refused++
		if len(e.Reason) > 2000 || len(e.Object.Name) > 63 || len(e.Object.Tenant) > 63 || strings.Contains(e.Object.Name, "\x1b") {
			t.Errorf("an event with a reason of %d bytes about %.80q", len(e.Reason), e.Object)
		}
	}
	if refused == 0 {
		t.Error("no event tells of what was refused")
	}
	for i := range 200 {
		by := events.Actor{UID: 1001}
		if _, _, err := h.plane.Change(tenant.Caller{UID: 1001}, by, tenant.Change{Delete: []tenant.Key{nicKey("red", fmt.Sprint("n", i))}}, false); err == nil {
			t.Fatal("deleted what is not there")
		}
	}
	if more, _, _, _ := h.plane.journal.feed.after(0, 1<<30); len(more)-len(recorded) > 150 {
		t.Errorf("%d events of 200 refusals of one user", len(more)-len(recorded))
	}
}

// A limit per second applies to the events of one verb and object, and does not delay others.
func TestEventRate(t *testing.T) {
	j := NewJournal()
	for range 1000 {
		j.Record(events.Event{Verb: events.Refused, Object: nicKey("red", "web")})
	}
	j.Record(events.Event{Verb: events.Refused, Object: nicKey("blue", "web")})
	recorded, _, _, _ := j.feed.after(0, 10000)
	if n := len(recorded); n < eventBurst+1 || n > eventBurst+100 {
		t.Errorf("%d events are kept, want about %d", n, eventBurst+1)
	}
	if recorded[len(recorded)-1].Object.Tenant != "blue" {
		t.Error("blue's event is not kept")
	}
	for i, e := range recorded {
		if e.Sequence != uint64(i+1) {
			t.Fatalf("event %d has number %d", i, e.Sequence)
		}
	}
	// The next event says how many were left out.
	later := events.Event{Verb: events.Refused, Object: nicKey("red", "web"), Time: recorded[0].Time.Add(1 << 40)}
	j.Record(later)
	recorded, _, _, _ = j.feed.after(0, 10000)
	if last := recorded[len(recorded)-1]; last.Missed == 0 || last.Missed+uint64(len(recorded)) != 1002 {
		t.Errorf("%d events, the last says that %d are missing; want 1002 together", len(recorded), last.Missed)
	}
	// Memory is bounded for any number of kinds.
	for i := range 3 * mostKinds {
		j.Record(events.Event{Verb: events.Refused, Object: nicKey("red", fmt.Sprint(i))})
	}
	if n := j.kinds.Len(); n > mostKinds {
		t.Errorf("%d kinds are remembered", n)
	}
	if n := len(j.feed.items); n > keptEvents+keptEvents/4 {
		t.Errorf("%d events are kept", n)
	}
}

func BenchmarkRecord(b *testing.B) {
	j := NewJournal()
	e := events.Event{Verb: events.Refused, Object: nicKey("red", "web"), Reason: "policy"}
	b.ReportAllocs()
	for b.Loop() {
		j.Record(e)
	}
}

// Programs and container images choose parts of an event, which an operator prints.
func TestEventsArePrintable(t *testing.T) {
	j := NewJournal()
	j.Record(events.Event{
		Verb: events.Warned, Object: nicKey("red", "web"), Reason: "container \x1b]0;x\a: first\nsecond", Peer: "\u009b2J", By: events.Actor{Program: "a\rb"},
	})
	recorded, _, _, _ := j.feed.after(0, 10)
	e := recorded[0]
	if e.Reason != "container ?]0;x?: first; second" || e.Peer != "?2J" || e.By.Program != "a?b" {
		t.Errorf("got %q, %q, %q", e.Reason, e.Peer, e.By.Program)
	}
	b := Binding{Name: "\x1b[2J"}
	if got := b.Title(); got != "container ?[2J" {
		t.Errorf("title %q", got)
	}
}
