package wire

import (
	"fmt"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
)

// groups are the multicast addresses of the tests.
var groups = []struct {
	name, group string
	v6          bool
}{{"ipv4", "239.7.1.2", false}, {"ipv6", "ff0e::7:1", true}, {"ipv6-link", "ff12::7:2", true}}

// memberships returns how often a host's kernel has joined a group, by the group's text in the namespace's tables.
func (h *host) memberships(t *testing.T, v6 bool) int {
	t.Helper()
	return strings.Count(h.proc(t, pick6(v6, "igmp", "igmp6")), "\n")
}

// TestMulticast: a datagram to a group reaches the members on every host once. A host is a member of the group as long
// as one of its programs is. With ibv_attach_mcast, over three hosts.
func TestMulticast(t *testing.T) {
	program := harness.Compile(t, "group")
	hosts := newHub(t, 3)
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			gid := fmt.Sprint(hosts[0].side(g.v6).GID)
			before := hosts[1].memberships(t, g.v6)
			var members []*harness.Process
			for _, h := range hosts {
				members = append(members, h.Launch(t, program, "-g", gid, g.group))
			}
			for _, m := range members {
				m.Printed(t, "attached", minute)
			}
			if !harness.Poll(minute, func() bool { return hosts[1].memberships(t, g.v6) > before }) {
				t.Errorf("%d memberships while a queue pair is attached, %d before", hosts[1].memberships(t, g.v6), before)
			}
			sender := hosts[0].Launch(t, program, "-s", "-g", gid, g.group)
			sender.OK(t, minute)
			for _, m := range members {
				if out := m.OK(t, minute); !strings.Contains(out, "received 50 messages") {
					t.Errorf("a member printed\n%s", out)
				}
			}
			if !harness.Poll(minute, func() bool { return hosts[1].memberships(t, g.v6) == before }) {
				t.Errorf("%d memberships when all have left, %d before", hosts[1].memberships(t, g.v6), before)
			}
		})
	}
	for i, h := range hosts {
		c := h.Status(t).Counters
		if sent, received := c["multicast_xmit_packets"], c["multicast_rcv_packets"]; i == 0 && sent != 150 || i > 0 && received != 150 || i == 0 && received != 0 {
			t.Errorf("host %d: %d datagrams to groups sent, %d received, want 150 sent by host 0 and received by the others", i, sent, received)
		}
	}
}

// TestMulticastManaged: mckey between two hosts, in both directions.
func TestMulticastManaged(t *testing.T) {
	harness.Need(t, "mckey", "stdbuf")
	w := newLab(t, layout{mtu: 1500})
	for _, g := range groups[:2] {
		for _, c := range []struct {
			name     string
			from, to *host
		}{{"there", w.a, w.b}, {"back", w.b, w.a}} {
			t.Run(g.name+"/"+c.name, func(t *testing.T) {
				r := c.to.Launch(t, "stdbuf", "-oL", "mckey", "-m", g.group, "-b", pick6(g.v6, c.to.ip4, c.to.ip6))
				r.Printed(t, "joined", minute)
				c.from.Run(t, minute, "mckey", "-m", g.group, "-s", "-b", pick6(g.v6, c.from.ip4, c.from.ip6))
				if out := r.OK(t, minute); !strings.Contains(out, "data transfers complete") {
					t.Errorf("the receiver printed\n%s", out)
				}
			})
		}
	}
}

// newHub makes n hosts on one hub and starts their daemons.
func newHub(t *testing.T, n int) []*host {
	t.Helper()
	harness.Need(t, "nsenter", "ip")
	var hosts []*host
	var ends []cable.End
	for i := range n {
		h := &host{space: cable.NewNamespace(t), ip4: fmt.Sprintf("10.99.0.%d", i+1), ip6: fmt.Sprintf("fd00:99::%d", i+1)}
		ends = append(ends, cable.TAP(t, h.space, "eth0", 1500))
		h.space.Address(t, "eth0", h.ip4+"/24")
		h.space.Address(t, "eth0", h.ip6+"/64")
		h.addrs = h.ip4 + "," + h.ip6
		hosts = append(hosts, h)
	}
	cable.Connect(t, 1, ends...)
	for _, h := range hosts {
		h.start(t)
	}
	return hosts
}
