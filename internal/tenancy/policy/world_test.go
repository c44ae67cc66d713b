package policy

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// worldOf is the world of a file.
func worldOf(t testing.TB, text string) *tenant.World {
	t.Helper()
	objects, err := tenant.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	w, _, err := (&tenant.World{}).Next(tenant.Change{Put: objects}, rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestExample: in the example with two tenants red/web still reaches red/db, red/slow does not,
// and the tenants do not reach each other.
func TestExample(t *testing.T) {
	text, err := os.ReadFile("../../../examples/two-tenants.yaml")
	if err != nil {
		t.Fatal(err)
	}
	w := worldOf(t, string(text))
	r := Compile(w, nil)
	nic := func(path string) tenant.Key {
		owner, name, _ := strings.Cut(path, "/")
		return tenant.Key{Kind: tenant.KindNIC, Tenant: owner, Name: name}
	}
	for _, c := range []struct{ from, to, want string }{
		{"red/web", "red/db", "allowed: send, write, read, atomic: red/db, in: no policy says otherwise"},
		{"red/slow", "red/db", "denied: red/db, in: policy red/no-batch-to-store, deny rule 1"},
		{"red/db", "red/slow", "allowed: send, write, read, atomic: red/slow, in: no policy says otherwise"},
		{"blue/web", "blue/db", "allowed: send, write, read, atomic: blue/db, in: no policy says otherwise"},
		{"red/web", "blue/db", "denied: red/web: blue/db is in another network, which cannot be reached"},
	} {
		a, err := r.Explain(nic(c.from), nic(c.to), ib.Contact{Type: ib.RC, By: ib.Us, ID: 0x106<<16 | 7471})
		if err != nil {
			t.Fatal(err)
		}
		if a.String() != c.want {
			t.Errorf("%s to %s: %s, want %s", c.from, c.to, a, c.want)
		}
	}
	// Both have 10.1.0.2, each in a network of its own.
	db := ib.GIDOf(w.NIC("red", "db").Spec.Addresses[0])
	slow := ib.Contact{Type: ib.RC, By: ib.Us, ID: 0x106<<16 | 1}
	if ops, known := r.NIC(nic("red/slow")).Judge(db, slow); ops != 0 || !known {
		t.Errorf("red/slow to %v: %04b, %v", db.Addr(), ops, known)
	}
	if ops, known := r.NIC(nic("blue/web")).Judge(db, slow); ops == 0 || !known {
		t.Errorf("blue/web to %v: %04b, %v", db.Addr(), ops, known)
	}
	if again := Compile(w, r); again.NIC(nic("red/db")) != r.NIC(nic("red/db")) {
		t.Error("the same world has other rules")
	}
}

// TestSurvey: services with the same answer share one line.
func TestSurvey(t *testing.T) {
	w := train(policyOf("p", tenant.PolicySpec{
		NICs: tenant.Selector{Names: []string{"db"}},
		Allow: []tenant.Rule{{Direction: tenant.In, Service: &tenant.Service{Space: "tcp", Ports: []tenant.PortRange{
			{First: 7471, Last: 7471}, {First: 18000, Last: 65535}, {First: 7472, Last: 7480},
		}}}},
	}))
	list, err := w.rules().Survey(key("web"), key("db"), ib.RC)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range list {
		got = append(got, fmt.Sprint(&s, " ", s.Answer.Allowed()))
	}
	want := "manual false, tcp:0-7470 false, tcp:7471-7480 true, tcp:7481-17999 false, tcp:18000-65535 true, udp false, ib false"
	if strings.Join(got, ", ") != want {
		t.Errorf("%s\nwant %s", strings.Join(got, ", "), want)
	}
}
