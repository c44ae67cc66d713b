package networks

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/test/harness"
)

// forgedGroup is a VXLAN datagram with a datagram of rdma_cm to a multicast group, from the NIC with an address in a network.
func forgedGroup(vni uint32, from, group netip.Addr, psn uint32) []byte {
	h := overlay.Head{
		VNI: vni, To: overlay.GroupMAC(group), From: overlay.MACOf(from), Src: netip.AddrPortFrom(from, 0xc123), Dst: netip.AddrPortFrom(group, wire.Port),
		TOS: overlay.ECT0, TTL: wire.DefaultTTL, Fragment: wire.DontFragment,
	}
	b := make([]byte, 1024)
	p := wire.Make(b[h.Size():], wire.UDSendOnly, 100)
	p.BTH().SetPKey(0xffff)
	p.BTH().SetDestQP(0xffffff)
	p.BTH().SetPSN(psn)
	p.DETH().SetQKey(0x01234567) // RDMA_UDP_QKEY
	p.DETH().SetSrcQP(0x777)
	copy(p.Payload(), "forged by a local user")
	var flow wire.Flow
	flow.Set(h.Src, h.Dst)
	flow.Seal(p, 0)
	h.Put(b, len(p.Bytes()))
	return b[:h.Size()+len(p.Bytes())]
}

// TestForgedByLocalUser: a program without rights to a NIC sends VXLAN with that NIC's address from a plain UDP socket of its
// host. Other hosts drop it: the daemon publishes the ports from which it sends, and no other program can be bound to them.
// Datagrams of the daemon arrive, also after it has started again.
func TestForgedByLocalUser(t *testing.T) {
	t.Parallel()
	harness.Need(t, "mckey", "stdbuf")
	w := newLab(t)
	w.a.declare(t, twoTenants())
	w.a.ready(t, "blue/web")
	w.b.ready(t, "blue/db")
	ports := w.a.sourcePorts(t)
	if len(ports) == 0 {
		t.Fatal("host a has published no source ports")
	}
	if out := w.b.must(t, "get", "network", "blue/train"); !strings.Contains(out, "daemons") {
		t.Errorf("the network is trusted otherwise:\n%s", out)
	}
	const complete = "data transfers complete"
	group := netip.MustParseAddr("239.7.7.7")
	member := w.b.program(t, "blue/db", "stdbuf", "-oL", "mckey", "-m", group.String(), "-b", "10.1.0.2")
	member.Printed(t, "joined", minute)

	const forged = 50
	w.a.space.Do(t, func() {
		c, err := net.Dial("udp", w.b.ip+":4789")
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		for i := range uint32(forged) {
			if _, err := c.Write(forgedGroup(101, netip.MustParseAddr("10.1.0.1"), group, i)); err != nil {
				t.Error(err)
			}
		}
		for _, port := range ports {
			bindForeign(t, port)
		}
	})
	if !harness.Poll(minute, func() bool { return w.b.Status(t).Counters["overlay_wrong_port"] == forged }) {
		t.Errorf("%d datagrams were forged, and counted are %v", forged, w.b.Status(t).Counters)
	}
	if member.Ended(0) || strings.Contains(member.Output(), complete) {
		t.Fatalf("forged datagrams were accepted: %s\n%s", member.Fate(), member.Output())
	}
	send := func() {
		t.Helper()
		again(t, func() bool {
			w.a.program(t, "blue/web", "mckey", "-m", group.String(), "-s", "-b", "10.1.0.1").OK(t, minute)
			return harness.Poll(patience, func() bool { return member.Ended(0) })
		})
		if out := member.OK(t, minute); !strings.Contains(out, complete) {
			t.Errorf("the member printed\n%s", out)
		}
	}
	send()

	w.a.Stop(t)
	w.a.restart(t)
	w.a.ready(t, "blue/web")
	member = w.b.program(t, "blue/db", "stdbuf", "-oL", "mckey", "-m", group.String(), "-b", "10.1.0.2")
	member.Printed(t, "joined", minute)
	send()
}

// sourcePorts are the ports that the host has published.
func (h *host) sourcePorts(t *testing.T) []uint16 {
	t.Helper()
	var o struct {
		Spec struct {
			SourcePorts []uint16 `json:"sourcePorts"`
		} `json:"spec"`
	}
	out := h.must(t, "get", "host", h.name, "-o", "json")
	if err := json.Unmarshal([]byte(out), &o); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return o.Spec.SourcePorts
}

// bindForeign checks that a port of the daemon cannot be bound at another address of the host. A socket there could send
// from the host's address, with IP_PKTINFO.
func bindForeign(t *testing.T, port uint16) {
	t.Helper()
	for _, at := range []string{"127.0.0.1", "0.0.0.0", "[::1]", "[::]"} {
		c, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", fmt.Sprintf("%s:%d", at, port))
		if err == nil {
			c.Close()
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("port %d at %s: %v, want %v", port, at, err, unix.EADDRINUSE)
		}
	}
}
