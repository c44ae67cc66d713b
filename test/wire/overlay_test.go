package wire

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// Virtual networks between hosts. Each daemon has its own store, which declares the other host as one without vrdma: so
// neither knows more of the other than VXLAN tells.

// tenantNIC is a declared NIC of a host, as a place for programs.
type tenantNIC struct {
	*host
	name string
	ip   string // inside
}

// Program implements harness.Machine.
func (n tenantNIC) Program(t testing.TB, argv ...string) harness.Program {
	return n.LaunchWith(t, []string{"--nic", n.name}, argv...)
}

// side is the NIC as one side of a conversation, whose parameters are exchanged over TCP in the underlay.
func (n tenantNIC) side() workload.Host { return workload.Host{Machine: n, IP: n.ip4} }

// declare applies objects to a daemon.
func (h *host) declare(t *testing.T, text string) {
	t.Helper()
	file := filepath.Join(harness.Directory(t, nil), "objects.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := h.Command("apply", "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("apply: %v\n%s\n%s", err, out, text)
	}
}

// overlayLab is two hosts with a NIC of the tenants red and blue each, in networks with the same
// addresses: 10.1.0.1 at a, .2 at b; and one each with fd01::1 and ::2.
func overlayLab(t *testing.T, l layout, underlay func(*host) string) (w *lab, nics map[string][2]tenantNIC) {
	t.Helper()
	harness.Need(t, "nsenter", "ip")
	w = newWire(t, l)
	for _, h := range []*host{w.a, w.b} {
		h.start(t, append([]string{"--store", filepath.Join(harness.Directory(t, nil), "store"), "--underlay", underlay(h)}, l.args...)...)
	}
	nics = make(map[string][2]tenantNIC)
	w.a.declare(t, networks(0, "other", underlay(w.b)))
	w.b.declare(t, networks(1, "other", underlay(w.a)))
	for _, name := range []string{"red", "blue"} {
		nics[name] = [2]tenantNIC{{w.a, name + "/n1", "10.1.0.1"}, {w.b, name + "/n2", "10.1.0.2"}}
		nics[name+"6"] = [2]tenantNIC{{w.a, name + "/m1", "fd01::1"}, {w.b, name + "/m2", "fd01::2"}}
	}
	return w, nics
}

// networks are the objects of overlayLab for one of its hosts.
func networks(self int, other, at string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: vrdma.io/v1\nkind: Host\nmetadata: {name: %s}\nspec: {type: linux, address: \"%s\"}\n", other, at)
	for i, name := range []string{"red", "blue"} {
		fmt.Fprintf(&b, "---\napiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: %s}\nspec: {}\n", name)
		fmt.Fprintf(&b, "---\napiVersion: vrdma.io/v1\nkind: Network\nmetadata: {name: train, tenant: %s}\nspec: {vni: %d, subnets: [10.1.0.0/24, \"fd01::/64\"]}\n", name, 100+i)
		for n := range 2 {
			where := ""
			if n != self {
				where = ", host: " + other
			}
			for _, nic := range []struct{ name, address string }{{"n", "10.1.0."}, {"m", "fd01::"}} {
				fmt.Fprintf(&b, "---\napiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: %s%d, tenant: %s}\nspec: {network: train, address: \"%s%d\"%s}\n",
					nic.name, n+1, name, nic.address, n+1, where)
			}
		}
	}
	return b.String()
}

// TestOverlay: the stock tools between NICs of one network on two hosts, IPv4 and IPv6 inside and
// outside, and by rdma_cm.
func TestOverlay(t *testing.T) {
	for _, outer := range []struct {
		name string
		at   func(*host) string
	}{
		{"underlay4", func(h *host) string { return h.ip4 }},
		{"underlay6", func(h *host) string { return h.ip6 }},
	} {
		t.Run(outer.name, func(t *testing.T) {
			_, nics := overlayLab(t, layout{mtu: 1500}, outer.at)
			for _, name := range []string{"red", "red6"} {
				a, b := nics[name][0], nics[name][1]
				for _, work := range []workload.Workload{
					workload.Pingpong("rc", 4096, 200, ""), workload.Pingpong("ud", 1000, 200, ""),
					workload.Perf("write_bw", "-s 65536 -n 500"), workload.Perf("read_bw", "-s 65536 -n 200"), workload.Perf("send_bw", "-s 4096 -n 500"),
				} {
					t.Run(name+"/"+work.Name, func(t *testing.T) { work.Run(t, a.side(), b.side(), minute) })
				}
				t.Run(name+"/rping", func(t *testing.T) { rping(t, a, b) })
			}
		})
	}
}

// rping runs rping from one NIC to another.
func rping(t *testing.T, from, at tenantNIC) {
	t.Helper()
	server := at.Program(t, "rping", "-s", "-a", at.ip, "-C", "20", "-v")
	at.AwaitManaged(t, server, 7174)
	from.LaunchWith(t, []string{"--nic", from.name}, "rping", "-c", "-a", at.ip, "-C", "20", "-v").OK(t, minute)
	if !server.Ended(minute) || server.Code() != 0 {
		t.Errorf("rping: %s\n%s", server.Fate(), server.Output())
	}
}
