package guest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// multicast: mckey between us and the guest, in both directions. Linux does not support it over IPv6:
// rdma_join_multicast fails, and ibv_attach_mcast does not tell the network stack. There the guest can only send,
// without rdma_cm.
func (l *lab) multicast(t *testing.T) {
	l.cable.Keep(t)
	harness.Need(t, "mckey", "stdbuf")
	d := l.daemon(t)
	const group4, group6 = "239.7.1.2", "ff0e::7:1"
	t.Run("ipv4/guest_sends", func(t *testing.T) {
		r := d.Launch(t, "stdbuf", "-oL", "mckey", "-m", group4, "-b", ourIP4)
		r.Printed(t, "joined", limit)
		l.guest.Run(t, limit, "mckey", "-m", group4, "-s", "-b", guestIP4)
		if out := r.OK(t, limit); !strings.Contains(out, "data transfers complete") {
			t.Errorf("the receiver printed\n%s", out)
		}
	})
	program := harness.Compile(t, "group")
	l.guest.Install(t, program)
	for _, c := range []struct{ name, group, gid, guest string }{{"ipv4", group4, "0", guestIP4}, {"ipv6", group6, "1", guestIP6}} {
		t.Run(c.name+"/attached", func(t *testing.T) {
			r := d.Launch(t, program, "-n", "20", "-g", c.gid, c.group)
			r.Printed(t, "attached", limit)
			l.guest.Run(t, limit, program, "-o", "-n", "20", "-g", fmt.Sprint(l.guest.gid(t, c.guest)), c.group)
			r.OK(t, limit)
		})
	}
	t.Run("ipv4/we_send", func(t *testing.T) {
		r := l.guest.Launch(t, "mckey", "-m", group4, "-b", guestIP4)
		b := netip.MustParseAddr(group4).As4()
		member := fmt.Sprintf("%02X%02X%02X%02X", b[3], b[2], b[1], b[0])
		if !harness.Poll(limit, func() bool {
			return r.Ended(0) || strings.Contains(l.guest.Run(t, limit, "cat", "/proc/net/igmp"), member)
		}) {
			t.Fatalf("the guest does not join the group\n%s", r.Output())
		}
		d.Run(t, limit, "mckey", "-m", group4, "-s", "-b", ourIP4)
		if !r.Ended(limit) || r.Code() != 0 || !strings.Contains(r.Output(), "data transfers complete") {
			t.Errorf("the guest's receiver: %s\n%s", r.Fate(), r.Output())
		}
	})
}
