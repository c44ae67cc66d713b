package roce

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// awaitGroup waits until a group's descriptor is readable and receives.
func awaitGroup(t *testing.T, p *Port, fd int, s *sink, n int) {
	t.Helper()
	for until := time.Now().Add(time.Minute); len(s.bursts) < n && time.Now().Before(until); {
		if k, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100); k > 0 {
			p.PollGroup(fd, s)
		}
	}
	if len(s.bursts) != n {
		t.Fatalf("%d datagrams came, want %d", len(s.bursts), n)
	}
}

// TestGroups checks that members receive what is sent to a group, on another host and in another daemon of this one, but not their own
// datagrams, and that a host that has left receives nothing.
func TestGroups(t *testing.T) {
	ns := vethPair(t, 1500)
	third := [2]netip.Addr{netip.MustParseAddr("10.99.0.3"), netip.MustParseAddr("fd00:99::3")}
	ns[0].ip("address", "add", third[0].String()+"/24", "dev", "veth0")
	ns[0].ip("address", "add", third[1].String()+"/64", "dev", "veth0", "nodad")
	ports := []*Port{
		NewPort(ns[0].mustListen(UDPOptions{}, veth4[0], veth6[0])),
		NewPort(ns[1].mustListen(UDPOptions{}, veth4[1], veth6[1])),
		NewPort(ns[0].mustListen(UDPOptions{}, third[0], third[1])),
	}
	at := []*namespace{ns[0], ns[1], ns[0]}
	for _, c := range []struct {
		group string
		from  netip.Addr
	}{{"239.1.2.3", veth4[0]}, {"224.0.0.99", veth4[0]}, {"ff0e::99", veth6[0]}, {"ff02::99", veth6[0]}} {
		t.Run(c.group, func(t *testing.T) {
			group := netip.MustParseAddr(c.group)
			fds := make([]int, len(ports))
			for i, p := range ports {
				var err error
				if at[i].do(func() { fds[i], err = p.Join(group) }); err != nil {
					t.Fatal(err)
				}
			}
			var span memory.Span
			b := simpleBurst(&span, transport.KindSend, 100)
			b.Type, b.Dst, b.SGID, b.DGID = ib.UD, 0xffffff, ib.GIDOf(c.from), ib.GIDOf(group)
			if err := carry(ports[0], b); err != nil {
				t.Fatal(err)
			}
			ports[0].Flush()
			for _, i := range []int{1, 2} {
				s := &sink{t: t}
				awaitGroup(t, ports[i], fds[i], s, 1)
				if g := &s.bursts[0]; g.DGID != b.DGID || g.SGID != b.SGID || g.Dst != b.Dst || len(s.data[0]) != 100 {
					t.Errorf("port %d got %+v", i, g)
				}
			}
			// The sender's own copy has arrived by now and is ignored.
			own := &sink{t: t}
			ports[0].PollGroup(fds[0], own)
			if len(own.bursts) != 0 {
				t.Errorf("the sender got its own datagram back")
			}
			for _, p := range ports {
				p.Leave(group)
			}
			if ports[1].PollGroup(fds[1], own) {
				t.Error("something comes for a group that was left")
			}
		})
	}
}

// TestGroupLimit checks that the number of groups is limited, and that leaving one allows another.
func TestGroupLimit(t *testing.T) {
	ns := newNamespace(t)
	ns.ip("link", "add", "dummy0", "type", "veth", "peer", "name", "dummy1")
	ns.ip("link", "set", "dummy0", "up")
	ns.ip("address", "add", "10.98.0.1/24", "dev", "dummy0")
	u := ns.mustListen(UDPOptions{}, netip.MustParseAddr("10.98.0.1"))
	group := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{239, 1, byte(i >> 8), byte(i)}) }
	ns.do(func() {
		for i := range MaxGroups {
			if _, err := u.Join(group(i)); err != nil {
				t.Errorf("group %d: %v", i, err)
				return
			}
		}
		if _, err := u.Join(group(MaxGroups)); !errors.Is(err, ErrGroups) {
			t.Errorf("one group too many: %v, want %v", err, ErrGroups)
		}
		u.Leave(group(7))
		if _, err := u.Join(group(MaxGroups)); err != nil {
			t.Errorf("after leaving one: %v", err)
		}
		// Without an address of the family, nothing can arrive.
		u.Leave(group(8))
		if fd, err := u.Join(netip.MustParseAddr("ff0e::1")); fd != -1 || err != nil {
			t.Errorf("an IPv6 group without an IPv6 address: descriptor %d, %v", fd, err)
		}
	})
}
