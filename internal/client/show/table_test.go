package show

import (
	"os"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// exampleItems returns the objects of the example as a daemon returns them.
func exampleItems(t *testing.T, kind tenant.Kind) []control.Item {
	t.Helper()
	text, err := os.ReadFile("../../../examples/two-tenants.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := tenant.Parse("two-tenants.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	w, _, err := (&tenant.World{}).Next(tenant.Change{Put: objects}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var items []control.Item
	for _, o := range w.Objects(kind) {
		text, err := tenant.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		it := control.Item{Key: o.Key(), Object: text}
		if kind == tenant.KindNIC {
			it.Status = &control.Status{State: control.Ready, Since: time.Unix(0, 0).UTC(), Socket: "/s"}
		}
		items = append(items, it)
	}
	return items
}

func TestTables(t *testing.T) {
	for _, c := range []struct {
		kind tenant.Kind
		wide bool
		want string
	}{
		{tenant.KindTenant, false, `
NAME   WEIGHT   NICS   QUEUE-PAIRS   MEMORY   RATE-OUT   RATE-IN
blue   1        -      -             -        -          -
red    3        10     1000          4Gi      -          -
`},
		{tenant.KindNetwork, false, `
NAME         VNI   SUBNETS       MTU   DEFAULT   WAY     TRUSTS
blue/train   200   10.1.0.0/24   -     allow     vxlan   daemons
red/train    100   10.1.0.0/24   -     allow     vxlan   daemons
`},
		{tenant.KindNIC, true, `
NAME       NETWORK   ADDRESSES   HOST       STATE   CLASS   RATE-OUT   RATE-IN   GUARANTEE   OPEN   LABELS       REASON
blue/db    train     10.1.0.2    anywhere   ready   bulk    -          -         -           -      -            -
blue/web   train     10.1.0.1    anywhere   ready   bulk    -          -         -           -      -            -
red/db     train     10.1.0.2    anywhere   ready   bulk    -          -         -           -      role=store   -
red/slow   train     10.1.0.3    anywhere   ready   bulk    1Gbit      1Gbit     -           -      role=batch   -
red/web    train     10.1.0.1    anywhere   ready   bulk    -          -         -           -      role=web     -
`},
		{tenant.KindPolicy, false, `
NAME                    NETWORK   NICS         ALLOW   DENY
red/no-batch-to-store   train     role=store   0       1
`},
	} {
		var b strings.Builder
		if err := printTables(&b, exampleItems(t, c.kind), c.wide); err != nil {
			t.Fatal(err)
		}
		if got := "\n" + b.String(); got != c.want {
			t.Errorf("got%s\nwant%s", got, c.want)
		}
	}
}

// TestTrust checks whose packets a network is said to trust.
func TestTrust(t *testing.T) {
	for _, c := range []struct {
		way       tenant.Way
		forgeable []string
		text      string
		note      string // part of it
	}{
		{"", nil, "daemons", ""},
		{tenant.WayVXLAN, nil, "daemons", ""},
		{tenant.WayVXLAN, []string{"a", "b"}, "users of a,b", "any user of these hosts"},
		{tenant.WayHost, nil, "the hosts' network", "has not recognised"},
		{tenant.WayNamespace, nil, "the containers' network", "any program in a container's network"},
	} {
		network := &tenant.Network{Metadata: tenant.Metadata{Name: "n", Tenant: "red"}, Spec: tenant.NetworkSpec{Way: c.way}}
		if got := trustText(&network.Spec, c.forgeable); got != c.text {
			t.Errorf("way %q with %v: %q, want %q", c.way, c.forgeable, got, c.text)
		}
		text, err := tenant.Marshal(network)
		if err != nil {
			t.Fatal(err)
		}
		reply := &control.Reply{Items: []control.Item{{Key: network.Key(), Object: text, Forgeable: c.forgeable}}}
		var b strings.Builder
		if err := Description(&b, reply, time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); !strings.Contains(got, c.text+"\n") || !strings.Contains(got, c.note) || c.note == "" && strings.Contains(got, "forge") {
			t.Errorf("way %q with %v is described as\n%s", c.way, c.forgeable, got)
		}
	}
}

// The output of get can be applied.
func TestOutputIsInput(t *testing.T) {
	for _, output := range []string{"yaml", "json"} {
		for _, kind := range []tenant.Kind{"", tenant.KindNIC} {
			var b strings.Builder
			items := exampleItems(t, kind)
			if err := Objects(&b, items, output, false); err != nil {
				t.Fatal(err)
			}
			objects, err := tenant.Parse("out", []byte(b.String()))
			if err != nil || len(objects) != len(items) {
				t.Fatalf("%s: %d objects of %d: %v\n%s", output, len(objects), len(items), err, b.String())
			}
			for i, o := range objects {
				if text, err := tenant.Marshal(o); err != nil || string(text) != string(items[i].Object) {
					t.Errorf("%s: %s, want %s", output, text, items[i].Object)
				}
			}
		}
	}
}

func TestWatchedRows(t *testing.T) {
	items := exampleItems(t, tenant.KindNIC)
	var b strings.Builder
	rows := NewChanges(&b, "")
	if err := rows.Print(items[:1]); err != nil {
		t.Fatal(err)
	}
	if err := rows.Print([]control.Item{items[4], {Key: items[4].Key, Deleted: true}}); err != nil {
		t.Fatal(err)
	}
	const want = `NAME      NETWORK   ADDRESSES   HOST       STATE
blue/db   train     10.1.0.2    anywhere   ready
red/web   train     10.1.0.1    anywhere   ready
red/web   deleted
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestDescription(t *testing.T) {
	now := time.Unix(60, 0)
	items := exampleItems(t, tenant.KindNIC)
	reply := &control.Reply{
		Items: items[3:4], InUse: []string{"ib_write_bw, pid 5", "x, pid 6"},
		Events: []events.Event{{Time: time.Unix(50, 0), Verb: events.Applied, Object: items[3].Key, Reason: "created", By: events.Actor{Pid: 7, UID: 8, Program: "vrdma"}}},
	}
	var b strings.Builder
	if err := Description(&b, reply, now); err != nil {
		t.Fatal(err)
	}
	const want = `NIC      red/slow
Labels   role=batch
State    ready, for 1m0s
Socket   /s
Used by  ib_write_bw, pid 5
         x, pid 6
Spec
  network: train
  addresses:
    - 10.1.0.3
  rate:
    out: 1Gbit
    in: 1Gbit
Events
  TIME  applied      NIC red/slow by vrdma (uid 8, pid 7): created
`
	if got := strings.ReplaceAll(b.String(), reply.Events[0].Time.Local().Format(time.DateTime), "TIME"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
