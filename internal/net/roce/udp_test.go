package roce

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/pcap"
	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/testkit/golden"
)

// await polls until s has so many packets, for a minute at most.
func await(t testing.TB, p *Port, s *sink, packets uint64) {
	t.Helper()
	for end := time.Now().Add(time.Minute); p.Counters().RcvdPackets < packets; {
		if !p.Poll(s) {
			if time.Now().After(end) {
				t.Fatalf("%d packets arrived, want %d: %+v", p.Counters().RcvdPackets, packets, p.Counters())
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
}

// TestVeth sends random bursts between two namespaces, with and without batching in the kernel.
func TestVeth(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		n := vethPair(t, mtu)
		for _, c := range []struct {
			name     string
			from, to netip.Addr
		}{
			{"IPv4", veth4[0], veth4[1]}, {"IPv6", veth6[0], veth6[1]}, {"link-local", vethL[0], vethL[1]},
		} {
			for _, o := range []UDPOptions{{}, {NoGSO: true}, {NoGRO: true}, {NoGSO: true, NoGRO: true}} {
				t.Run(fmt.Sprintf("%d/%s/GSO=%v/GRO=%v", mtu, c.name, !o.NoGSO, !o.NoGRO), func(t *testing.T) {
					ua, ub := n[0].mustListen(o, c.from), n[1].mustListen(o, c.to)
					defer ua.Close()
					defer ub.Close()
					if ua.GSO() == o.NoGSO || ub.GRO() == o.NoGRO {
						t.Errorf("GSO %v, GRO %v", ua.GSO(), ub.GRO())
					}
					testWay(t, NewPort(ua), NewPort(ub), c.from, c.to, mtu, o)
				})
			}
		}
	}
}

// TestOldKernel checks that a kernel without UDP_SEGMENT and UDP_GRO is detected and used packet by packet.
func TestOldKernel(t *testing.T) {
	unknown := func(int) error { return unix.ENOPROTOOPT }
	gso, gro := featureGSO.test, featureGRO.test
	t.Cleanup(func() { featureGSO.test, featureGRO.test = gso, gro })
	featureGSO.test, featureGRO.test = unknown, unknown
	n := vethPair(t, 1500)
	ua, ub := n[0].mustListen(UDPOptions{}, veth4[0]), n[1].mustListen(UDPOptions{}, veth4[1])
	defer ua.Close()
	defer ub.Close()
	if ua.GSO() || ub.GRO() || ua.Segments() != 1 {
		t.Errorf("GSO %v, GRO %v, %d segments in a call; want none", ua.GSO(), ub.GRO(), ua.Segments())
	}
	testWay(t, NewPort(ua), NewPort(ub), veth4[0], veth4[1], 1500, UDPOptions{NoGSO: true, NoGRO: true})
}

// testWay sends from a to b, with b expecting the identifications of vrdma hosts.
func testWay(t *testing.T, a, b *Port, from, to netip.Addr, mtu int, o UDPOptions) {
	r := rand.New(rand.NewPCG(9, 10))
	b.SetOwn(from, true)
	s := &sink{t: t}
	var span memory.Span
	for i := 0; i < 40; {
		want, data := randomBurst(r, &span)
		want.SGID, want.DGID = ib.GIDOf(from), ib.GIDOf(to)
		if int(want.MTU)+100 > mtu {
			continue
		}
		if err := carry(a, &want); err != nil {
			t.Fatal(err)
		}
		a.Flush()
		s.clear()
		await(t, b, s, a.Counters().SentPackets)
		if len(s.bursts) != 1 {
			t.Fatalf("burst %d, %+v: arrived as %d", i, want, len(s.bursts))
		}
		got := s.bursts[0]
		if want.Packets > 1 {
			got.MTU = want.MTU
		}
		got.Data = new(memory.Span)
		got.Data.Add(s.data[0])
		compareBursts(t, i, &got, &want, data)
		i++
	}
	sent, rcvd := a.Counters(), b.Counters()
	if rcvd.BadICRC+rcvd.Malformed != 0 || sent.SendErrors+sent.SendFull != 0 {
		t.Errorf("sent %+v, received %+v", sent, rcvd)
	}
	if o.NoGSO != (sent.SentCalls == sent.SentPackets) {
		t.Errorf("GSO off: %v, %d packets in %d messages", o.NoGSO, sent.SentPackets, sent.SentCalls)
	}
	if o.NoGRO && rcvd.RcvdCalls != rcvd.RcvdPackets || !o.NoGRO && !o.NoGSO && rcvd.RcvdCalls >= rcvd.RcvdPackets {
		t.Errorf("GRO off: %v, GSO off: %v, %d packets in %d messages", o.NoGRO, o.NoGSO, rcvd.RcvdPackets, rcvd.RcvdCalls)
	}
}

// TestIdentifications checks packets on the wire: the ICRC must match the identification that the kernel sends, or rxe drops them.
func TestIdentifications(t *testing.T) {
	n := vethPair(t, 9000)
	// A device without segmentation: the kernel must segment before.
	n[0].ip("link", "set", "veth0", "gso_max_segs", "1")
	var raw int
	var err error
	n[1].do(func() {
		raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(raw)
	if err := unix.SetsockoptInt(raw, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20); err != nil {
		t.Fatal(err)
	}
	a := NewPort(n[0].mustListen(UDPOptions{}, veth4[0]))
	n[1].mustListen(UDPOptions{NoGRO: true}, veth4[1])
	var span memory.Span
	for _, size := range []int{10, 3000, 65_000} {
		burst := simpleBurst(&span, transport.KindSend, size)
		burst.SGID, burst.DGID = ib.GIDOf(veth4[0]), ib.GIDOf(veth4[1])
		if err := carry(a, burst); err != nil {
			t.Fatal(err)
		}
	}
	a.Flush()
	want := int(a.Counters().SentPackets)
	buf := make([]byte, 1<<16)
	var ids []uint16
	for end := time.Now().Add(time.Minute); len(ids) < want && time.Now().Before(end); {
		k, _, err := unix.Recvfrom(raw, buf, 0)
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		if c, ok := golden.Parse(buf[:k], pcap.RawIP); ok {
			checkHeaders(t, wire.IPv4(buf[:k]), c)
			ids = append(ids, c.ID)
		}
	}
	// One packet, then three, then the 62 that fit into one message, and two more.
	expect := []uint16{0, 0, 1, 2}
	for i := range uint16(62) {
		expect = append(expect, i)
	}
	if expect = append(expect, 0, 1); !slices.Equal(ids, expect) {
		t.Errorf("identifications %v, want %v", ids, expect)
	}
}

// checkHeaders checks a packet as on the wire.
func checkHeaders(t *testing.T, h wire.IPv4, c golden.Packet) {
	t.Helper()
	p, err := wire.Parse(c.Data)
	if err != nil {
		t.Fatal(err)
	}
	if h.Fragment() != wire.DontFragment || h.TOS()&3 != ect || c.Src.Port() < firstPort {
		t.Errorf("%v: flags %#x, type of service %#x, source port %d", p, h.Fragment(), h.TOS(), c.Src.Port())
	}
	var flow wire.Flow
	flow.Set(c.Src, c.Dst)
	if flow.Sum(p, c.ID) != p.ICRC() {
		id, ok := flow.Check(p, 0)
		t.Errorf("%v: identification %d, but the ICRC is that of %d (%v)", p, c.ID, id, ok)
	}
}

// TestNoChecksum receives datagrams without a UDP checksum, as rxe sends them.
func TestNoChecksum(t *testing.T) {
	n := vethPair(t, 1500)
	for _, c := range []struct {
		name     string
		from, to netip.Addr
	}{{"IPv4", veth4[0], veth4[1]}, {"IPv6", veth6[0], veth6[1]}} {
		t.Run(c.name, func(t *testing.T) {
			b := NewPort(n[1].mustListen(UDPOptions{}, c.to))
			defer b.Close()
			var e endpoint
			e.addr = c.from
			var fd int
			var err error
			n[0].do(func() { fd, err = (&UDP{}).open(&e, 0xc123, false) })
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			const udpNoCheck6TX = 101
			if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1),
				ignore(c.to.Is4(), unix.SetsockoptInt(fd, unix.SOL_UDP, udpNoCheck6TX, 1)),
				ignore(c.to.Is6(), unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO))); err != nil {
				t.Fatal(err)
			}
			to := netip.AddrPortFrom(c.to, wire.Port)
			p := wire.Make(make([]byte, 200), wire.RCSendOnly, 100)
			var flow wire.Flow
			flow.Set(netip.AddrPortFrom(c.from, 0xc123), to)
			flow.Seal(p, 0)
			var sa unix.Sockaddr = &unix.SockaddrInet6{Addr: c.to.As16(), Port: wire.Port}
			if c.to.Is4() {
				sa = &unix.SockaddrInet4{Addr: c.to.As4(), Port: wire.Port}
			}
			if err := unix.Sendto(fd, p.Bytes(), 0, sa); err != nil {
				t.Fatal(err)
			}
			s := &sink{t: t}
			await(t, b, s, 1)
			if len(s.bursts) != 1 {
				t.Errorf("not delivered: %+v", b.Counters())
			}
		})
	}
}

func ignore(yes bool, err error) error {
	if yes {
		return nil
	}
	return err
}

// TestSeveralAddresses checks one bind with many addresses, with answers from the right one.
func TestSeveralAddresses(t *testing.T) {
	n := vethPair(t, 1500)
	a := NewPort(n[0].mustListen(UDPOptions{}, veth4[0], veth6[0], vethL[0]))
	b := NewPort(n[1].mustListen(UDPOptions{}, vethL[1], veth6[1], veth4[1]))
	s := &sink{t: t}
	var span memory.Span
	for _, way := range [][2]netip.Addr{veth4, veth6, vethL} {
		burst := simpleBurst(&span, transport.KindSend, 2000)
		burst.SGID, burst.DGID = ib.GIDOf(way[0]), ib.GIDOf(way[1])
		if err := carry(a, burst); err != nil {
			t.Fatal(err)
		}
	}
	a.Flush()
	await(t, b, s, 6)
	seen := map[ib.GID]ib.GID{}
	for i := range s.bursts {
		seen[s.bursts[i].SGID] = s.bursts[i].DGID
	}
	for _, way := range [][2]netip.Addr{veth4, veth6, vethL} {
		if got := seen[ib.GIDOf(way[0])]; got != ib.GIDOf(way[1]) {
			t.Errorf("from %v to %v: arrived at %v", way[0], way[1], got.Addr())
		}
	}
}

// TestMarks checks that a router's ECN mark is reported.
func TestMarks(t *testing.T) {
	n := vethPair(t, 1500)
	for _, way := range [][2]netip.Addr{veth4, veth6} {
		a := n[0].mustListen(UDPOptions{}, way[0])
		b := NewPort(n[1].mustListen(UDPOptions{}, way[1]))
		// The sender acts as the router: all its packets are marked.
		for _, fd := range a.ends[0].out {
			var err error
			if way[0].Is4() {
				err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, ce)
			} else {
				err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, ce)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		p := NewPort(a)
		var span memory.Span
		burst := simpleBurst(&span, transport.KindSend, 2000)
		burst.SGID, burst.DGID = ib.GIDOf(way[0]), ib.GIDOf(way[1])
		if err := carry(p, burst); err != nil {
			t.Fatal(err)
		}
		p.Flush()
		s := &sink{t: t}
		await(t, b, s, 2)
		if s.marked == 0 || b.Counters().RcvdMarked == 0 {
			t.Errorf("%v: no mark seen", way[0])
		}
		b.Close()
	}
}

// TestTooLong checks that a packet too long for the path is counted, and that the next one is sent.
func TestTooLong(t *testing.T) {
	n := vethPair(t, 1500)
	a := NewPort(n[0].mustListen(UDPOptions{}, veth4[0]))
	b := NewPort(n[1].mustListen(UDPOptions{}, veth4[1]))
	var span memory.Span
	long := simpleBurst(&span, transport.KindSend, 1800)
	long.MTU, long.Packets = 4096, 1
	long.SGID, long.DGID = ib.GIDOf(veth4[0]), ib.GIDOf(veth4[1])
	var span2 memory.Span
	short := simpleBurst(&span2, transport.KindSend, 100)
	short.SGID, short.DGID = long.SGID, long.DGID
	for _, x := range []*transport.Burst{long, short} {
		if err := carry(a, x); err != nil {
			t.Fatal(err)
		}
	}
	told := 0
	a.OnTooLong(func(from, to netip.Addr, size int) {
		// IP, UDP, BTH, ICRC
		if told++; from != veth4[0] || to != veth4[1] || size != 20+8+12+1800+4 {
			t.Errorf("told of %d bytes from %v to %v", size, from, to)
		}
	})
	a.Flush()
	s := &sink{t: t}
	await(t, b, s, 1)
	if told != 1 {
		t.Errorf("told of %d packets that were too long, want 1", told)
	}
	if a.Counters().SendErrors != 1 || len(s.bursts) != 1 || len(s.data[0]) != 100 {
		t.Errorf("%d errors, %d bursts arrived", a.Counters().SendErrors, len(s.bursts))
	}
}

// TestTaken checks that the errors for unusable addresses say what to do.
func TestTaken(t *testing.T) {
	n := newNamespace(t)
	lo := netip.MustParseAddr("127.0.0.1")
	first := n.mustListen(UDPOptions{}, lo)
	_, err := n.listen(UDPOptions{}, lo)
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "UDP port 4791 of 127.0.0.1 is taken") {
		t.Errorf("port taken: got %v", err)
	}
	n.mustListen(UDPOptions{Port: 4789}, lo)
	_, err = n.listen(UDPOptions{Port: 4789}, lo)
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "UDP port 4789 of 127.0.0.1 is taken") || !strings.Contains(err.Error(), "--overlay-port") {
		t.Errorf("port of the overlay taken: got %v", err)
	}
	_, err = n.listen(UDPOptions{}, netip.MustParseAddr("192.0.2.1"))
	if !errors.Is(err, unix.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "192.0.2.1 is not an address of this machine") {
		t.Errorf("not our address: got %v", err)
	}
	if _, err := n.listen(UDPOptions{}); err == nil {
		t.Error("no address: no error")
	}
	first.Close()
	again := n.mustListen(UDPOptions{}, lo)
	if again.ReceiveBuffer() < 1<<20 {
		t.Errorf("receive buffer of %d bytes", again.ReceiveBuffer())
	}
	if len(again.Descriptors()) != 1 {
		t.Errorf("%d descriptors", len(again.Descriptors()))
	}
}

