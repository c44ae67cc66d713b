package harness

import (
	"strings"
	"testing"
	"time"

	"fmt"
)

// AwaitManaged waits until somebody listens on a port of rdma_cm's.
func (d *Daemon) AwaitManaged(t testing.TB, p Program, port int) {
	t.Helper()
	suffix := fmt.Sprintf(":%d", port)
	ok := Poll(15*time.Second, func() bool {
		if p.Ended(0) {
			return true
		}
		for _, c := range d.Status(t).Connections {
			if c.State == "LISTEN" && strings.HasSuffix(c.Local, suffix) {
				return true
			}
		}
		return false
	})
	if !ok || p.Ended(0) {
		t.Fatalf("%s does not listen on rdma_cm port %d: %s\n%s", p.Title(), port, p.Fate(), p.Output())
	}
}
