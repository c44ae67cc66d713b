package harness

import (
	"fmt"
	"strings"
	"testing"
)

// Managed reports whether a program listens on a port of rdma_cm.
func (d *Daemon) Managed(t testing.TB, port int) bool {
	t.Helper()
	suffix := fmt.Sprintf(":%d", port)
	for _, c := range d.Status(t).Connections {
		if c.State == "LISTEN" && strings.HasSuffix(c.Local, suffix) {
			return true
		}
	}
	return false
}

// AwaitManaged waits until a program listens on a port of rdma_cm.
func (d *Daemon) AwaitManaged(t testing.TB, p Program, port int) {
	t.Helper()
	ok := Poll(patience, func() bool { return p.Ended(0) || d.Managed(t, port) })
	if !ok || p.Ended(0) {
		t.Fatalf("%s does not listen on rdma_cm port %d: %s\n%s", p.Title(), port, p.Fate(), p.Output())
	}
}

// AwaitVacant waits until no program listens there. The daemon learns of a program's death only after its end, and the
// next program needs the port.
func (d *Daemon) AwaitVacant(t testing.TB, port int) {
	t.Helper()
	if !Poll(patience, func() bool { return !d.Managed(t, port) }) {
		t.Fatalf("somebody still listens on rdma_cm port %d: %+v", port, d.Status(t).Connections)
	}
}

// Established counts the ends of connections that the daemon has.
func (d *Daemon) Established(t testing.TB) (n int) {
	t.Helper()
	for _, c := range d.Status(t).Connections {
		if c.State == "ESTABLISHED" {
			n++
		}
	}
	return n
}

// Unmanaged waits until the daemon has no connection and no listener of rdma_cm.
func (d *Daemon) Unmanaged(t testing.TB) {
	t.Helper()
	if !Poll(patience, func() bool { return len(d.Status(t).Connections) == 0 }) {
		t.Errorf("left behind: %+v", d.Status(t).Connections)
	}
}
