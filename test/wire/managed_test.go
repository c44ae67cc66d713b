package wire

import (
	"testing"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// Tools that connect through rdma_cm, over IPv4 and IPv6.
func TestManaged(t *testing.T) {
	w := newLab(t, layout{mtu: 1500})
	for _, tool := range workload.ManagedTools(harness.Pick(50, 1000)) {
		t.Run(tool.Name, func(t *testing.T) { tool.Run(t, w.a.side(false), w.b.side(false), minute) })
	}
	v6 := workload.Host{Machine: w.a, IP: w.a.ip6}
	ping := workload.Managed{Name: "rping/ipv6", Port: 7174, Server: "rping -s -a :: -v -V -C 20", Client: "rping -c -v -V -a ADDR -C 20", Must: "ping data: rdma-ping"}
	t.Run(ping.Name, func(t *testing.T) { ping.Run(t, v6, w.b.side(true), minute) })
	t.Run("qperf", func(t *testing.T) { workload.Qperf(t, w.a.side(false), w.b.side(false), minute) })
	t.Run("rcopy", func(t *testing.T) {
		workload.Copy(t, w.a.side(false), w.b.side(false), harness.Pick(32<<20, 512<<20), 2*minute)
	})
}

// With one packet of ten lost, messages of the connection manager are lost too, and repeated.
func TestManagedLossy(t *testing.T) {
	w := newLab(t, layout{mtu: 1500, cable: true})
	w.cable.SetFaults(cable.Faults{Drop: 0.1, Duplicate: 0.1})
	ping := workload.Managed{Name: "ucmatose", Port: 7471, Server: "ucmatose -c 20", Client: "ucmatose -c 20 -s ADDR", Must: "return status 0"}
	for range harness.Pick(1, 5) {
		ping.Run(t, w.a.side(false), w.b.side(false), 3*minute)
	}
}
