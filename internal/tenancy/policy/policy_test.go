package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func nicOf(name string, addr string, labels map[string]string) *tenant.NIC {
	return &tenant.NIC{
		Metadata: tenant.Metadata{Name: name, Tenant: "red", Labels: labels},
		Spec:     tenant.NICSpec{Network: "train", Addresses: []netip.Addr{netip.MustParseAddr(addr)}},
	}
}

func role(v string) map[string]string { return map[string]string{"role": v} }

func train(policies ...*tenant.Policy) *naive {
	return &naive{
		network: &tenant.Network{Metadata: tenant.Metadata{Name: "train", Tenant: "red"}},
		nics: []*tenant.NIC{
			nicOf("web", "10.1.0.1", role("web")), nicOf("db", "10.1.0.2", role("store")), nicOf("slow", "10.1.0.3", role("batch")),
		},
		policies: policies,
	}
}

func policyOf(name string, s tenant.PolicySpec) *tenant.Policy {
	return &tenant.Policy{Metadata: tenant.Metadata{Name: name, Tenant: "red"}, Spec: s}
}

// noBatch is the policy of the example with two tenants.
func noBatch() *tenant.Policy {
	return policyOf("no-batch-to-store", tenant.PolicySpec{
		NICs: tenant.Selector{Network: "train", Labels: role("store")},
		Deny: []tenant.Rule{{Direction: tenant.In, Peer: tenant.Peer{Labels: role("batch")}}},
	})
}

func key(name string) tenant.Key {
	return tenant.Key{Kind: tenant.KindNIC, Tenant: "red", Name: name}
}

// TestSentences: the documentation's statements about rules.
func TestSentences(t *testing.T) {
	port := func(n ...uint64) *tenant.Service {
		s := &tenant.Service{Space: "tcp"}
		for _, p := range n {
			s.Ports = append(s.Ports, tenant.PortRange{First: p, Last: p})
		}
		return s
	}
	clients := policyOf("clients", tenant.PolicySpec{
		NICs:  tenant.Selector{Names: []string{"db"}},
		Allow: []tenant.Rule{{Direction: tenant.In, Peer: tenant.Peer{NIC: "web"}, Service: port(7471), Operations: []tenant.Operation{tenant.Send, tenant.Write}}},
	})
	closed := train()
	closed.network.Spec.Default = tenant.Deny
	for _, c := range []struct {
		name              string
		w                 *naive
		from, to, service string
		want              ib.Operations
		why               string
	}{
		{"no policy", train(), "slow", "db", "tcp:1", ib.AllOperations, "no policy says otherwise"},
		{"denied", train(noBatch()), "slow", "db", "tcp:1", 0, "red/db, in: policy red/no-batch-to-store, deny rule 1"},
		{"others are not", train(noBatch()), "web", "db", "tcp:1", ib.AllOperations, "no policy says otherwise"},
		{"nor is the other direction", train(noBatch()), "db", "slow", "tcp:1", ib.AllOperations, "no policy says otherwise"},
		{"by hand both directions count", train(noBatch()), "db", "slow", "manual", 0, "deny rule 1"},
		{"an allow list allows", train(clients), "web", "db", "tcp:7471", ib.OpSend | ib.OpWrite, "policy red/clients, allow rule 1"},
		{"and nothing else", train(clients), "web", "db", "tcp:7472", 0, "no allow rule of policy red/clients matches"},
		{"nobody else", train(clients), "slow", "db", "tcp:7471", 0, "no allow rule"},
		{"not by hand", train(clients), "web", "db", "manual", 0, "no allow rule"},
		{"in its direction only", train(clients), "db", "slow", "udp:5", ib.AllOperations, "no policy says otherwise"},
		{"deny wins", train(clients, policyOf("no", tenant.PolicySpec{Deny: []tenant.Rule{{Peer: tenant.Peer{NIC: "db"}}}})), "web", "db", "tcp:7471", 0, "policy red/no, deny rule 1"},
		{"default deny", closed, "web", "db", "tcp:1", 0, "the default of network red/train is deny"},
		{"itself", closed, "web", "web", "manual", ib.AllOperations, "it reaches itself"},
	} {
		contact, err := ContactOf("rc", c.service)
		if err != nil {
			t.Fatal(err)
		}
		a, err := c.w.rules().Explain(key(c.from), key(c.to), contact)
		if err != nil {
			t.Fatal(err)
		}
		if a.Operations != c.want || !strings.Contains(a.String(), c.why) {
			t.Errorf("%s: %s to %s: %s, want %s: …%s…", c.name, c.from, c.to, a, Names(c.want), c.why)
		}
	}
}

