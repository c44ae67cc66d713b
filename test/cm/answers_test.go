package cm

import (
	"testing"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// TestAnswers compares every errno, event, status and size with Linux's. Linux' own rdma_cm printed the table, with
// rxe. In the long form test/guest compares the table with a kernel again.
func TestAnswers(t *testing.T) {
	d := asked(t)
	d.NoLeaks(t)
	answers(t, d)
}

// The newest librdmacm gets the same answers as the oldest.
func TestNewestAnswers(t *testing.T) {
	answers(t, newest{asked(t), harness.NewestRoot(t)})
}

const askedIP = "10.77.0.2"

// asked starts a daemon in a network like the guest's in which the table was printed.
func asked(t *testing.T) *harness.Daemon {
	t.Helper()
	harness.Need(t, "nsenter", "ip")
	a, b := cable.NewNamespace(t), cable.NewNamespace(t)
	cable.Veth(t, a, b, "eth0", 1500)
	a.Address(t, "eth0", askedIP+"/24")
	return harness.Start(t, harness.Options{Addr: askedIP, Network: a.Path()})
}

func answers(t *testing.T, m harness.Machine) {
	t.Helper()
	workload.Answers(t, workload.Host{Machine: m, IP: askedIP}, "10.77.0.99", "203.0.113.7", 5*minute)
}
