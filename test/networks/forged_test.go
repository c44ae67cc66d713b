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

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/test/harness"
)

// forgedGroup is a VXLAN datagram with a datagram of rdma_cm to a multicast group, from the NIC with an address in a network.
func forgedGroup(vni uint32, from, group netip.Addr, psn uint32) []byte {
	const rdmaUDPQKey = 0x01234567
	return forgedDatagram(vni, from, group, overlay.GroupMAC(group), 0xffffff, psn, rdmaUDPQKey, 0x777, []byte("forged by a local user"))
}

// forgedRequest is a VXLAN datagram with a request of rdma_cm to connect to a port.
func forgedRequest(vni uint32, from, to netip.Addr, port uint16, number uint32) []byte {
	mad := make(wire.MAD, wire.MADSize)
	mad.InitCM(wire.CMREQ, uint64(number))
	req := wire.REQ(mad.Data())
	req.SetLocalCommID(number)
	req.SetServiceID(0x01060000 | uint64(port)) // RDMA_PS_TCP
	req.SetLocalCAGUID(1)
	req.SetLocalQPN(0x777 + number)
	req.SetResponderResources(1)
	req.SetInitiatorDepth(1)
	req.SetRetryCount(7)
	req.SetRNRRetryCount(7)
	req.SetPKey(0xffff)
	req.SetPathMTU(3)
	req.SetRemoteResponseTimeout(20)
	req.SetLocalResponseTimeout(20)
	req.SetMaxCMRetries(15)
	req.Primary().SetLocalGID(ib.GIDOf(from))
	req.Primary().SetRemoteGID(ib.GIDOf(to))
	req.Primary().SetHopLimit(64)
	req.Primary().SetAckTimeout(18)
	h := wire.IPAddressing(req.Private())
	h.SetIPVersion(4)
	h.SetSrcPort(0x4321)
	plain := func(a netip.Addr) (b [16]byte) { // an address of IPv4 is in the last bytes
		copy(b[12:], a.AsSlice())
		return b
	}
	h.SetSrc(plain(from))
	h.SetDst(plain(to))
	return forgedDatagram(vni, from, to, overlay.MACOf(to), wire.GSIQP, number, 0x80010000, wire.GSIQP, mad)
}

// forgedDatagram is a VXLAN datagram with a datagram from the NIC with an address in a network to a queue pair.
func forgedDatagram(vni uint32, from, to netip.Addr, mac overlay.MAC, qp, psn, key, src uint32, data []byte) []byte {
	h := overlay.Head{
		VNI: vni, To: mac, From: overlay.MACOf(from), Src: netip.AddrPortFrom(from, 0xc123), Dst: netip.AddrPortFrom(to, wire.Port),
		TOS: overlay.ECT0, TTL: wire.DefaultTTL, Fragment: wire.DontFragment,
	}
	b := make([]byte, 1024)
	p := wire.Make(b[h.Size():], wire.UDSendOnly, max(len(data), 100))
	p.BTH().SetPKey(0xffff)
	p.BTH().SetDestQP(qp)
	p.BTH().SetPSN(psn)
	p.DETH().SetQKey(key)
	p.DETH().SetSrcQP(src)
	copy(p.Payload(), data)
	var flow wire.Flow
	flow.Set(h.Src, h.Dst)
	flow.Seal(p, 0)
	h.Put(b, len(p.Bytes()))
	return b[:h.Size()+len(p.Bytes())]
}

// TestForgedByLocalUser: a program without rights to a NIC sends VXLAN with that NIC's address from a plain UDP socket of its
// host, to a multicast group and to a server of rdma_cm. Other hosts drop it: the daemon publishes the ports from which it sends, and no
// other program can be bound to them.
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
	server := w.b.serve(t, "blue/db", "10.1.0.2")

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
			if _, err := c.Write(forgedRequest(101, netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2"), rpingPort, 100+i)); err != nil {
				t.Error(err)
			}
		}
		for _, port := range ports {
			bindForeign(t, port)
		}
	})
	if !harness.Poll(minute, func() bool { return w.b.Status(t).Counters["overlay_wrong_port"] == 2*forged }) {
		t.Errorf("%d datagrams were forged, and counted are %v", 2*forged, w.b.Status(t).Counters)
	}
	if member.Ended(0) || strings.Contains(member.Output(), complete) {
		t.Fatalf("forged datagrams were accepted: %s\n%s", member.Fate(), member.Output())
	}
	if server.Ended(0) {
		t.Fatalf("a forged request was accepted: %s\n%s", server.Fate(), server.Output())
	}
	for _, c := range harness.At(w.b.nicSocket("blue/db"), nil).Status(t).Connections {
		if c.PortSpace == "TCP" && c.State != "LISTEN" {
			t.Errorf("a forged request was accepted: rping has a connection in state %s", c.State)
		}
	}
	server.End()
	server.Ended(minute)
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

// rpingPort is the port of rping's server.
const rpingPort = 7174

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
