package control

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A node is a host that shares its store.
type node struct {
	*host
	way *remote
}

func config(s store.Store, provisioner Provisioner, name string, number int) Config {
	return Config{
		Store: s, Provisioner: provisioner, Host: name, Identity: "machine of " + name,
		Self: tenant.HostSpec{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(number)})}, Version: "test", Features: 1},
	}
}

// join opens a plane on a store that others have, too.
func join(t testing.TB, s *store.Memory, name string, number int) *node {
	t.Helper()
	n := &node{host: &host{t: t, provisioner: newFakeProvisioner(), budget: budget.New(budget.ThisMachine().Limits()), dir: t.TempDir()}, way: &remote{Memory: s}}
	n.store = n.way
	n.restart(config(n.way, n.provisioner, name, number))
	t.Cleanup(func() {
		n.way.partition(false)
		n.plane.Close()
		n.work.Wait()
	})
	return n
}

func (n *node) restart(c Config) {
	n.t.Helper()
	var err error
	if n.plane, err = Open(c); err != nil {
		n.t.Fatal(err)
	}
}

// open opens a NIC as a program does.
func (n *node) open(k tenant.Key) error {
	n.provisioner.set(func() { n.provisioner.used[k] = []string{"a program"} })
	err := n.plane.Claim(k)
	if err != nil {
		n.provisioner.set(func() { delete(n.provisioner.used, k) })
	}
	return err
}

// end ends the program.
func (n *node) end(k tenant.Key) {
	n.provisioner.set(func() { delete(n.provisioner.used, k) })
	n.plane.tidy()
}

// chart returns the map that the provisioner has.
func (n *node) chart() *overlay.Map {
	n.provisioner.mu.Lock()
	defer n.provisioner.mu.Unlock()
	return n.provisioner.overlayMap
}

// at returns the host of an address of a network in a node's map.
func (n *node) at(vni uint32, a string) string {
	m := n.chart().Find(vni, netip.MustParseAddr(a))
	if m == nil {
		return ""
	}
	return m.Host.Name
}

const pinned = `apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: red}
---
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: blue}
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
metadata: {name: web, tenant: red}
spec: {network: train, address: 10.1.0.1, host: a}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: db, tenant: red}
spec: {network: train, address: 10.1.0.2, host: b}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: web, tenant: blue}
spec: {network: train, address: 10.1.0.1, host: b}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: roams, tenant: red}
spec: {network: train, address: 10.1.0.9}
`

func nic(of, name, spec string) []File {
	return file("apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: " + name + ", tenant: " + of + "}\nspec: " + spec + "\n")
}

// Writes of others are not lost while a plane reads the whole store.
func TestWrittenWhileRead(t *testing.T) {
	s := &store.Memory{}
	a, b := join(t, s, "a", 1), join(t, s, "b", 2)
	mustApplyTo(t, a.plane, pinned)
	k := nicKey("red", "roams")
	if err := a.open(k); err != nil {
		t.Fatal(err)
	}
	knows := func(open bool) func() bool {
		return func() bool {
			at := b.plane.snapshots.now.Load().placements[k]
			return at.Host == "a" && at.Open == open
		}
	}
	eventually(t, "b hears that a has opened it", knows(true))
	ended := false
	b.way.onList(func() {
		b.way.onList(nil)
		ended = true
		a.end(k)
		eventually(t, "b hears that a has given it up", knows(false))
	})
	if err := b.plane.relist(); err != nil {
		t.Fatal(err)
	}
	if !ended || !knows(false)() {
		t.Errorf("b has %+v, which a has given up", b.plane.snapshots.now.Load().placements[k])
	}
	if err := b.open(k); err != nil {
		t.Errorf("b cannot open it: %v", err)
	}
}