// TestPortAllocations sends 64 KiB from one port to another, and an acknowledgement back.
func TestPortAllocations(t *testing.T) {
	n := vethPair(t, 9000)
	a := NewPort(n[0].mustListen(UDPOptions{}, veth4[0]))
	b := NewPort(n[1].mustListen(UDPOptions{}, veth4[1]))
	var span memory.Span
	burst := simpleBurst(&span, transport.KindWrite, 65536)
	burst.SGID, burst.DGID = ib.GIDOf(veth4[0]), ib.GIDOf(veth4[1])
	r := &counter{}
	polls := 0
	allocs := testing.AllocsPerRun(50, func() {
		if err := carry(a, burst); err != nil {
			t.Fatal(err)
		}
		a.Flush()
		for polls = 0; r.packets < 64 && polls < 1e6; polls++ {
			b.Poll(r)
		}
		r.packets = 0
	})
	if allocs != 0 {
		t.Errorf("%v allocations a burst", allocs)
	}
	if polls == 1e6 {
		t.Error("the burst did not arrive")
	}
}

// counter is a receiver that only counts.
type counter struct{ packets, bytes uint64 }

func (c *counter) Receive(_ ib.NetworkID, b *transport.Burst, _ bool) {
	c.packets += uint64(b.Packets)
	c.bytes += uint64(b.Data.Len())
}

