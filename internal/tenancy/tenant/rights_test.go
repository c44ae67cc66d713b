package tenant

import (
	"strings"
	"testing"
)

// many is a list of n rules.
func many(n int) string {
	return "nics: {}, deny: [" + strings.Repeat("{direction: in}, ", n-1) + "{direction: in}]"
}

func TestRights(t *testing.T) {
	w := apply(t, &World{}, tenant("red", "administrators: {uids: [1000], gids: [50]}")+tenant("blue", "")+
		of("Network", "red/n", "subnets: [10.0.0.0/24]")+of("Network", "blue/n", "subnets: [10.0.0.0/24]")+
		of("NIC", "red/a", "network: n, open: {uids: [7], gids: [8]}")+of("NIC", "red/b", "network: n")+of("NIC", "blue/a", "network: n")+
		of("NIC", "red/g", "network: n, guarantee: 1Gbit")+of("Policy", "red/p", "nics: {}, deny: [{}]"))
	operator, admin, group := Caller{Operator: true, UID: 5}, Caller{UID: 1000}, Caller{UID: 2, GIDs: []int{3, 50}}
	user, other := Caller{UID: 7}, Caller{UID: 9, GIDs: []int{9}}
	nic, policy := parse(t, of("NIC", "red/c", "network: n")), parse(t, of("Policy", "red/q", "nics: {}, deny: [{}]"))
	for _, c := range []struct {
		name  string
		who   Caller
		what  Change
		error string
	}{
		{"operator", operator, Change{Put: parse(t, tenant("green", "")), Delete: keys(t, "Tenant blue")}, ""},
		{"NIC by uid", admin, Change{Put: nic, Delete: keys(t, "NIC red/a")}, ""},
		{"policy by gid", group, Change{Put: policy, Delete: keys(t, "Policy red/p")}, ""},
		{"user", user, Change{Put: nic}, "f.yaml:2: NIC red/c: user 7 is not an administrator of tenant red"},
		{"other tenant", admin, Change{Delete: keys(t, "NIC blue/a")}, "NIC blue/a: user 1000 is not an administrator of tenant blue"},
		{"no tenant", admin, Change{Delete: keys(t, "NIC green/a")}, "is not an administrator of tenant green"},
		{"network", admin, Change{Put: parse(t, of("Network", "red/n", "subnets: [10.0.0.0/16]"))}, "only the operator may change a Network"},
		{"quota", admin, Change{Put: parse(t, tenant("red", ""))}, "only the operator may change a Tenant"},
		{"tenant", admin, Change{Delete: keys(t, "Tenant red"), Force: true}, "only the operator may change a Tenant"},
		{"guarantee", admin, Change{Put: parse(t, of("NIC", "red/a", "network: n, guarantee: 1Mbit"))}, "spec.guarantee: 1Mbit: only the operator may guarantee"},
		{"guarantee that is there", admin, Change{Put: parse(t, of("NIC", "red/g", "network: n, guarantee: 1Gbit, rate: {in: 1Gbit}"))}, ""},
		{"rules", admin, Change{Put: parse(t, of("Policy", "red/q", many(900)))}, ""},
		{"too many rules", admin, Change{Put: parse(t, of("Policy", "red/q", many(1100)))}, "f.yaml:2: Policy red/q: the policies of tenant red would have 1103 rules, ports, names and labels, and its administrators may declare 1000"},
		{"too many together", admin, Change{Put: parse(t, of("Policy", "red/q", many(500))+of("Policy", "red/r", many(500)))}, "would have 1004 rules"},
		{"and others are deleted", admin, Change{Put: parse(t, of("Policy", "red/q", many(998))), Delete: keys(t, "Policy red/p")}, ""},
		{"too many by the operator", operator, Change{Put: parse(t, of("Policy", "red/q", many(5000)))}, ""},
		{"ports", admin, Change{Put: parse(t, of("Policy", "red/q", "nics: {}, deny: [{service: {space: tcp, ports: ["+strings.TrimSuffix(strings.Repeat("7, ", 1100), ", ")+"]}}]"))}, "would have 1104 rules"},
		{"users", admin, Change{Put: parse(t, of("NIC", "red/a", "network: n, open: {uids: ["+strings.TrimSuffix(strings.Repeat("7, ", 101), ", ")+"]}"))}, "NIC red/a: it has 101 labels, users and groups, and administrators may give it 100"},
		{"class", admin, Change{Put: parse(t, of("NIC", "red/a", "network: n, class: latency, rate: {out: 1Mbit}"))}, "spec.class: only the operator"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := w.May(c.who, c.what)
			switch {
			case c.error == "" && err != nil:
				t.Error(err)
			case c.error != "" && err == nil:
				t.Error("they may")
			case c.error != "":
				wantLines(t, err.Error(), c.error)
			}
		})
	}
	for _, c := range []struct {
		who  Caller
		want string
	}{
		{operator, "blue red blue/n red/n blue/a red/a red/b red/g red/p "},
		{admin, "red red/n red/a red/b red/g red/p "},
		{user, "red/n red/a "},
		{Caller{UID: 1, GIDs: []int{8}}, "red/n red/a "},
		{other, ""},
	} {
		got := ""
		for _, o := range w.Objects("") {
			if w.MayRead(c.who, o) {
				got += o.Key().Path() + " "
			}
		}
		if got != c.want {
			t.Errorf("%+v sees %q, want %q", c.who, got, c.want)
		}
	}
}

// TestRulesThatAreThere: rules that the operator declared may stay, and become fewer.
func TestRulesThatAreThere(t *testing.T) {
	w := apply(t, &World{}, tenant("red", "administrators: {uids: [1000]}")+of("Network", "red/n", "subnets: [10.0.0.0/24]")+of("Policy", "red/p", many(2000)))
	admin := Caller{UID: 1000}
	if err := w.May(admin, Change{Put: parse(t, of("Policy", "red/p", many(1999)))}); err != nil {
		t.Error(err)
	}
	if err := w.May(admin, Change{Put: parse(t, of("Policy", "red/q", many(1)))}); err == nil {
		t.Error("there may be more")
	}
}
