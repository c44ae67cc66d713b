package tenant

import (
	"strings"
	"testing"
)

const faultWorld = `
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: red}
spec: {administrators: {uids: [1000]}}
---
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: blue}
spec: {administrators: {uids: [2000]}}
`

// faultOf is a Fault of a tenant with one rule.
func faultOf(tenant, rule string) string {
	return "apiVersion: vrdma.io/v1\nkind: Fault\nmetadata: {name: f, tenant: " + tenant + "}\nspec:\n  rules: [\"" + rule + "\"]\n"
}

func mustParse(t *testing.T, text string) []Object {
	t.Helper()
	objects, err := Parse("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// TestFaultRights: administrators declare Faults of their own tenant only, and only the operator those of the default
// NIC.
func TestFaultRights(t *testing.T) {
	w, _, err := new(World).Next(Change{Put: mustParse(t, faultWorld)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		of  string
		who Caller
		may bool
	}{
		{"red", Caller{UID: 1000}, true},
		{"red", Caller{UID: 2000}, false},
		{"blue", Caller{UID: 1000}, false},
		{"default", Caller{UID: 1000}, false},
		{"default", Caller{Operator: true}, true},
	} {
		c := Change{Put: mustParse(t, faultOf(test.of, "drop"))}
		if err := w.May(test.who, c); (err == nil) != test.may {
			t.Errorf("user %d, operator %v, Fault of %s: got %v, may %v", test.who.UID, test.who.Operator, test.of, err, test.may)
		}
		next, _, err := w.Next(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := next.ObjectsOf(KindFault, test.of); len(got) != 1 {
			t.Errorf("tenant %s has %d Faults, want 1", test.of, len(got))
		}
		gone, _, err := next.Next(Change{Delete: []Key{{KindFault, test.of, "f"}}}, nil)
		if err != nil || len(gone.ObjectsOf(KindFault, test.of)) != 0 {
			t.Errorf("tenant %s: the Fault cannot be deleted: %v", test.of, err)
		}
	}
}

// TestFaultErrors: what is wrong with a Fault is reported with file and line.
func TestFaultErrors(t *testing.T) {
	w, _, err := new(World).Next(Change{Put: mustParse(t, faultWorld)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ text, want string }{
		{faultOf("red", "lose"), `f.yaml:5: Fault red/f: spec.rules[0]: "lose" is not a fault`},
		{faultOf("red", "drop,probability=7"), "f.yaml:5: Fault red/f: spec.rules[0]: probability:"},
		{faultOf("green", "drop"), `f.yaml:3: Fault green/f: metadata.tenant: there is no tenant "green"`},
		{strings.Replace(faultOf("red", "drop"), "  rules: [\"drop\"]", "  nics: {}", 1), "spec: has no rules"},
		{strings.Replace(faultOf("default", "drop"), "spec:", "spec:\n  nics: {names: [a]}", 1), "spec.nics: tenant default has one NIC"},
	} {
		objects, err := Parse("f.yaml", []byte(test.text))
		if err == nil {
			_, _, err = w.Next(Change{Put: objects}, nil)
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want an error with %q", err, test.want)
		}
	}
}

// TestFaultRoundTrip: a Fault is stored and read again as it was.
func TestFaultRoundTrip(t *testing.T) {
	o := mustParse(t, faultOf("red", "delay,time=5ms,probability=0.5%,op=send+write"))[0].(*Fault)
	text, err := Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	again, err := UnmarshalStrict(text)
	if err != nil || again.(*Fault).Spec.Rules[0] != o.Spec.Rules[0] {
		t.Errorf("stored as %s, read as %+v, %v", text, again, err)
	}
}
