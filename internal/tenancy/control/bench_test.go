package control

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// largeWorld is 1000 NICs in 100 networks of 10 tenants, and 10 000 rules.
func largeWorld() string {
	var b strings.Builder
	object := func(kind, name, of, spec string) {
		fmt.Fprintf(&b, "---\napiVersion: vrdma.io/v1\nkind: %s\nmetadata: {name: %s", kind, name)
		if of != "" {
			fmt.Fprintf(&b, ", tenant: %s, labels: {role: r%s}", of, name[len(name)-1:])
		}
		fmt.Fprintf(&b, "}\nspec: %s\n", spec)
	}
	for t := range 10 {
		of := fmt.Sprintf("t%d", t)
		object("Tenant", of, "", "{weight: 1}")
		for n := range 10 {
			object("Network", fmt.Sprintf("net%d", n), of, fmt.Sprintf("{subnets: [10.%d.0.0/24]}", n))
			for i := range 10 {
				object("NIC", fmt.Sprintf("nic%d-%d", n, i), of, fmt.Sprintf("{network: net%d}", n))
			}
			rules := "{nics: {network: net" + fmt.Sprint(n) + "}, deny: [" + strings.Repeat("{direction: in, peer: {labels: {role: r1}}, service: {space: tcp, ports: [7471]}}, ", 99) + "{direction: out}]}"
			object("Policy", fmt.Sprintf("p%d", n), of, rules)
		}
	}
	return b.String()
}

// BenchmarkApply measures 1000 NICs and 10 000 rules from text to a synced file, without a provisioner, and then one
// more NIC.
func BenchmarkApply(b *testing.B) {
	text := largeWorld()
	for b.Loop() {
		b.StopTimer()
		s, _, err := store.Open(filepath.Join(b.TempDir(), "store"))
		if err != nil {
			b.Fatal(err)
		}
		h := newHost(b, s)
		op := h.operator()
		b.StartTimer()
		r := mustApply(b, op, file(text))
		b.StopTimer()
		if len(r.Results) != 10+100+1000+100 {
			b.Fatal(len(r.Results))
		}
		s.Close()
		b.StartTimer()
	}
}

func BenchmarkApplyOneMore(b *testing.B) {
	s, _, err := store.Open(filepath.Join(b.TempDir(), "store"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	h := newHost(b, s)
	op := h.operator()
	mustApply(b, op, file(largeWorld()))
	n := 0
	for b.Loop() {
		n++
		mustApply(b, op, file(fmt.Sprintf("apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: more, tenant: t0, labels: {n: \"%d\"}}\nspec: {network: net0}\n", n)))
	}
}

// BenchmarkOpen measures a daemon's start with the large world in its store.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "store")
	s, _, err := store.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	h := newHost(b, s)
	mustApply(b, h.operator(), file(largeWorld()))
	s.Close()
	for b.Loop() {
		s, _, err := store.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		p, err := Open(Config{Store: s})
		if err != nil {
			b.Fatal(err)
		}
		if n := len(p.World().Objects(tenant.KindNIC)); n != 1000 {
			b.Fatal(n)
		}
		p.Close()
		s.Close()
	}
}
