package wire

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// daemonCommand is another daemon in the host's namespace.
func (h *host) daemonCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	socket := filepath.Join(harness.Directory(t, nil), "vrdma.sock")
	argv := append([]string{"--net=" + h.space.Path(), "--", harness.Binary(), "daemon", "--socket", socket}, args...)
	return exec.Command("nsenter", argv...)
}

// TestPeerKilled: the other host's daemon is killed in the middle of a transfer.
func TestPeerKilled(t *testing.T) {
	for _, tool := range []string{"write_bw", "read_bw", "send_bw"} {
		t.Run(tool, func(t *testing.T) {
			w := newLab(t, layout{mtu: 1500})
			c := workload.Perf(tool, "-D 180 -f 0 -s 65536").Start(t, w.a.side(false), w.b.side(false))
			const flowing = 2000
			if !harness.Poll(minute, func() bool { return w.b.frames(t) > flowing || c.Client.Ended(0) }) {
				t.Fatalf("no data after a minute\n%v", c)
			}
			w.a.Process.Signal(syscall.SIGKILL)
			w.a.Process.Ended(minute)
			if !c.Client.Ended(minute) {
				t.Fatalf("the client still runs a minute after its peer's death\n%v", c)
			}
			const retryExceeded = "Failed status 12"
			if !strings.Contains(c.Client.Output(), retryExceeded) {
				t.Errorf("the client does not say %q\n%v", retryExceeded, c)
			}
			c.Server.End()
			// The survivor works, and so does the host after its restart.
			w.a.start(t)
			workload.Exchange(t, "rc", "-n 5").Run(t, w.a.side(false), w.b.side(false), minute)
		})
	}
}