// A daemon that registers while it reads the store is not fenced by its predecessor's registration.
func TestNotFencedByItsPast(t *testing.T) {
	s := &store.Memory{}
	a, b := join(t, s, "a", 1), join(t, s, "b", 2) // a registers, and ends
	a.plane.Close()
	a.way.partition(true)
	a.restart(config(a.way, a.provisioner, "a", 1)) // cannot register yet
	mustApplyTo(t, b.plane, pinned)
	registered := false
	a.way.onList(func() {
		a.way.onList(nil)
		a.plane.tidy()
		registered = a.plane.registration.registered.Load()
	})
	a.plane.changing.Lock() // it learns of b's change by reading the store
	a.way.partition(false)
	err := a.plane.refresh()
	a.plane.changing.Unlock()
	if err != nil || !registered {
		t.Fatal(registered, err)
	}
	if why := a.plane.Fenced(); why != "" || !slices.Contains(a.provisioner.has(), "red/web") {
		t.Error(why, a.provisioner.has())
	}
}

// TestForgeable checks which hosts of a network are said to trust their users: those without published source ports, in networks of way
// vxlan that are on several hosts and not encrypted.
func TestForgeable(t *testing.T) {
	s := &store.Memory{}
	a := join(t, s, "a", 1)
	c := config(&remote{Memory: s}, newFakeProvisioner(), "b", 2)
	c.Self.SourcePorts = []uint16{50000}
	b := &node{host: &host{t: t}}
	b.restart(c)
	t.Cleanup(b.plane.Close)
	op := a.operator()
	mustApply(t, op, file(pinned+`---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: alone, tenant: red}
spec: {way: host}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: pods, tenant: red}
spec: {way: namespace}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: pod-a, tenant: red}
spec: {network: pods, host: a}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: pod-b, tenant: red}
spec: {network: pods, host: b}
`))
	check := func(want map[string][]string) {
		t.Helper()
		eventually(t, "both hosts are known", func() bool { return len(getHosts(t, op)) == 2 })
		r, err := Get(op, Selection{Kind: tenant.KindNetwork})
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range r.Items {
			if got := it.Forgeable; !slices.Equal(got, want[it.Key.Path()]) {
				t.Errorf("%s: %v, want %v", it.Key.Path(), got, want[it.Key.Path()])
			}
		}
	}
	check(map[string][]string{"red/train": {"a"}}) // blue/train is on one host
	mustApply(t, op, nic("blue", "db", "{network: train, address: 10.1.0.2, host: a}"))
	check(map[string][]string{"red/train": {"a"}, "blue/train": {"a"}})
	mustApply(t, op, file("apiVersion: vrdma.io/v1\nkind: Network\nmetadata: {name: train, tenant: red}\nspec: {vni: 100, subnets: [10.1.0.0/24], encryption: true}\n"))
	check(map[string][]string{"blue/train": {"a"}})
}

// A NIC that the provisioner accepts only at the second attempt also has its path to other hosts.
func TestLateNICIsCharted(t *testing.T) {
	s := &store.Memory{}
	a, b := join(t, s, "a", 1), join(t, s, "b", 2)
	for _, name := range []string{"web", "roams"} {
		a.provisioner.set(func() { a.provisioner.broken[nicKey("red", name)] = errors.New("no directory") })
	}
	mustApply(t, a.operator(), file(pinned))
	eventually(t, "b has its NICs", func() bool { return len(b.provisioner.has()) == 3 })
	a.provisioner.set(func() { clear(a.provisioner.broken) })
	eventually(t, "a has its NICs, and knows where the others are", func() bool {
		return slices.Equal(a.provisioner.has(), []string{"red/roams", "red/web"}) && a.at(100, "10.1.0.1") == "a" && a.at(100, "10.1.0.2") == "b"
	})
}

