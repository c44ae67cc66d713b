package wire

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// TestForgedByLocalUser: a program on a vrdma host sends RoCEv2 packets in the host's name from a plain UDP socket: datagrams
// to a multicast group, and acknowledgements. A host that has recognised the first drops them, because their source port is
// none of those that the daemon announced. Datagrams of the daemon arrive, also after it has started again.
func TestForgedByLocalUser(t *testing.T) {
	harness.Need(t, "mckey", "stdbuf")
	w := newLab(t, layout{mtu: 1500})
	talk := workload.Perf("write_bw", "-D 180 -f 0 -s 4096").Start(t, w.a.side(false), w.b.side(false))
	w.b.holds(t, w.a.ip4, "vrdma")
	const complete = "data transfers complete"
	group := netip.MustParseAddr("239.7.7.8")
	listen := func() *harness.Process {
		p := w.b.Launch(t, "stdbuf", "-oL", "mckey", "-m", group.String(), "-b", w.b.ip4)
		p.Printed(t, "joined", minute)
		return p
	}
	member := listen()
	const forged = 50
	w.a.space.Do(t, func() { w.a.forge(t, group, netip.MustParseAddr(w.b.ip4), forged) })
	if !harness.Poll(minute, func() bool { return w.b.Status(t).Counters["wrong_port"] >= 2*forged }) {
		t.Errorf("%d packets were forged, and counted are %v", 2*forged, w.b.Status(t).Counters)
	}
	if member.Ended(0) || strings.Contains(member.Output(), complete) {
		t.Fatalf("forged datagrams were accepted: %s\n%s", member.Fate(), member.Output())
	}
	w.b.holds(t, w.a.ip4, "vrdma")
	send := func() {
		t.Helper()
		const patience = 15 * time.Second
		for range 4 { // datagrams are lost where a processor is late
			w.a.Launch(t, "mckey", "-m", group.String(), "-s", "-b", w.a.ip4).OK(t, minute)
			if harness.Poll(patience, func() bool { return member.Ended(0) }) {
				break
			}
		}
		if out := member.OK(t, minute); !strings.Contains(out, complete) {
			t.Errorf("the member printed\n%s", out)
		}
	}
	send()
	if talk.Server.Ended(0) || talk.Client.Ended(0) {
		t.Errorf("the connection has ended: %s, %s", talk.Server.Fate(), talk.Client.Fate())
	}
	talk.Client.End()
	talk.Server.End()
	talk.Client.Ended(minute)
	talk.Server.Ended(minute)

	w.a.Stop(t)
	w.a.start(t)
	member = listen()
	send()
	workload.Exchange(t, "rc", "-n 20").Run(t, w.a.side(false), w.b.side(false), minute)
}

// forge sends n datagrams to a group and n acknowledgements to a host, from a UDP socket of any user.
func (h *host) forge(t *testing.T, group, to netip.Addr, n int) {
	from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(h.ip4), 0))
	c, err := net.ListenUDP("udp4", from)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Error(err)
		return
	}
	raw.Control(func(fd uintptr) {
		// The kernel then sends identification 0, which a vrdma host sends, too.
		unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		unix.SetsockoptInet4Addr(int(fd), unix.IPPROTO_IP, unix.IP_MULTICAST_IF, netip.MustParseAddr(h.ip4).As4())
	})
	src := c.LocalAddr().(*net.UDPAddr).AddrPort()
	send := func(p wire.Packet, dst netip.AddrPort) {
		var flow wire.Flow
		flow.Set(src, dst)
		flow.Seal(p, 0)
		if _, err := c.WriteToUDPAddrPort(p.Bytes(), dst); err != nil {
			t.Error(err)
		}
	}
	for i := range uint32(n) {
		p := wire.Make(make([]byte, 400), wire.UDSendOnly, 100)
		p.BTH().SetPKey(0xffff)
		p.BTH().SetDestQP(0xffffff)
		p.BTH().SetPSN(i)
		p.DETH().SetQKey(0x01234567) // RDMA_UDP_QKEY
		p.DETH().SetSrcQP(0x777)
		send(p, netip.AddrPortFrom(group, wire.Port))
		p = wire.Make(make([]byte, 100), wire.RCAck, 0)
		p.BTH().SetPKey(0xffff)
		p.BTH().SetDestQP(i)
		send(p, netip.AddrPortFrom(to, wire.Port))
	}
}
