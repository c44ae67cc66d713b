package cm

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// The tools of librdmacm and perftest, on one host.
func TestTools(t *testing.T) {
	_, h := device(t)
	n := harness.Pick(50, 1000)
	for _, w := range append(workload.ManagedTools(n), []workload.Managed{
		{Name: "ucmatose/many", Port: 7471, Server: "ucmatose -c 200", Client: "ucmatose -c 200 -s ADDR", Must: "return status 0"},
		{Name: "riostream/large", Port: 7471, Server: "riostream -T v -S 1000000 -C 10 -I 2", Client: "riostream -T v -S 1000000 -C 10 -I 2 -s ADDR", Must: "custom"},
		{Name: "rping/persistent", Port: 7174, Server: "rping -s -P -V", Client: "rping -c -V -C 20 -a ADDR", Endless: true},
	}...) {
		t.Run(w.Name, func(t *testing.T) { w.Run(t, h, h, minute) })
	}
	six := workload.Host{Machine: h.Machine, IP: "::1"}
	w := workload.Managed{Name: "rping/ipv6", Port: 7174, Server: "rping -s -a :: -v -V -C 20", Client: "rping -c -v -V -a ADDR -C 20", Must: "ping data"}
	t.Run(w.Name, func(t *testing.T) { w.Run(t, six, six, minute) })
}

func TestQperf(t *testing.T) {
	_, h := device(t)
	workload.Qperf(t, h, h, minute)
}

// A multicast group with two receivers, and a third program that has not joined it.
func TestMulticast(t *testing.T) {
	d, _ := device(t)
	for _, group := range []struct{ name, group, bind string }{{"IPv4", "224.1.2.3", "127.0.0.1"}, {"IPv6", "ff0e::4", "::1"}} {
		t.Run(group.name, func(t *testing.T) {
			var receivers []*harness.Process
			for range 2 {
				receivers = append(receivers, d.Launch(t, "stdbuf", "-oL", "mckey", "-m", group.group, "-b", group.bind))
			}
			for _, r := range receivers {
				r.Printed(t, "joined", minute)
			}
			d.Run(t, minute, "mckey", "-m", group.group, "-s", "-b", group.bind)
			for _, r := range receivers {
				if out := r.OK(t, minute); !strings.Contains(out, "data transfers complete") {
					t.Errorf("a receiver printed\n%s", out)
				}
			}
		})
	}
}

// A large file arrives unchanged through rcopy.
func TestCopy(t *testing.T) {
	d, h := device(t)
	size := harness.Pick(64<<20, 512<<20)
	d.Carried(t, harness.Traffic{Bytes: uint64(size)}, func() { workload.Copy(t, h, h, size, minute) })
}

// riostream with its default arguments: 100 000 round trips between two programs that spin. On a busy machine this
// takes long.
func TestRiostream(t *testing.T) {
	if !harness.All() {
		t.Skip("two spinning programs, in the long form only (VRDMA_TEST_ALL=1); TestTools has a short one")
	}
	_, h := device(t)
	w := workload.Managed{Name: "riostream", Port: 7471, Server: "riostream", Client: "riostream -s ADDR", Must: "1m_bw"}
	w.Run(t, h, h, 10*minute)
}