// Two hosts share one store. Each has its NICs, and a map of the others' NICs.
func TestTwoHosts(t *testing.T) {
	s := &store.Memory{}
	a, b := join(t, s, "a", 1), join(t, s, "b", 2)
	aop, bop := a.operator(), b.operator()
	mustApply(t, aop, file(pinned))
	if got := a.provisioner.has(); !slices.Equal(got, []string{"red/roams", "red/web"}) {
		t.Errorf("a has %v", got)
	}
	eventually(t, "b has its NICs and a map", func() bool {
		return slices.Equal(b.provisioner.has(), []string{"blue/web", "red/db", "red/roams"}) && b.at(100, "10.1.0.1") == "a" && b.at(200, "10.1.0.1") == "b"
	})
	eventually(t, "a has heard of b, and finds red/db there", func() bool { return a.at(100, "10.1.0.2") == "b" })
	if m := a.chart(); m.Network(200) != nil || m.VNI("red/train") != 100 || m.HostAt(netip.MustParseAddr("192.0.2.2")).Name != "b" {
		t.Error("a's map is not of its own networks")
	}
	if h := a.chart().Hosts(100); len(h) != 1 || h[0].Name != "b" || h[0].Features != 1 || h[0].Self {
		t.Errorf("the other hosts of red/train: %+v", h)
	}

	// The NIC belongs to the host that opens it first. Meanwhile another host's open is refused with the first host's
	// name.
	roams := nicKey("red", "roams")
	if a.at(100, "10.1.0.9") != "" {
		t.Error("a NIC that nobody has opened is somewhere")
	}
	if err := b.open(roams); err != nil {
		t.Fatal(err)
	}
	if got := b.at(100, "10.1.0.9"); got != "b" {
		t.Errorf("opened on b, it is on %q there", got)
	}
	eventually(t, "a knows where it is", func() bool { return a.at(100, "10.1.0.9") == "b" })
	if err := a.open(roams); err == nil || !strings.Contains(err.Error(), "is on host b") {
		t.Errorf("opened on a as well: %v", err)
	}
	status := func(op string) *Status {
		r, err := Describe(op, roams)
		if err != nil {
			t.Fatal(err)
		}
		return r.Items[0].Status
	}
	if st := status(aop); st.State != Elsewhere || st.Host != "b" {
		t.Errorf("on a its status is %+v", st)
	}
	if st := status(bop); st.State != Ready || st.Host != "b" || st.Socket == "" {
		t.Errorf("on b its status is %+v", st)
	}

	// While b uses it, a can neither delete nor move it.
	for what, f := range map[string]func() error{
		"delete": func() error { _, err := Delete(aop, []tenant.Key{roams}, false, false); return err },
		"pin": func() error {
			_, err := Apply(aop, nic("red", "roams", "{network: train, host: a}"), false)
			return err
		},
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), "in use on host b") {
			t.Errorf("%s: %v", what, err)
		}
	}

	// After b has closed it, a can open it. The generation increases, and the address stays.
	b.end(roams)
	eventually(t, "it was given up", func() bool { return !a.plane.snapshots.now.Load().placements[roams].Open })
	if got := a.at(100, "10.1.0.9"); got != "b" {
		t.Errorf("given up, it is on %q", got)
	}
	if err := a.open(roams); err != nil {
		t.Fatal(err)
	}
	if at := a.plane.snapshots.now.Load().placements[roams]; at.Host != "a" || at.Generation != 2 || !at.Open {
		t.Errorf("its placement is %+v", at)
	}
	eventually(t, "b learns that it has moved", func() bool { return b.at(100, "10.1.0.9") == "a" })
	a.end(roams)

	// With spec.host it moves at once.
	mustApply(t, bop, nic("red", "web", "{network: train, host: b}"))
	eventually(t, "both know", func() bool { return a.at(100, "10.1.0.1") == "b" && b.at(100, "10.1.0.1") == "b" })
	eventually(t, "it left a", func() bool { return !slices.Contains(a.provisioner.has(), "red/web") })
	if !slices.Contains(b.provisioner.has(), "red/web") {
		t.Error("it is not on b")
	}

	// Deleting the NIC deletes its placement.
	eventually(t, "b knows that a has given it up", func() bool { return !b.plane.snapshots.now.Load().placements[roams].Open })
	if _, err := Delete(bop, []tenant.Key{roams}, false, false); err != nil {
		t.Fatal(err)
	}
	if list, _, _ := s.List("place/red/train/roams"); len(list) != 0 {
		t.Errorf("a deleted NIC has a placement: %v", list)
	}
	eventually(t, "a has no NIC of red any more", func() bool { return a.chart().Network(100) == nil })
}