func (c *counter) Congested(ib.NetworkID, uint32, ib.GID, ib.GID) {}

// BenchmarkVeth measures 64 KiB writes from one namespace to another, sent and received alternately by one thread.
func BenchmarkVeth(b *testing.B) {
	for _, mtu := range []int{1024, 4096} {
		n := vethPair(b, 9000)
		for _, o := range []UDPOptions{{}, {NoGRO: true}, {NoGSO: true, NoGRO: true}} {
			b.Run(fmt.Sprintf("%d/GSO=%v/GRO=%v", mtu, !o.NoGSO, !o.NoGRO), func(b *testing.B) {
				u, v := n[0].mustListen(o, veth4[0]), n[1].mustListen(o, veth4[1])
				defer u.Close()
				defer v.Close()
				from, to := NewPort(u), NewPort(v)
				var span memory.Span
				burst := simpleBurst(&span, transport.KindWrite, 65536)
				burst.SGID, burst.DGID = ib.GIDOf(veth4[0]), ib.GIDOf(veth4[1])
				burst.MTU, burst.Packets = uint32(mtu), uint32(65536/mtu)
				r := &counter{}
				b.SetBytes(65536)
				b.ReportAllocs()
				for b.Loop() {
					if err := carry(from, burst); err != nil {
						b.Fatal(err)
					}
					from.Flush()
					for polls := 0; r.bytes < 65536; polls++ {
						if polls == 1e7 {
							b.Fatal("lost")
						}
						to.Poll(r)
					}
					r.bytes = 0
				}
			})
		}
	}
}
