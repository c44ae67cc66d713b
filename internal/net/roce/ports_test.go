package roce

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

// TestPortsAreHeld checks that no other socket can be bound to the ports from which a UDP sends: at no address, in no
// family, with no option.
func TestPortsAreHeld(t *testing.T) {
	ports, err := HoldPorts(PortSeed(netip.MustParseAddr("127.0.0.1"), 4791))
	if err != nil {
		t.Fatal(err)
	}
	defer ports.Close()
	local := netip.MustParseAddr("127.9.8.7")
	u, err := ListenUDP(UDPOptions{Ports: ports, Port: 14791}, local)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if got := u.Held(local); !slices.Equal(got, ports.Numbers()) || len(got) != poolSize {
		t.Fatalf("%v are held at %v, want %v", got, local, ports.Numbers())
	}
	for hash := range uint32(poolSize) {
		if _, from, _ := u.Source(local, hash); !slices.Contains(ports.Numbers(), from.Port()) {
			t.Errorf("sends from %v", from)
		}
	}
	for _, a := range []string{"127.9.8.7", "127.0.0.1", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"} {
		for _, option := range []int{0, unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
			for _, port := range ports.Numbers() {
				bindTaken(t, netip.MustParseAddr(a), option, port)
			}
		}
	}
	// The next daemon inherits them.
	var fds []int
	for _, fd := range ports.Sockets() {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, n)
	}
	next, err := InheritPorts(fds)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if !slices.Equal(next.Numbers(), ports.Numbers()) {
		t.Errorf("%v are inherited, want %v", next.Numbers(), ports.Numbers())
	}
	// A second daemon takes others.
	other, err := HoldPorts(PortSeed(netip.MustParseAddr("127.0.0.1"), 4791))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, p := range other.Numbers() {
		if slices.Contains(ports.Numbers(), p) {
			t.Errorf("two daemons have port %d", p)
		}
	}
}

// bindTaken checks that a port cannot be bound.
func bindTaken(t *testing.T, a netip.Addr, option int, port uint16) {
	t.Helper()
	family, name := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(port), Addr: a.As16()})
	if a.Is4() {
		family, name = unix.AF_INET, &unix.SockaddrInet4{Port: int(port), Addr: a.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if option != 0 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Bind(fd, name); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("port %d of %v with option %d: %v, want %v", port, a, option, err, unix.EADDRINUSE)
	}
}

// TestForgedPort checks that a Port drops packets from a port that a vrdma host has not announced, reports them, and lets
// only hellos pass. Without announced ports it accepts all.
func TestForgedPort(t *testing.T) {
	net := NewFakeNet()
	bind := net.Bind(FakeOptions{}, hostA)
	b := NewPort(net.Bind(FakeOptions{}, hostB))
	_, from, _ := bind.Source(hostA, 0)
	to := netip.AddrPortFrom(hostB, wire.Port)
	strange := 0
	b.OnStrange(func(a netip.Addr) {
		if strange++; a != hostA {
			t.Errorf("%v is strange, want %v", a, hostA)
		}
	})
	b.OnDoubt(func(netip.Addr) { t.Error("a forged packet causes doubt") })
	var flow wire.Flow
	flow.Set(from, to)
	for _, c := range []struct {
		name    string
		ports   []uint16
		hello   bool
		id      uint16
		arrives bool
	}{
		{"no ports are announced", nil, false, 0, true},
		{"announced", []uint16{1, from.Port()}, false, 0, true},
		{"forged", []uint16{1, 2}, false, 0, false},
		{"forged, with another identification", []uint16{1, 2}, false, 0xbeef, false},
		{"hello", []uint16{1, 2}, true, 0, true},
		{"not a vrdma host any more", nil, false, 0, true},
	} {
		b.SetOwn(hostA, c.ports != nil)
		b.SetPorts(hostA, c.ports)
		before, asked := b.Counters().WrongPort, strange
		p := wire.Make(make([]byte, 400), wire.RCSendOnly, 10)
		if c.hello {
			p = wire.Make(make([]byte, 400), wire.UDSendOnly, wire.MADSize)
			p.BTH().SetDestQP(wire.GSIQP)
			wire.Hello(p.Payload()).Init(1, 2)
		}
		flow.Seal(p, c.id)
		if _, err := bind.Send([]Message{{Data: p.Bytes(), Remote: to}}); err != nil {
			t.Fatal(err)
		}
		s := &sink{t: t}
		drain(b, s)
		if got := len(s.bursts) == 1; got != c.arrives {
			t.Errorf("%s: arrives %v, want %v", c.name, got, c.arrives)
		}
		if dropped := b.Counters().WrongPort - before; (dropped == 1) == c.arrives || int(dropped) != strange-asked {
			t.Errorf("%s: %d are counted, %d are reported", c.name, dropped, strange-asked)
		}
	}
}