// getHosts are the hosts that a plane tells of: name, type, state.
func getHosts(t *testing.T, op string) (out []string) {
	t.Helper()
	r, err := Get(op, Selection{Kind: tenant.KindHost})
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range r.Items {
		o, err := tenant.Unmarshal(it.Object)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%s %s %s", it.Key.Name, o.(*tenant.Host).Spec.Type, it.Status.State))
	}
	return out
}

// A Linux host is declared, is a member, and is listed as enforcing nothing. A vrdma host is written by its own daemon,
// and apply does not change it; it can be deleted when it is dead.
func TestHosts(t *testing.T) {
	s := &store.Memory{}
	a, b := join(t, s, "a", 1), join(t, s, "b", 2)
	aop := a.operator()
	mustApply(t, aop, file(pinned))
	mustApply(t, aop, file("apiVersion: vrdma.io/v1\nkind: Host\nmetadata: {name: box}\nspec: {type: linux, address: 192.0.2.7}\n---\n"+
		"apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: box, tenant: red}\nspec: {network: train, address: 10.1.0.7, host: box, mac: '02:00:00:00:00:07'}\n"))
	m := a.chart().Find(100, netip.MustParseAddr("10.1.0.7"))
	if m == nil || !m.Host.Linux || m.MAC.String() != "02:00:00:00:00:07" || m.NIC != "red/box" {
		t.Fatalf("the Linux member is %+v", m)
	}
	eventually(t, "a has heard of all hosts", func() bool {
		return slices.Equal(getHosts(t, aop), []string{"a  ready", "b  ready", "box linux unwatched"})
	})
	if got := getHosts(t, a.user(1000)); len(got) != 0 {
		t.Errorf("others see hosts: %q", got)
	}
	for op, want := range map[string]string{aop: "a", a.user(1000): ""} {
		if r, err := Get(op, Selection{Kind: tenant.KindNIC}); err != nil {
			t.Error(err)
		} else if r.Host != want {
			t.Errorf("the host that answers: %q, want %q", r.Host, want)
		}
	}
	for what, c := range map[string]struct{ text, want string }{
		"a name of ours":          {"apiVersion: vrdma.io/v1\nkind: Host\nmetadata: {name: b}\nspec: {type: linux, address: 192.0.2.9}\n", "is a host that runs vrdma"},
		"one that is not written": {"apiVersion: vrdma.io/v1\nkind: Host\nmetadata: {name: z}\nspec: {address: 192.0.2.9}\n", "is written by its daemon"},
	} {
		if _, err := Apply(aop, file(c.text), false); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "test.yaml:") {
			t.Errorf("%s: %v", what, err)
		}
	}
	r := mustApply(t, aop, file("apiVersion: vrdma.io/v1\nkind: Host\nmetadata: {name: b}\nspec: {address: 192.0.2.99}\n"))
	if len(r.Warnings) != 1 || a.plane.registration.host(a.plane.snapshots.now.Load(), "b").Spec.Addresses[0].String() != "192.0.2.2" {
		t.Errorf("one of ours was applied: %v", r.Warnings)
	}
	text, err := Export(aop)
	if err != nil || !strings.Contains(text, "name: box") || strings.Contains(text, "192.0.2.1\n") {
		t.Errorf("%v; the export is\n%s", err, text)
	}

	// Its NIC is open on b when b dies.
	roams := nicKey("red", "roams")
	if err := b.open(roams); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a knows", func() bool { return a.plane.snapshots.now.Load().placements[roams].Open })
	hostB := tenant.Key{Kind: tenant.KindHost, Name: "b"}
	if _, err := Delete(aop, []tenant.Key{hostB}, false, false); err == nil || !strings.Contains(err.Error(), "alive") {
		t.Errorf("a host that lives was deleted: %v", err)
	}
	b.plane.Close()
	s.Commit(nil, []store.Write{{Key: "live/b", Delete: true}})
	eventually(t, "b is gone", func() bool { return slices.Contains(getHosts(t, aop), "b  gone") })
	if a.at(100, "10.1.0.9") != "b" {
		t.Error("the placements of a dead host do not stay")
	}
	if err := a.open(roams); err == nil || !strings.Contains(err.Error(), "vrdma delete host b") {
		t.Errorf("opened though b may have it: %v", err)
	}
	if _, err := Delete(aop, []tenant.Key{hostB}, false, false); err != nil {
		t.Fatal(err)
	}
	if got := getHosts(t, aop); len(got) != 2 {
		t.Errorf("hosts: %q", got)
	}
	if err := a.open(roams); err != nil {
		t.Errorf("its host was deleted: %v", err)
	}
	if got := a.at(100, "10.1.0.9"); got != "a" {
		t.Errorf("it is on %q", got)
	}
}

