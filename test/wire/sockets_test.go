package wire

import (
	"fmt"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TCP programs of two hosts talk over RDMA.
func TestSockets(t *testing.T) {
	harness.Need(t, "iperf3")
	w := newLab(t, layout{mtu: 1500})
	for _, args := range [][]string{nil, {"-R"}} {
		t.Run(strings.Join(append([]string{"iperf3"}, args...), " "), func(t *testing.T) {
			port := harness.FreePort(t)
			sender := w.b
			if args != nil {
				sender = w.a
			}
			sender.Carried(t, harness.Traffic{Bytes: 32 << 20}, func() {
				flags := []string{"--quiet", "--sockets"}
				s := w.a.LaunchWith(t, flags, "iperf3", "-s", "-1", "-p", fmt.Sprint(port))
				w.a.AwaitManaged(t, s, port)
				c := w.b.LaunchWith(t, flags, append([]string{"iperf3", "-c", w.a.ip4, "-p", fmt.Sprint(port), "-n", "32M"}, args...)...)
				for _, p := range []*harness.Process{c, s} {
					if out := p.OK(t, 2*minute); !strings.Contains(out, "2 connections went over RDMA, none over TCP") {
						t.Errorf("not over RDMA:\n%s", out)
					}
				}
			})
		})
	}
}
