// Package wire tests two vrdma hosts on one wire: two network namespaces with a daemon in
// each, between them a veth pair or a cable of package cable, and the stock tools on top.
//
//	namespace A                              namespace B
//	  ib_write_bw ── daemon ── UDP ── veth ── UDP ── daemon ── ib_write_bw
//	                                  or a cable that loses packets
//
// Tests run one after the other: every program here polls, and this is meant to pass on
// two cores. VRDMA_TEST_ALL=1 asks for the long form.
package wire

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

const minute = time.Minute

func TestMain(m *testing.M) { harness.Main(m) }

// host is a namespace with a daemon.
type host struct {
	*harness.Daemon
	space    *cable.Namespace
	ip4, ip6 string
	addrs    string   // of the device
	args     []string // of its daemon, for tests that start it again
}

// layout says what lies between two hosts.
type layout struct {
	mtu   int
	args  []string    // of the daemons
	cable bool        // instead of a veth pair
	more  []cable.End // of the cable
}

// lab is two hosts.
type lab struct {
	a, b  *host
	cable *cable.Cable // if there is one
	ends  [2]cable.End // of it
}

// newLab makes two hosts and starts their daemons.
func newLab(t *testing.T, l layout) *lab {
	t.Helper()
	harness.Need(t, "nsenter", "ip")
	w := newWire(t, l)
	w.a.start(t, l.args...)
	w.b.start(t, l.args...)
	return w
}

// newWire is newLab without the daemons.
func newWire(t *testing.T, l layout) *lab {
	t.Helper()
	w := &lab{}
	for i, h := range []**host{&w.a, &w.b} {
		*h = &host{space: cable.NewNamespace(t), ip4: fmt.Sprintf("10.99.0.%d", i+1), ip6: fmt.Sprintf("fd00:99::%d", i+1)}
	}
	if l.cable {
		w.ends = [2]cable.End{cable.TAP(t, w.a.space, "eth0", l.mtu), cable.TAP(t, w.b.space, "eth0", l.mtu)}
		w.cable = cable.Connect(t, 1, append(w.ends[:], l.more...)...)
	} else {
		cable.Veth(t, w.a.space, w.b.space, "eth0", l.mtu)
	}
	const leastIPv6 = 1280
	for _, h := range []*host{w.a, w.b} {
		h.space.Address(t, "eth0", h.ip4+"/24")
		h.addrs = h.ip4
		if l.mtu >= leastIPv6 {
			h.space.Address(t, "eth0", h.ip6+"/64")
			h.addrs += "," + h.ip6
		}
	}
	w.a.knows(t, w.b)
	w.b.knows(t, w.a)
	return w
}

// knows makes the other host a permanent neighbour. Otherwise the kernel asks for its link address at any time, and may then
// reorder packets: those that have waited for the answer, and new ones. Programs with UD queue pairs would see that.
func (h *host) knows(t *testing.T, o *host) {
	t.Helper()
	for address := range strings.SplitSeq(o.addrs, ",") {
		h.space.IP(t, "neighbour", "replace", address, "lladdr", o.space.LinkAddress(t, "eth0"), "dev", "eth0", "nud", "permanent")
	}
}

// start starts the host's daemon; it lives as long as the test.
func (h *host) start(t *testing.T, args ...string) {
	t.Helper()
	h.Daemon = harness.Start(t, harness.Options{Addr: h.addrs, Network: h.space.Path(), Args: args})
}

// side is the host as one side of a conversation over IPv4 or IPv6.
func (h *host) side(v6 bool) workload.Host {
	gid := 0
	if v6 {
		gid = 1
	}
	return workload.Host{Machine: h, IP: h.ip4, GID: gid}
}

// run runs each workload between the two hosts, as a subtest.
func (w *lab) run(t *testing.T, v6 bool, limit time.Duration, ws ...workload.Workload) {
	for _, work := range ws {
		t.Run(work.Name, func(t *testing.T) { work.Run(t, w.a.side(v6), w.b.side(v6), limit) })
	}
}

// frames is how many frames have passed the host's interface, both ways.
func (h *host) frames(t *testing.T) int {
	t.Helper()
	for line := range strings.Lines(h.proc(t, "dev")) {
		if name, rest, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "eth0" {
			f := strings.Fields(rest)
			received, err1 := strconv.Atoi(f[1])
			sent, err2 := strconv.Atoi(f[9])
			if err1 != nil || err2 != nil {
				t.Fatalf("cannot read the counters of eth0: %q", line)
			}
			return received + sent
		}
	}
	t.Fatal("the namespace has no eth0")
	return 0
}

// overflows returns how many datagrams the host's socket buffers could not hold.
func (h *host) overflows(t *testing.T) int {
	t.Helper()
	total := 0
	text := h.proc(t, "snmp6") + h.proc(t, "snmp")
	var names []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) == 2 && f[0] == "Udp6RcvbufErrors":
			n, _ := strconv.Atoi(f[1])
			total += n
		case len(f) > 1 && f[0] == "Udp:" && names == nil:
			names = f
		case len(f) > 1 && f[0] == "Udp:":
			for i, name := range names {
				if name == "RcvbufErrors" {
					n, _ := strconv.Atoi(f[i])
					total += n
				}
			}
		}
	}
	if names == nil {
		t.Fatalf("cannot read the counters of UDP: %q", text)
	}
	return total
}

// proc reads one of the namespace's files.
func (h *host) proc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", h.PID(), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