// A host's name belongs to one daemon.
func TestFencing(t *testing.T) {
	s := &store.Memory{}
	a := join(t, s, "a", 1)
	aop := a.operator()
	mustApply(t, aop, file(pinned))
	roams := nicKey("red", "roams")
	if err := a.open(roams); err != nil {
		t.Fatal(err)
	}

	// Another machine with the name a is refused while a lives.
	c := config(&remote{Memory: s}, newFakeProvisioner(), "a", 3)
	c.Identity = "another machine"
	if _, err := Open(c); err == nil || !strings.Contains(err.Error(), "--host-name") {
		t.Fatalf("a second daemon of one name: %v", err)
	}
	if a.plane.Fenced() != "" {
		t.Fatal("the first was fenced by one that was refused")
	}

	// The same machine starts again while the first daemon runs: the first is fenced. The same holds for a restart in
	// which the old process does not end.
	again := config(&remote{Memory: s}, newFakeProvisioner(), "a", 1)
	p, err := Open(again)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	eventually(t, "the first is fenced, serves nothing, and has no map", func() bool {
		return a.plane.Fenced() != "" && len(a.provisioner.has()) == 0 && a.chart().Network(100) == nil
	})
	if err := a.open(roams); err == nil || !strings.Contains(err.Error(), "taken the name a") {
		t.Errorf("a fenced host opens a NIC: %v", err)
	}
	r, err := Describe(aop, nicKey("red", "web"))
	if err != nil || r.Items[0].Status.State != Elsewhere || !strings.Contains(r.Items[0].Status.Reason, "taken the name") {
		t.Errorf("%+v, %v", r.Items[0].Status, err)
	}
	if at := p.snapshots.now.Load().placements[roams]; at.Open || at.Host != "a" || at.Generation != 1 {
		t.Errorf("what the first had open is %+v", at)
	}
	if err := p.Claim(roams); err != nil {
		t.Error(err)
	}

	// A declared host keeps its name.
	mustApplyTo(t, p, "apiVersion: vrdma.io/v1\nkind: Host\nmetadata: {name: box}\nspec: {type: linux, address: 192.0.2.7}\n")
	if _, err := Open(config(&remote{Memory: s}, newFakeProvisioner(), "box", 7)); err == nil || !strings.Contains(err.Error(), "type linux") {
		t.Errorf("a daemon has the name of a Linux host: %v", err)
	}
}

