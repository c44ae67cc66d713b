package sockets

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// Sockets over both versions of rsockets behave as in the kernel: flags, poll, select, epoll, copies, vectors, options,
// ends, signals, streams, fork.
func TestCalls(t *testing.T) {
	bin := harness.CompileWith(t, "sockets", "gcc")
	for _, lib := range libraries(t) {
		t.Run(lib.name, func(t *testing.T) {
			d := harness.Device(t)
			out := lib.launch(t, d, bin).OK(t, 2*minute)
			if n := strings.Count(out, "ok "); n != 13 || !strings.Contains(out, "connections went over RDMA, none over TCP") {
				t.Errorf("%d parts passed, want 13, all over RDMA:\n%s", n, out)
			}
			d.Unmanaged(t)
		})
	}
}
