package sockets

import (
	"fmt"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// A program with the newest library finds the device, and a peer with this machine's library.
func TestNewestLibrary(t *testing.T) {
	harness.Need(t, "rping")
	d := harness.Device(t)
	n := harness.NewestRoot(t)
	t.Logf("libibverbs %s", n.Version(t))
	if out := n.Launch(t, d, nil, "ibv_devinfo").OK(t, minute); !strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("ibv_devinfo of the newest rdma-core:\n%s", out)
	}
	port := harness.FreePort(t)
	args := []string{"-a", "127.0.0.1", "-p", fmt.Sprint(port), "-C", "100", "-V"}
	s := n.Launch(t, d, nil, append([]string{"rping", "-s"}, args...)...)
	d.AwaitManaged(t, s, port)
	d.Launch(t, append([]string{"rping", "-c"}, args...)...).OK(t, minute)
	s.OK(t, minute)
}
