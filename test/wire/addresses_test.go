package wire

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// The daemons start before the hosts have addresses, as before DHCP. The default NIC follows the addresses that come and go:
// programs get an event, rows keep their place, other hosts reach every address, and virtual networks find their underlay.
func TestFollowsAddresses(t *testing.T) {
	w := &lab{}
	for i, h := range []**host{&w.a, &w.b} {
		*h = &host{space: cable.NewNamespace(t), ip4: fmt.Sprintf("10.99.0.%d", i+1)}
	}
	cable.Veth(t, w.a.space, w.b.space, "eth0", 1500)
	for _, h := range []*host{w.a, w.b} {
		h.Daemon = harness.Start(t, harness.Options{Addr: harness.OwnAddresses, Network: h.space.Path(),
			Args: []string{"--store", filepath.Join(harness.Directory(t, nil), "store")}})
		h.Process.Printed(t, "only loopback addresses", minute)
	}
	w.a.declare(t, networks(0, "other", w.b.ip4))
	w.b.declare(t, networks(1, "other", w.a.ip4))
	rows := func(h *host) (out []string) {
		for _, g := range h.Status(t).Device.GIDs {
			out = append(out, fmt.Sprint(g.Index, " ", g.GID))
		}
		return out
	}
	wait := func(h *host, want ...string) {
		t.Helper()
		if !harness.Poll(minute, func() bool { return fmt.Sprint(rows(h)) == fmt.Sprint(want) }) {
			t.Fatalf("the GID table has\n%v, want\n%v", strings.Join(rows(h), "\n"), strings.Join(want, "\n"))
		}
	}
	watch := w.a.Launch(t, "ibv_asyncwatch")
	watch.Printed(t, "async event FD", minute)
	for _, h := range []*host{w.a, w.b} {
		h.space.Address(t, "eth0", h.ip4+"/24")
		wait(h, "0 "+h.ip4, "1 ::1", "2 127.0.0.1") // loopback gives way
	}
	watch.Printed(t, "IBV_EVENT_GID_CHANGE", minute)
	ping := workload.Managed{Name: "rping", Port: 7174, Server: "rping -s -a 0.0.0.0 -v -V -C 20", Client: "rping -c -v -V -a ADDR -C 20", Must: "ping data: rdma-ping"}
	ping.Run(t, w.a.side(false), w.b.side(false), minute)

	// Virtual networks wait for the first address.
	inside := [2]tenantNIC{{w.a, "red/n1", "10.1.0.1"}, {w.b, "red/n2", "10.1.0.2"}}
	for i := range inside {
		inside[i].Process.Printed(t, "virtual networks reach other hosts", minute)
	}
	workload.Pingpong("rc", 4096, 100, "").Run(t, inside[0].side(), inside[1].side(), minute)

	// A second address gets a row and sockets; the first one goes, and its row stays free.
	w.a.space.Address(t, "eth0", "10.99.0.101/32")
	wait(w.a, "0 10.99.0.1", "1 10.99.0.101", "2 127.0.0.1", "3 ::1")
	w.a.space.IP(t, "address", "delete", "10.99.0.1/24", "dev", "eth0")
	wait(w.a, "1 10.99.0.101", "2 127.0.0.1", "3 ::1")
	w.a.space.IP(t, "route", "add", "10.99.0.0/24", "dev", "eth0", "src", "10.99.0.101")
	ping.Run(t, workload.Host{Machine: w.a, IP: "10.99.0.101"}, w.b.side(false), minute)
	w.a.space.Address(t, "eth0", "10.99.0.1/24")
	wait(w.a, "0 10.99.0.1", "1 10.99.0.101", "2 127.0.0.1", "3 ::1")
	ping.Run(t, w.a.side(false), w.b.side(false), minute)
	if watch.Ended(0) {
		t.Errorf("a program has ended: %s", watch.Fate())
	}
}