// TestUnknownAddresses: in a virtual network an address without a NIC does not exist. On the host's network rules about
// prefixes apply to it, and everywhere to groups.
func TestUnknownAddresses(t *testing.T) {
	w := train(policyOf("p", tenant.PolicySpec{Deny: []tenant.Rule{
		{Direction: tenant.Out, Peer: tenant.Peer{Prefix: netip.MustParsePrefix("192.0.2.0/24")}},
		{Direction: tenant.In, Peer: tenant.Peer{Prefix: netip.MustParsePrefix("239.0.0.0/8")}},
		{Peer: tenant.Peer{NIC: "web"}},
	}}))
	gid := func(s string) ib.GID { return ib.GIDOf(netip.MustParseAddr(s)) }
	us, them := ib.Contact{Type: ib.UD, By: ib.Us}, ib.Contact{Type: ib.UD, By: ib.Them}
	g := w.rules().NIC(key("db"))
	if ops, known := g.Judge(gid("192.0.2.1"), us); ops != 0 || known {
		t.Errorf("an address outside: %04b, known %v", ops, known)
	}
	if why := g.Why(gid("192.0.2.1"), us); !strings.Contains(why, "no NIC of network red/train") {
		t.Errorf("why: %s", why)
	}
	if ops, _ := g.Judge(gid("239.1.1.1"), us); ops == 0 {
		t.Error("sending to the group is refused")
	}
	if ops, _ := g.Judge(gid("239.1.1.1"), them); ops != 0 {
		t.Error("joining the group is allowed")
	}
	if why := g.Why(gid("239.1.1.1"), them); !strings.Contains(why, "policy red/p, deny rule 2") {
		t.Errorf("why: %s", why)
	}
	w.network.Spec.Way = tenant.WayHost
	g = w.rules().NIC(key("db"))
	for peer, want := range map[string][2]ib.Operations{
		"192.0.2.1": {0, ib.AllOperations}, "198.51.100.1": {ib.AllOperations, ib.AllOperations},
	} {
		out, known := g.Judge(gid(peer), us)
		in, _ := g.Judge(gid(peer), them)
		if out != want[0] || in != want[1] || !known {
			t.Errorf("%s: out %04b, in %04b, known %v, want %04b", peer, out, in, known, want)
		}
	}
}

// TestContainersAddresses: where NICs have the addresses of their containers, the NIC of an address is unknown. What is
// denied to some of them is denied to all, and what is allowed to some is allowed to none.
func TestContainersAddresses(t *testing.T) {
	them := ib.Contact{Type: ib.RC, By: ib.Them, ID: 0x106<<16 | 7471}
	allow := policyOf("batch-only", tenant.PolicySpec{Allow: []tenant.Rule{{Direction: tenant.In, Peer: tenant.Peer{Labels: role("batch")}}}})
	prefix := policyOf("prefix", tenant.PolicySpec{Deny: []tenant.Rule{{Peer: tenant.Peer{NIC: "slow", Prefix: netip.MustParsePrefix("10.88.0.0/16")}}}})
	for _, c := range []struct {
		policy *tenant.Policy
		peer   string
		want   ib.Operations
	}{
		{noBatch(), "10.88.0.4", 0}, {allow, "10.88.0.4", 0}, {prefix, "10.88.0.4", 0}, {prefix, "10.89.0.4", ib.AllOperations},
	} {
		w := train(c.policy)
		w.network.Spec.Way = tenant.WayNamespace
		for _, n := range w.nics {
			n.Spec.Addresses = nil
		}
		g := w.rules().NIC(key("db"))
		if ops, known := g.Judge(ib.GIDOf(netip.MustParseAddr(c.peer)), them); ops != c.want || !known {
			t.Errorf("%s, %s: %04b, known %v, want %04b", c.policy.Metadata.Name, c.peer, ops, known, c.want)
		}
		if why := g.Why(ib.GIDOf(netip.MustParseAddr(c.peer)), them); c.want == 0 && !strings.Contains(why, c.policy.Metadata.Name) {
			t.Errorf("%s, %s: why: %s", c.policy.Metadata.Name, c.peer, why)
		}
	}
}

