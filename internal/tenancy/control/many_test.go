package control

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/tenancy/policy"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// manyHosts is 10 000 NICs in 100 networks, on 100 hosts: h0 … h99, each with 100 NICs in all
// networks, and a policy a network.
func manyHosts(t testing.TB, s *store.Memory) {
	t.Helper()
	var objects []tenant.Object
	writes := []store.Write{}
	for h := range 100 {
		o := &tenant.Host{
			Metadata: tenant.Metadata{Name: fmt.Sprintf("h%d", h)},
			Spec:     tenant.HostSpec{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(h + 1)})}, Version: "test"},
		}
		value, err := encodeHost(o, "boot", "machine of "+o.Metadata.Name)
		if err != nil {
			t.Fatal(err)
		}
		writes = append(writes, store.Write{Key: prefixHost + o.Metadata.Name, Value: value})
	}
	for n := range 100 {
		of := fmt.Sprintf("t%d", n/10)
		if n%10 == 0 {
			objects = append(objects, &tenant.Tenant{Metadata: tenant.Metadata{Name: of}})
		}
		name := fmt.Sprintf("net%d", n)
		objects = append(objects, &tenant.Network{
			Metadata: tenant.Metadata{Name: name, Tenant: of}, Spec: tenant.NetworkSpec{VNI: uint32(n + 1), Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}},
		})
		for h := range 100 {
			objects = append(objects, &tenant.NIC{
				Metadata: tenant.Metadata{Name: fmt.Sprintf("nic%d-%d", n, h), Tenant: of, Labels: map[string]string{"role": fmt.Sprint(h % 7)}},
				Spec:     tenant.NICSpec{Network: name, Host: fmt.Sprintf("h%d", h), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 1, byte(h + 1)})}},
			})
		}
		objects = append(objects, rule(of, name, 1))
	}
	for _, o := range objects {
		value, err := encode(o)
		if err != nil {
			t.Fatal(err)
		}
		writes = append(writes, store.Write{Key: keyOf(o), Value: value})
	}
	_, _, name := store.Name()
	if _, ok, err := s.Commit(nil, append(writes, name)); err != nil || !ok {
		t.Fatal(ok, err)
	}
}

// rule returns the policy of a network for a port.
func rule(of, network string, port int) *tenant.Policy {
	return &tenant.Policy{
		Metadata: tenant.Metadata{Name: "p-" + network, Tenant: of},
		Spec: tenant.PolicySpec{
			NICs: tenant.Selector{Network: network},
			Deny: []tenant.Rule{{Direction: tenant.In, Peer: tenant.Peer{Labels: map[string]string{"role": "1"}}, Service: &tenant.Service{Space: "tcp", Ports: []tenant.PortRange{{First: uint64(port), Last: uint64(port)}}}}},
		},
	}
}

// A compiler is a provisioner that compiles the rules of a world, as the real one does, and reports the end.
type compiler struct {
	*fakeProvisioner
	rules *policy.Rules
	done  chan time.Time
}

func (c *compiler) Enforce(w *tenant.World) {
	c.rules = policy.Compile(w, c.rules)
	select {
	case c.done <- time.Now():
	default:
	}
}

// TestManyHosts: a daemon that owns 100 of 10 000 NICs puts those, and has a map of all.
func TestManyHosts(t *testing.T) {
	s := &store.Memory{}
	manyHosts(t, s)
	n := join(t, s, "h0", 1)
	if got := len(n.provisioner.has()); got != 100 {
		t.Errorf("it has %d NICs, want 100", got)
	}
	for _, vni := range []uint32{1, 50, 100} {
		if got := n.at(vni, "10.1.1.100"); got != "h99" {
			t.Errorf("in network %d the last is on %q", vni, got)
		}
		if got := len(n.chart().Hosts(vni)); got != 99 {
			t.Errorf("network %d has %d other hosts", vni, got)
		}
	}
	// A change elsewhere changes only the map here.
	puts, charts := n.provisioner.puts(), n.provisioner.maps()
	other := join(t, s, "h1", 2)
	mustApplyTo(t, other.plane, "apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: more, tenant: t0}\nspec: {network: net0, address: 10.1.2.1, host: h1}\n")
	eventually(t, "the map has the new one", func() bool { return n.at(1, "10.1.2.1") == "h1" })
	if n.provisioner.puts() != puts || n.provisioner.maps() > charts+3 { // h1 was registered, perhaps; the NIC
		t.Errorf("%d NICs were put in again, %d maps were made", n.provisioner.puts()-puts, n.provisioner.maps()-charts)
	}
}

// BenchmarkStart measures a daemon's start with 10 000 NICs in the store, 100 of them its own.
func BenchmarkStart(b *testing.B) {
	s := &store.Memory{}
	manyHosts(b, s)
	for b.Loop() {
		p, err := Open(config(&remote{Memory: s}, &compiler{fakeProvisioner: newFakeProvisioner()}, "h0", 1))
		if err != nil {
			b.Fatal(err)
		}
		p.Close()
	}
}

// BenchmarkPolicyElsewhere measures the time from a policy change on one host until its rules apply on another, with 10
// 000 NICs.
func BenchmarkPolicyElsewhere(b *testing.B) {
	s := &store.Memory{}
	manyHosts(b, s)
	provisioner := &compiler{fakeProvisioner: newFakeProvisioner(), done: make(chan time.Time, 1)}
	p, err := Open(config(&remote{Memory: s}, provisioner, "h0", 1))
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	var took []time.Duration
	for n := range b.N {
		value, err := encode(rule("t0", "net0", 2+n%1000))
		if err != nil {
			b.Fatal(err)
		}
		select {
		case <-provisioner.done:
		default:
		}
		begin := time.Now()
		s.Commit(nil, []store.Write{{Key: "spec/policy/t0/p-net0", Value: value}, {Key: keyGeneration, Value: []byte(`{"schema":1}`)}})
		took = append(took, (<-provisioner.done).Sub(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
