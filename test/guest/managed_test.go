package guest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// managed: tools that connect through rdma_cm, with either side as the server.
func (l *lab) managed(t *testing.T) {
	l.cable.Keep(t)
	p := l.pair(t, l.daemon(t), false)
	for _, w := range workload.ManagedTools(20) {
		w.Apart = l.cable.SetDelay
		t.Run(w.Name+"/guest_client", func(t *testing.T) { p.persist(t, w, p.ours, p.guest) })
		t.Run(w.Name+"/our_client", func(t *testing.T) { p.persist(t, w, p.guest, p.ours) })
	}
	const size = 4 << 20 // bytes of a file: the guest keeps it in memory
	for _, c := range []struct {
		name     string
		at, from workload.Host
	}{{"guest_client", p.ours, p.guest}, {"our_client", p.guest, p.ours}} {
		t.Run("qperf/"+c.name, func(t *testing.T) { workload.Qperf(t, c.at, c.from, limit) })
		t.Run("rcopy/"+c.name, func(t *testing.T) { workload.Copy(t, c.at, c.from, size, limit) })
	}
}

// answers: the kernel still gives the answers of test/testdata/rdmacm.txt.
func (l *lab) answers(t *testing.T) {
	if !harness.All() {
		t.Skip("the long form (VRDMA_TEST_ALL=1) asks the kernel; test/cm asks vrdma every time")
	}
	l.guest.Install(t, workload.AnswersProgram(t))
	workload.Answers(t, workload.Host{Machine: l.guest, IP: guestIP4}, "10.77.0.99", "203.0.113.7", 10*time.Minute)
}

// managed reports whether a program listens on a port of rdma_cm. The kernel lists its identifiers.
func (g *Guest) managed(t testing.TB, port int) bool {
	t.Helper()
	suffix := fmt.Sprintf(":%d ", port)
	for line := range strings.Lines(g.Run(t, limit, "rdma", "resource", "show", "cm_id")) {
		if strings.Contains(line, "LISTEN") && strings.Contains(line+" ", suffix) {
			return true
		}
	}
	return false
}

// AwaitManaged implements workload.Manager.
func (g *Guest) AwaitManaged(t testing.TB, p harness.Program, port int) {
	t.Helper()
	ok := harness.Poll(limit, func() bool { return p.Ended(0) || g.managed(t, port) })
	if !ok || p.Ended(0) {
		t.Fatalf("guest: %s does not listen on rdma_cm port %d: %s\n%s", p.Title(), port, p.Fate(), p.Output())
	}
}

// AwaitVacant implements workload.Manager.
func (g *Guest) AwaitVacant(t testing.TB, port int) {
	t.Helper()
	if !harness.Poll(limit, func() bool { return !g.managed(t, port) }) {
		t.Fatalf("guest: somebody still listens on rdma_cm port %d", port)
	}
}

var _ workload.Manager = (*Guest)(nil)