// mustApplyTo changes a plane that has no socket.
func mustApplyTo(t testing.TB, p *Plane, text string) {
	t.Helper()
	objects, err := Parse(file(text))
	if err == nil {
		_, _, err = p.Change(tenant.Caller{Operator: true}, events.Actor{}, tenant.Change{Put: objects}, false)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Two hosts that claim the same address do not break the others' maps.
func TestSameUnderlayAddress(t *testing.T) {
	s := &store.Memory{}
	a := join(t, s, "a", 1)
	join(t, s, "b", 2)
	mustApply(t, a.operator(), file(pinned))
	join(t, s, "c", 2)
	eventually(t, "it is reported", func() bool {
		recorded, _, _, _ := a.plane.journal.feed.after(0, 1000)
		return slices.ContainsFunc(recorded, func(e events.Event) bool {
			return strings.Contains(e.Reason, "Host c says that it has address 192.0.2.2")
		})
	})
	if got := a.at(100, "10.1.0.2"); got != "b" {
		t.Errorf("red/db is on %q", got)
	}
}

// A daemon without its store goes on, reports it, refuses changes, and catches up when the store is back.
func TestStoreAway(t *testing.T) {
	s := &store.Memory{}
	a, b := join(t, s, "a", 1), join(t, s, "b", 2)
	aop, bop := a.operator(), b.operator()
	mustApply(t, aop, file(pinned))
	roams, web := nicKey("red", "roams"), nicKey("red", "web")
	if err := a.open(roams); err != nil {
		t.Fatal(err)
	}
	mustApply(t, aop, nic("red", "free", "{network: train, address: 10.1.0.20}"))
	eventually(t, "each has heard of the other", func() bool { return a.at(100, "10.1.0.2") == "b" && b.at(100, "10.1.0.1") == "a" })
	a.way.partition(true)
	a.plane.tidy()
	if got := a.at(100, "10.1.0.2"); got != "b" {
		t.Errorf("red/db is on %q", got)
	}
	if err := a.open(web); err != nil {
		t.Errorf("a NIC of this host: %v", err)
	}
	if err := a.open(roams); err != nil {
		t.Errorf("a NIC that was open here: %v", err)
	}
	if err := a.open(nicKey("red", "free")); err == nil || !strings.Contains(err.Error(), "is on no host yet") {
		t.Errorf("a NIC that is nowhere: %v", err)
	}
	if _, err := Apply(aop, nic("red", "more", "{network: train}"), false); err == nil || !strings.Contains(err.Error(), "has not answered") {
		t.Errorf("a change: %v", err)
	}
	recorded, _, _, _ := a.plane.journal.feed.after(0, 1000)
	if !slices.ContainsFunc(recorded, func(e events.Event) bool { return strings.Contains(e.Reason, "has not answered") }) {
		t.Error("no event says that the store is away")
	}
	if a.plane.Age() == 0 || a.plane.Health().State != store.Away {
		t.Error("the store is not away")
	}
	if r, err := Get(aop, Selection{Kind: tenant.KindHost, Name: "b"}); err != nil || len(r.Items) != 1 || r.Items[0].Status.State != Unknown {
		t.Errorf("another host while the store is away: %+v, %v; want that nobody knows", r, err)
	}
	mustApply(t, bop, nic("red", "new", "{network: train, address: 10.1.0.30, host: b}"))
	if a.at(100, "10.1.0.30") != "" {
		t.Error("a knows what it cannot know")
	}
	a.way.partition(false)
	eventually(t, "a is in step", func() bool { return a.at(100, "10.1.0.30") == "b" })
	a.plane.tidy()
	if at := a.plane.snapshots.now.Load().placements[web]; at.Host != "a" || !at.Open {
		t.Errorf("what was opened meanwhile is not written down: %+v", at)
	}

	// A wiped store: nothing is removed, and the daemon reports it.
	list, _, _ := s.List("")
	var wipe []store.Write
	for _, e := range list {
		wipe = append(wipe, store.Write{Key: e.Key, Delete: true})
	}
	s.Commit(nil, wipe)
	eventually(t, "the alarm", func() bool { return strings.Contains(a.plane.health.alarm(), "wiped") })
	if len(a.provisioner.has()) != 3 || a.at(100, "10.1.0.2") != "b" {
		t.Errorf("something was torn down: a has %v", a.provisioner.has())
	}
	if _, err := Apply(aop, nic("red", "more", "{network: train}"), false); err == nil || !strings.Contains(err.Error(), "wiped") {
		t.Errorf("a change: %v", err)
	}
}

// While a host was cut off, the operator may have moved its NIC: then its programs lose the NIC.
func TestEvict(t *testing.T) {
	s := &store.Memory{}
	a, b := join(t, s, "a", 1), join(t, s, "b", 2)
	mustApply(t, a.operator(), file(pinned))
	roams := nicKey("red", "roams")
	if err := a.open(roams); err != nil {
		t.Fatal(err)
	}
	a.way.partition(true)
	s.Commit(nil, []store.Write{{Key: "live/a", Delete: true}})
	bop := b.operator()
	eventually(t, "a is gone for b", func() bool { return slices.Contains(getHosts(t, bop), "a  gone") })
	if _, err := Delete(bop, []tenant.Key{{Kind: tenant.KindHost, Name: "a"}}, false, false); err != nil {
		t.Fatal(err)
	}
	if err := b.open(roams); err != nil {
		t.Fatal(err)
	}
	a.way.partition(false)
	eventually(t, "a's program loses it, a is registered again", func() bool {
		a.plane.tidy()
		recorded, _, _, _ := a.plane.journal.feed.after(0, 1000)
		return slices.ContainsFunc(recorded, func(e events.Event) bool { return e.Verb == events.Revoked && e.Object == roams }) && a.at(100, "10.1.0.9") == "b" &&
			a.plane.snapshots.now.Load().hosts["a"] != nil
	})
	if at := b.plane.snapshots.now.Load().placements[roams]; at.Host != "b" || !at.Open {
		t.Errorf("it is at %+v", at)
	}
}

// agrees reports whether a node's map equals the store's.
func (n *node) agrees(s *store.Memory) bool {
	whole, err := load(s, &tenant.World{})
	if err != nil {
		return false
	}
	m, self := n.chart(), n.plane.cfg.Host
	for _, o := range whole.world.Objects(tenant.KindNetwork) {
		network := o.(*tenant.Network)
		member := false
		for _, c := range whole.world.NICs(network.Key()) {
			member = member || whole.where(c, self, true) == self
		}
		if member != (m.Network(network.Spec.VNI) != nil) {
			return false
		}
		for _, c := range whole.world.NICs(network.Key()) {
			at := m.Find(network.Spec.VNI, c.Spec.Addresses[0])
			where := whole.where(c, self, true)
			if member && (at == nil) != (where == "") || at != nil && at.Host.Name != where {
				return false
			}
		}
	}
	return true
}

// TestFirstAnswer: a question right after the start waits for the store, because the daemon knows only its copy.
func TestFirstAnswer(t *testing.T) {
	s := &store.Memory{}
	a, b := join(t, s, "a", 1), join(t, s, "b", 2)
	a.plane.Close()
	a.way.partition(true)
	a.restart(config(a.way, a.provisioner, "a", 1))
	mustApplyTo(t, b.plane, pinned)
	op := a.operator()
	type answer struct {
		r   *Reply
		err error
	}
	answers := make(chan answer)
	go func() {
		r, err := Get(op, Selection{Kind: tenant.KindNIC})
		answers <- answer{r, err}
	}()
	a.way.partition(false)
	if got := <-answers; got.err != nil || len(got.r.Items) == 0 {
		t.Errorf("get nics after the start: %+v, %v, want those of the store", got.r, got.err)
	}
}