// TestTranslatedPort: a NAT that changes the source port of a RoCEv2 packet makes its ICRC wrong, which covers addresses and
// ports. Hellos do not arrive either: the host behind the NAT is never recognised, and its ports are never checked.
func TestTranslatedPort(t *testing.T) {
	net := NewFakeNet()
	bind := net.Bind(FakeOptions{}, hostA)
	b := NewPort(net.Bind(FakeOptions{}, hostB))
	_, from, _ := bind.Source(hostA, 0)
	to := netip.AddrPortFrom(hostB, wire.Port)
	for _, hello := range []bool{false, true} {
		before := b.Counters()
		p := wire.Make(make([]byte, 400), wire.UDSendOnly, wire.MADSize)
		if hello {
			p.BTH().SetDestQP(wire.GSIQP)
			wire.Hello(p.Payload()).Init(1, 2)
		}
		var flow wire.Flow
		flow.Set(netip.AddrPortFrom(from.Addr(), from.Port()^1), to) // as sent; from is the port behind the NAT
		flow.Seal(p, 0)
		if _, err := bind.Send([]Message{{Data: p.Bytes(), Remote: to}}); err != nil {
			t.Fatal(err)
		}
		s := &sink{t: t}
		drain(b, s)
		if after := b.Counters(); len(s.bursts) != 0 || after.BadICRC != before.BadICRC+1 || after.WrongPort != before.WrongPort {
			t.Errorf("hello %v: %d arrive, %d with a wrong ICRC, %d from a wrong port; want 0, 1, 0",
				hello, len(s.bursts), after.BadICRC-before.BadICRC, after.WrongPort-before.WrongPort)
		}
	}
}

// TestForgedOverlayPort checks that an Overlay drops datagrams from a port that the map does not have for their host.
func TestForgedOverlayPort(t *testing.T) {
	w := newOverlayWorld(t, 0)
	_, from, _ := w.a.bind.Source(underA, 0)
	var ours []uint16
	for hash := range uint32(poolSize) {
		_, from, _ := w.a.bind.Source(underA, hash)
		ours = append(ours, from.Port())
	}
	for _, c := range []struct {
		name    string
		ports   []uint16
		arrives bool
	}{
		{"an older daemon", nil, true},
		{"published", ours, true},
		{"forged", []uint16{from.Port() + poolSize}, false},
	} {
		host := *w.hostA
		host.SourcePorts = overlay.NewPortSet(c.ports)
		w.hostA = &host
		w.b.SetMap(w.mapOf(t, w.hostB))
		before := w.b.Counters().Overlay.WrongPort
		for src := range uint32(20) {
			var span memory.Span
			b := writeBurst(&span, 64, 1024)
			b.Src = src
			if err := w.a.Send(ib.VirtualNetwork(5), inA, inB, b); err != nil {
				t.Fatal(err)
			}
		}
		w.a.Flush()
		var in insider
		for w.b.Poll(&in) {
		}
		want := 0
		if c.arrives {
			want = 20
		}
		if dropped := w.b.Counters().Overlay.WrongPort - before; in.packets != want || int(dropped) != 20-want {
			t.Errorf("%s: %d of 20 arrive, want %d; %d are counted", c.name, in.packets, want, dropped)
		}
	}
}

// BenchmarkArrives measures the check of a datagram's source port while ports alternate, the worst case.
func BenchmarkArrives(b *testing.B) {
	w := newOverlayWorld(b, 0)
	host := *w.hostA
	var ports []uint16
	for hash := range uint32(poolSize) {
		_, from, _ := w.a.bind.Source(underA, hash)
		ports = append(ports, from.Port())
	}
	host.SourcePorts = overlay.NewPortSet(ports)
	w.hostA = &host
	w.b.SetMap(w.mapOf(b, w.hostB))
	var from [2]netip.AddrPort
	for i := range from {
		from[i] = netip.AddrPortFrom(underA, ports[poolSize-1-i])
	}
	for i := 0; b.Loop(); i++ {
		w.b.arrives(from[i&1])
	}
}
