package cm

import (
	"testing"

	"vrdma/test/cable"
	"vrdma/test/harness"
	"vrdma/test/workload"
)

// Every errno, event, status and size is Linux's: the table was printed by its own rdma_cm
// with rxe, and test/guest holds it against a kernel again in the long form.
func TestAnswers(t *testing.T) {
	harness.Need(t, "nsenter", "ip")
	a, b := cable.NewNamespace(t), cable.NewNamespace(t)
	cable.Veth(t, a, b, "eth0", 1500)
	const ip = "10.77.0.2"
	a.Address(t, "eth0", ip+"/24")
	d := harness.Start(t, harness.Options{Addr: ip, Network: a.Path()})
	d.NoLeaks(t)
	workload.Answers(t, workload.Host{Machine: d, IP: ip}, "10.77.0.99", "203.0.113.7", 5*minute)
}