// TestUnchanged: the guards of an unchanged network stay the same.
func TestUnchanged(t *testing.T) {
	w := train(noBatch())
	before := w.rules()
	again := successor(before)
	again.add(input{w.network, w.nics, w.policies}, before)
	if again.NIC(key("db")) != before.NIC(key("db")) {
		t.Error("nothing changed, but the guard did")
	}
	again.add(input{w.network, w.nics, nil}, before)
	if again.NIC(key("db")) == before.NIC(key("db")) {
		t.Error("the policy is gone, but the guard is the same")
	}
	if before.NIC(key("nobody")) != nil {
		t.Error("a guard of nobody")
	}
}

func TestContactOf(t *testing.T) {
	for _, s := range []string{"", "tcp", "tcp:", "tcp:70000", "sctp:1", "manual:1", "tcp:1:2"} {
		if c, err := ContactOf("rc", s); err == nil {
			t.Errorf("%q: %+v", s, c)
		}
	}
	if _, err := ContactOf("xrc", "manual"); err == nil {
		t.Error("xrc is a type")
	}
	c, err := ContactOf("UD", "udp:4791")
	if want := (ib.Contact{Type: ib.UD, By: ib.Us, ID: 0x111<<16 | 4791}); err != nil || c != want {
		t.Errorf("%+v, %v, want %+v", c, err, want)
	}
}

// large is 1000 NICs with 10 000 rules in networks of a size.
func large(size int) (inputs []input) {
	for n := range 1000 / size {
		net := fmt.Sprint("net", n)
		in := input{network: &tenant.Network{Metadata: tenant.Metadata{Name: net, Tenant: "red"}}}
		for i := range size {
			o := nicOf(fmt.Sprintf("n%d-%d", n, i), "10.0.0.1", map[string]string{"role": fmt.Sprint("r", i%10)})
			o.Spec.Network, o.Spec.Addresses = net, []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}
			in.nics = append(in.nics, o)
		}
		for p := range size {
			s := tenant.PolicySpec{NICs: tenant.Selector{Network: net, Names: []string{in.nics[p].Metadata.Name}}}
			for r := range 10 {
				s.Allow = append(s.Allow, tenant.Rule{
					Peer:    tenant.Peer{Labels: map[string]string{"role": fmt.Sprint("r", r)}},
					Service: &tenant.Service{Space: "tcp", Ports: []tenant.PortRange{{First: uint64(1000 * p), Last: uint64(1000*p + 99)}}},
				})
			}
			in.policies = append(in.policies, policyOf(fmt.Sprint("p", n, "-", p), s))
		}
		inputs = append(inputs, in)
	}
	return inputs
}

func compileLarge(inputs []input) *Rules {
	r := &Rules{networks: make(map[tenant.Key]*network), guards: make(map[tenant.Key]*Guard)}
	for _, in := range inputs {
		r.add(in, nil)
	}
	return r
}

// BenchmarkCompile compiles 1000 NICs and 10 000 rules.
func BenchmarkCompile(b *testing.B) {
	for _, size := range []int{10, 1000} {
		inputs := large(size)
		b.Run(fmt.Sprintf("networks of %d", size), func(b *testing.B) {
			for b.Loop() {
				compileLarge(inputs)
			}
		})
	}
}

