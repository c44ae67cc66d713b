package wire

import (
	"path/filepath"
	"strconv"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// Connections between two hosts continue while the daemon of either is replaced: on the hosts' own network, where each
// recognises the other as a vrdma host, and on a virtual network.
func TestUpgrade(t *testing.T) {
	harness.Need(t, "nsenter", "ip")
	w := newWire(t, layout{mtu: 1500})
	for _, h := range []*host{w.a, w.b} {
		h.Daemon = harness.StartUpgradable(t, harness.Options{
			Addr: h.addrs, Network: h.space.Path(),
			Args: []string{"--store", filepath.Join(harness.Directory(t, nil), "store"), "--underlay", h.ip4},
		})
	}
	w.a.declare(t, networks(0, "other", w.b.ip4))
	w.b.declare(t, networks(1, "other", w.a.ip4))
	red := [2]tenantNIC{{w.a, "red/n1", "10.1.0.1"}, {w.b, "red/n2", "10.1.0.2"}}
	seconds := harness.Pick("4", "15")
	var running []*harness.Process
	for _, tool := range []string{"ib_write_bw", "ib_read_bw", "ib_send_lat"} {
		running = append(running, perf(t, w.a, w.b, nil, tool, seconds)...)
	}
	running = append(running, perf(t, w.a, w.b, []string{"red/n1", "red/n2"}, "ib_write_bw", seconds)...)
	server := w.b.LaunchWith(t, []string{"--nic", "red/n2"}, "rping", "-s", "-V", "-a", red[1].ip, "-C", "2000", "-S", "300")
	w.b.AwaitManaged(t, server, 7174)
	running = append(running, server, w.a.LaunchWith(t, []string{"--nic", "red/n1"}, "rping", "-c", "-V", "-a", red[1].ip, "-C", "2000", "-S", "300"))
	for range harness.Pick(2, 10) {
		w.a.Upgrade(t)
		w.b.Upgrade(t)
	}
	for _, p := range running {
		p.OK(t, minute)
	}
	w.a.holds(t, w.b.ip4, "vrdma")
}

// perf starts a perftest program on two hosts, at NICs of tenants if there are names.
func perf(t *testing.T, a, b *host, nics []string, tool, seconds string) []*harness.Process {
	t.Helper()
	port := harness.FreePort(t)
	argv := []string{tool, "-F", "-D", seconds, "-p", strconv.Itoa(port), "-x", "0"}
	var flags [2][]string
	for i, name := range nics {
		flags[i] = []string{"--nic", name}
	}
	server := b.LaunchWith(t, flags[1], argv...)
	b.Await(t, server, port)
	return []*harness.Process{server, a.LaunchWith(t, flags[0], append(argv, b.ip4)...)}
}