// BenchmarkDecide decides between two NICs of 1000, each with rules of its own.
func BenchmarkDecide(b *testing.B) {
	in := large(1000)[0]
	r := compileLarge([]input{in})
	g := r.NIC(in.nics[7].Key())
	for name, c := range map[string]ib.Contact{"asked": {Type: ib.RC, By: ib.Us, ID: 0x106<<16 | 7050}, "manual": {Type: ib.RC}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				g.Judge(ib.GIDOf(in.nics[i%1000].Spec.Addresses[0]), c)
			}
		})
	}
	// All rules are about one NIC, and all of them apply to the peer.
	all := policyOf("all", tenant.PolicySpec{})
	for i := range 10_000 {
		all.Spec.Deny = append(all.Spec.Deny, tenant.Rule{Service: &tenant.Service{Space: "tcp", Ports: []tenant.PortRange{{First: uint64(i * 6), Last: uint64(i*6 + 2)}}}})
	}
	g = train(all).rules().NIC(key("web"))
	peer := ib.GIDOf(netip.MustParseAddr("10.1.0.2"))
	b.Run("of 10000 that match", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			g.Judge(peer, ib.Contact{Type: ib.RC, By: ib.Us, ID: 0x106<<16 | uint64(i&0xffff)})
		}
	})
}

// TestDecideDoesNotAllocate: the second and later decisions for a pair allocate nothing.
func TestDecideDoesNotAllocate(t *testing.T) {
	g := train(noBatch()).rules().NIC(key("db"))
	peer, other := ib.GIDOf(netip.MustParseAddr("10.1.0.3")), ib.GIDOf(netip.MustParseAddr("10.1.0.99"))
	if n := testing.AllocsPerRun(100, func() {
		g.Judge(peer, ib.Contact{Type: ib.RC})
		g.Judge(peer, ib.Contact{Type: ib.RC, By: ib.Them, ID: 0x106<<16 | 1})
		g.Judge(other, ib.Contact{Type: ib.RC})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestCellsAreBounded: a tenant with many ports in its policies and with different NICs cannot fill the memory by
// connecting each with each, and the decisions stay right.
func TestCellsAreBounded(t *testing.T) {
	const nics, ports = 30, 900
	file := &strings.Builder{}
	object := func(kind, name, spec string) {
		fmt.Fprintf(file, "apiVersion: vrdma.io/v1\nkind: %s\nmetadata: {%s}\nspec: {%s}\n---\n", kind, name, spec)
	}
	object("Tenant", "name: red", "weight: 1")
	object("Network", "name: n, tenant: red", "subnets: [10.0.0.0/24]")
	rules := make([]string, ports)
	for i := range rules {
		rules[i] = fmt.Sprintf("{direction: in, service: {space: tcp, ports: [%d]}}", 1000+2*i)
	}
	object("Policy", "name: ports, tenant: red", "nics: {network: n}, deny: ["+strings.Join(rules, ", ")+"]")
	for i := range nics {
		object("NIC", fmt.Sprintf("name: a%d, tenant: red", i), fmt.Sprintf("network: n, address: 10.0.0.%d", i+1))
		object("Policy", fmt.Sprintf("name: p%d, tenant: red", i), fmt.Sprintf("nics: {network: n, names: [a%d]}, deny: [{direction: in, peer: {nic: a%d}, service: {space: tcp, ports: [7]}}]", i, i))
	}
	r := Compile(worldOf(t, file.String()), nil)
	n := r.networks[tenant.Key{Kind: tenant.KindNetwork, Tenant: "red", Name: "n"}]
	most := int64(0)
	for i := range nics {
		g := r.NIC(tenant.Key{Kind: tenant.KindNIC, Tenant: "red", Name: fmt.Sprintf("a%d", i)})
		for j := range nics {
			if i == j {
				continue
			}
			peer := ib.GIDOf(netip.AddrFrom4([4]byte{10, 0, 0, byte(j + 1)}))
			for port, want := range map[uint64]bool{1000: false, 1001: true, 2798: false, 2799: true} {
				if ops, known := g.Judge(peer, ib.Contact{Type: ib.RC, By: ib.Them, ID: spaces["tcp"]<<16 | port}); !known || (ops != 0) != want {
					t.Fatalf("a%d from a%d at port %d: %v, %v", i, j, port, ops, known)
				}
			}
			most = max(most, n.held.Load())
		}
	}
	if most > mostHeld {
		t.Errorf("%d segments were held, want %d at most", most, mostHeld)
	}
	if made := int64(nics * (nics - 1) * 2 * ports); made < mostHeld {
		t.Errorf("only %d were made", made)
	}
}
