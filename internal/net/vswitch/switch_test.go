package vswitch

import (
	"bytes"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

// A catcher is attached to a port and keeps what it receives, as ordinary frames.
type catcher struct {
	mu     sync.Mutex
	frames [][]byte
}

func (c *catcher) deliver(f *frame, _ int, scratch []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.plain(scratch, func(b []byte) { c.frames = append(c.frames, bytes.Clone(b)) })
	return true
}

// caught returns what it received since the last call.
func (c *catcher) caught() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.frames
	c.frames = nil
	return out
}

// plug makes a port of network red/net with a catcher attached.
func plug(t testing.TB, s *Switch, network, nic string, addrs ...string) (*Port, *catcher) {
	t.Helper()
	c := PortConfig{NIC: nic, Network: network, MTU: 1500, Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00::/64")}}
	for _, a := range addrs {
		c.Addrs = append(c.Addrs, netip.MustParseAddr(a))
	}
	c.MAC = overlay.MACOf(c.Addrs[0])
	p, err := s.Plug(c)
	if err != nil {
		t.Fatal(err)
	}
	k := &catcher{}
	done, ok := p.attach(&attachment{receiver: k})
	if !ok {
		t.Fatal("somebody is attached")
	}
	t.Cleanup(done)
	return p, k
}

// say sends a frame from the machine at a port.
func say(p *Port, h header, b []byte) {
	var w worker
	if w.frame.virtio = h; w.frame.take([][]byte{b}) {
		p.send(&w, 0)
	} else {
		p.Malformed.Add(1)
	}
}

// ether returns a frame of a type.
func ether(to, from overlay.MAC, kind uint16, payload []byte) []byte {
	b := append(append(to[:len(to):len(to)], from[:]...), byte(kind>>8), byte(kind))
	return append(b, payload...)
}

// packet returns an IP packet.
func packet(src, dst string, proto uint8, payload []byte) []byte {
	s, d := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	if s.Is4() {
		b := make(wire.IPv4, wire.IPv4Size, wire.IPv4Size+len(payload))
		b.Init()
		b[9] = proto
		b.SetTotalLength(wire.IPv4Size + len(payload))
		b.SetTTL(64)
		b.SetSrc(s.As4())
		b.SetDst(d.As4())
		b.SetChecksum(b.Sum())
		return append(b, payload...)
	}
	b := make(wire.IPv6, wire.IPv6Size, wire.IPv6Size+len(payload))
	b.Init()
	b.SetNextHeader(proto)
	b.SetPayloadLength(len(payload))
	b.SetHopLimit(255)
	b.SetSrc(s.As16())
	b.SetDst(d.As16())
	return append(b, payload...)
}

// datagram is UDP.
func datagram(sport, dport uint16, payload []byte) []byte {
	b := make(wire.UDP, wire.UDPSize, wire.UDPSize+len(payload))
	b.SetSrcPort(sport)
	b.SetDstPort(dport)
	b.SetLength(wire.UDPSize + len(payload))
	return append(b, payload...)
}

// frameOf is IP in Ethernet.
func frameOf(to, from overlay.MAC, src, dst string, proto uint8, payload []byte) []byte {
	kind := uint16(etherIPv4)
	if netip.MustParseAddr(src).Is6() {
		kind = etherIPv6
	}
	return ether(to, from, kind, packet(src, dst, proto, payload))
}

var everybody = overlay.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func TestForward(t *testing.T) {
	s := New(Config{})
	defer s.Close()
	a, fromA := plug(t, s, "red/net", "red/a", "10.1.0.1", "fd00::1")
	b, atB := plug(t, s, "red/net", "red/b", "10.1.0.2", "fd00::2")
	c, atC := plug(t, s, "red/net", "red/c", "10.1.0.3")
	_, atOther := plug(t, s, "blue/net", "blue/b", "10.1.0.2", "10.1.0.9")
	text := datagram(1, 2, []byte("hello"))
	for _, c := range []struct {
		name     string
		frame    []byte
		toB, toC bool
	}{
		{"unicast", frameOf(b.MAC, a.MAC, "10.1.0.1", "10.1.0.2", protoUDP, text), true, false},
		{"IPv6", frameOf(b.MAC, a.MAC, "fd00::1", "fd00::2", protoUDP, text), true, false},
		{"link-local", frameOf(b.MAC, a.MAC, a.linkLocal.String(), b.linkLocal.String(), protoUDP, text), true, false},
		{"broadcast", frameOf(everybody, a.MAC, "10.1.0.1", "255.255.255.255", protoUDP, text), true, true},
		{"multicast", frameOf(overlay.MAC{1, 0, 0x5e, 0, 0, 1}, a.MAC, "10.1.0.1", "224.0.0.1", protoUDP, text), true, true},
		{"of nobody", frameOf(b.MAC, a.MAC, "10.1.0.1", "10.1.0.9", protoUDP, text), false, false},
		{"wrong MAC", frameOf(c.MAC, a.MAC, "10.1.0.1", "10.1.0.2", protoUDP, text), false, false},
		{"itself", frameOf(a.MAC, a.MAC, "10.1.0.1", "10.1.0.1", protoUDP, text), false, false},
		{"another's MAC", frameOf(b.MAC, c.MAC, "10.1.0.1", "10.1.0.2", protoUDP, text), false, false},
		{"another's address", frameOf(b.MAC, a.MAC, "10.1.0.3", "10.1.0.2", protoUDP, text), false, false},
		{"another's IPv6 address", frameOf(b.MAC, a.MAC, "fd00::2", "fd00::2", protoUDP, text), false, false},
		{"another's link-local address", frameOf(b.MAC, a.MAC, c.linkLocal.String(), "fd00::2", protoUDP, text), false, false},
		{"no address", frameOf(b.MAC, a.MAC, "0.0.0.0", "10.1.0.2", protoUDP, text), false, false},
		{"IPv4 as IPv6", frameOf(b.MAC, a.MAC, "fd00::1", "fd00::2", 4, packet("10.1.0.3", "10.1.0.2", protoUDP, text)), true, false},
		{"another protocol", ether(b.MAC, a.MAC, 0x88cc, text), false, false},
		{"a VLAN", ether(b.MAC, a.MAC, 0x8100, append([]byte{0, 1, 8, 0}, packet("10.1.0.3", "10.1.0.2", protoUDP, text)...)), false, false},
		{"too long", frameOf(b.MAC, a.MAC, "10.1.0.1", "10.1.0.2", protoUDP, make([]byte, 1500)), false, false},
		{"a router's advertisement", frameOf(overlay.MAC{0x33, 0x33, 0, 0, 0, 1}, a.MAC, a.linkLocal.String(), "ff02::1", protoICMP6, []byte{routerAdvertisement, 0, 0, 0}), false, false},
		{"an ARP answer", ether(b.MAC, a.MAC, etherARP, arp(2, a.MAC, "10.1.0.1", b.MAC, "10.1.0.2")), false, false},
		{"a DHCP server's answer", frameOf(b.MAC, a.MAC, "10.1.0.1", "10.1.0.2", protoUDP, datagram(bootpServer, bootpClient, nil)), true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			say(a, header{}, c.frame)
			for _, at := range []struct {
				name string
				*catcher
				want bool
			}{{"b", atB, c.toB}, {"c", atC, c.toC}, {"a", fromA, false}, {"another network", atOther, false}} {
				got := at.caught()
				if len(got) > 0 != at.want || at.want && !bytes.Equal(got[0], c.frame) {
					t.Errorf("%s got %x: want that %v", at.name, got, at.want)
				}
			}
		})
	}
}

// extended is IPv6 from fd00::1 to fd00::2 with extension headers. Each is given as its protocol and its bytes, whose
// first byte is filled in.
func extended(to, from overlay.MAC, proto uint8, payload []byte, headers ...[]byte) []byte {
	first := proto
	for i := len(headers) - 1; i >= 0; i-- {
		h := bytes.Clone(headers[i][1:])
		h[0], first = first, headers[i][0]
		payload = append(h, payload...)
	}
	return frameOf(to, from, "fd00::1", "fd00::2", first, payload)
}

// IPv6 extension headers hide nothing from the rules.
func TestExtensions(t *testing.T) {
	s := New(Config{})
	defer s.Close()
	a, _ := plug(t, s, "red/net", "red/a", "10.1.0.1", "fd00::1")
	b, atB := plug(t, s, "red/net", "red/b", "10.1.0.2", "fd00::2")
	// A may connect to UDP port 53, and send packets without ports.
	const dns = spaceUDP<<16 | 53
	a.SetGuard(rules(func(_ netip.Addr, c ib.Contact) bool { return c.By == ib.Nobody || c.ID == dns }))
	zero := make([]byte, 7)
	ext := func(proto uint8, length byte, rest ...byte) []byte {
		return slices.Concat([]byte{proto, 0, length}, rest)
	}
	hop, routing, options := ext(protoHop, 0, zero[:6]...), ext(protoRouting, 0, zero[:6]...), ext(protoDestination, 1, make([]byte, 14)...)
	ah := ext(protoAH, 4, make([]byte, 22)...)
	fragment := func(place uint16) []byte { return ext(protoFragment, 0, byte(place>>8), byte(place), 0, 0, 0, 1) }
	good, bad := datagram(1000, 53, []byte("text")), datagram(1000, 54, []byte("text"))
	advertisement, echo := []byte{routerAdvertisement, 0, 0, 0, 0, 0, 0, 0}, []byte{128, 0, 0, 0, 0, 0, 0, 0}
	padded := extended(b.MAC, a.MAC, protoUDP, good, fragment(1))
	be.PutUint16(padded[etherSize+4:], 8) // the datagram is padding
	for _, c := range []struct {
		name  string
		frame []byte
		want  bool
	}{
		{"none", extended(b.MAC, a.MAC, protoUDP, good), true},
		{"none, denied", extended(b.MAC, a.MAC, protoUDP, bad), false},
		{"all", extended(b.MAC, a.MAC, protoUDP, good, hop, options, routing, ah), true},
		{"all, denied", extended(b.MAC, a.MAC, protoUDP, bad, hop, options, routing, ah), false},
		{"first fragment", extended(b.MAC, a.MAC, protoUDP, good, fragment(1)), true},
		{"first fragment, denied", extended(b.MAC, a.MAC, protoUDP, bad, fragment(1)), false},
		{"first fragment without ports", extended(b.MAC, a.MAC, protoUDP, good[:4], fragment(1)), false},
		{"first fragment with ports in the padding", padded, false},
		{"first fragment that ends in options", extended(b.MAC, a.MAC, protoUDP, nil, fragment(1), options[:9]), false},
		{"later fragment", extended(b.MAC, a.MAC, protoUDP, bad, fragment(8)), true},
		{"too many", extended(b.MAC, a.MAC, protoUDP, good, options, options, options, options, options, options, options, options, options, options), false},
		{"cut off", extended(b.MAC, a.MAC, protoUDP, nil, ext(protoDestination, 9, zero[:6]...)), false},
		{"advertisement", extended(b.MAC, a.MAC, protoICMP6, advertisement), false},
		{"advertisement behind options", extended(b.MAC, a.MAC, protoICMP6, advertisement, options), false},
		{"advertisement behind all", extended(b.MAC, a.MAC, protoICMP6, advertisement, hop, options, routing, ah), false},
		{"advertisement in a fragment", extended(b.MAC, a.MAC, protoICMP6, advertisement, fragment(1)), false},
		{"advertisement in a fragment, behind options", extended(b.MAC, a.MAC, protoICMP6, advertisement, fragment(1), options), false},
		{"advertisement in the only fragment", extended(b.MAC, a.MAC, protoICMP6, advertisement, fragment(0)), false},
		{"echo in a fragment", extended(b.MAC, a.MAC, protoICMP6, echo, fragment(1)), true},
		{"echo in a later fragment", extended(b.MAC, a.MAC, protoICMP6, advertisement, fragment(8)), true},
	} {
		say(a, header{}, c.frame)
		if got := len(atB.caught()) > 0; got != c.want {
			t.Errorf("%s: passed %v, want %v", c.name, got, c.want)
		}
	}
}

// arp returns an ARP packet.
func arp(op byte, mac overlay.MAC, sender string, other overlay.MAC, target string) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, op}
	s, d := netip.MustParseAddr(sender).As4(), netip.MustParseAddr(target).As4()
	return slices.Concat(b, mac[:], s[:], other[:], d[:])
}

func TestWhoHas(t *testing.T) {
	s := New(Config{})
	defer s.Close()
	a, atA := plug(t, s, "red/net", "red/a", "10.1.0.1", "fd00::1")
	b, atB := plug(t, s, "red/net", "red/b", "10.1.0.2", "fd00::2")
	far := overlay.MACOf(netip.MustParseAddr("10.1.0.7"))
	s.SetMap(mapOf(t, overlay.Member{Addr: netip.MustParseAddr("10.1.0.7"), MAC: far, Host: &overlay.Host{Name: "far"}, NIC: "red/far"}))
	for _, c := range []struct {
		name, sender, target string
		want                 overlay.MAC // zero: no answer
	}{
		{"neighbour", "10.1.0.1", "10.1.0.2", b.MAC},
		{"on another host", "10.1.0.1", "10.1.0.7", far},
		{"nobody", "10.1.0.1", "10.1.0.8", overlay.MAC{}},
		{"itself, to see whether it is taken", "0.0.0.0", "10.1.0.1", overlay.MAC{}},
		{"taken", "0.0.0.0", "10.1.0.2", b.MAC},
		{"the server", "10.1.0.1", server.String(), serverMAC},
		{"with another's address", "10.1.0.2", "10.1.0.7", overlay.MAC{}},
	} {
		say(a, header{}, ether(everybody, a.MAC, etherARP, arp(1, a.MAC, c.sender, overlay.MAC{}, c.target)))
		got := atA.caught()
		if c.want == (overlay.MAC{}) {
			if len(got) > 0 {
				t.Errorf("%s: answered with %x", c.name, got)
			}
			continue
		}
		if want := ether(a.MAC, c.want, etherARP, arp(2, c.want, c.target, a.MAC, c.sender)); len(got) != 1 || !bytes.Equal(got[0], want) {
			t.Errorf("%s: got %x, want %x", c.name, got, want)
		}
	}
	if got := atB.caught(); len(got) > 0 {
		t.Errorf("a question was sent on: %x", got)
	}
	// Neighbour discovery: type, code, checksum, reserved, target, and the requester's MAC address.
	target := netip.MustParseAddr("fd00::2").As16()
	m := slices.Concat([]byte{neighbourSolicitation, 0, 0, 0, 0, 0, 0, 0}, target[:], []byte{1, 1}, a.MAC[:])
	ask := frameOf(overlay.MAC{0x33, 0x33, 0xff, 0, 0, 2}, a.MAC, "fd00::1", "ff02::1:ff00:2", protoICMP6, m)
	be.PutUint16(ask[etherSize+wire.IPv6Size+2:], ^fold(sum(m, pseudo(ask[etherSize:], protoICMP6, len(m)))))
	say(a, header{}, ask)
	got := atA.caught()
	if len(got) != 1 || got[0][etherSize+wire.IPv6Size] != neighbourAdvertising || overlay.MAC(got[0][6:]) != b.MAC {
		t.Errorf("neighbour discovery: %x", got)
	}
}

// mapOf returns a map of network red/net, of number 7.
func mapOf(t testing.TB, members ...overlay.Member) *overlay.Map {
	t.Helper()
	m, err := overlay.NewMap([]overlay.Network{{VNI: 7, Name: "red/net", Members: members}})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// rules allows and denies by a function.
type rules func(peer netip.Addr, c ib.Contact) bool

func (r rules) Judge(peer ib.GID, c ib.Contact) (ib.Operations, bool) {
	if r(peer.Addr(), c) {
		return ib.OpSend, true
	}
	return 0, true
}

func TestPolicy(t *testing.T) {
	s := New(Config{})
	defer s.Close()
	a, atA := plug(t, s, "red/net", "red/a", "10.1.0.1")
	b, atB := plug(t, s, "red/net", "red/b", "10.1.0.2")
	// A may connect to UDP port 53 of B, and nothing else.
	const dns = spaceUDP<<16 | 53
	a.SetGuard(rules(func(_ netip.Addr, c ib.Contact) bool { return c.Type == ib.UD && c.By == ib.Us && c.ID == dns }))
	b.SetGuard(rules(func(_ netip.Addr, c ib.Contact) bool { return c.Type == ib.UD && c.By == ib.Them && c.ID == dns }))
	pass := func(p, to *Port, at *catcher, sport, dport uint16) bool {
		say(p, header{}, frameOf(to.MAC, p.MAC, p.Addrs[0].String(), to.Addrs[0].String(), protoUDP, datagram(sport, dport, nil)))
		return len(at.caught()) > 0
	}
	for _, c := range []struct {
		name string
		got  bool
		want bool
	}{
		{"question", pass(a, b, atB, 1000, 53), true},
		{"answer", pass(b, a, atA, 53, 1000), true},
		{"another port", pass(a, b, atB, 1000, 54), false},
		{"from the service's port", pass(b, a, atA, 53, 1001), false},
		{"the other way", pass(b, a, atA, 1000, 53), false},
	} {
		if c.got != c.want {
			t.Errorf("%s passes: %v", c.name, c.got)
		}
	}
	say(a, header{}, frameOf(b.MAC, a.MAC, "10.1.0.1", "10.1.0.2", protoICMP, make([]byte, 8)))
	if len(atB.caught()) > 0 || a.Denied.Load() != 2 {
		t.Errorf("a ping passes, or %d were denied", a.Denied.Load())
	}
}

// A denied service among allowed ones cannot be reached from any port, not even after an earlier success.
func TestDenied(t *testing.T) {
	s := New(Config{})
	defer s.Close()
	a, atA := plug(t, s, "red/net", "red/a", "10.1.0.1")
	b, atB := plug(t, s, "red/net", "red/b", "10.1.0.2")
	cross := func(sport uint16) (n int) {
		say(a, header{}, frameOf(b.MAC, a.MAC, "10.1.0.1", "10.1.0.2", protoUDP, datagram(sport, 53, nil)))
		say(b, header{}, frameOf(a.MAC, b.MAC, "10.1.0.2", "10.1.0.1", protoUDP, datagram(53, sport, nil)))
		return len(atA.caught()) + len(atB.caught())
	}
	const dns = spaceUDP<<16 | 53
	allowed := true
	a.SetGuard(rules(func(_ netip.Addr, c ib.Contact) bool { return allowed || c.By != ib.Us || c.ID != dns }))
	b.SetGuard(rules(func(_ netip.Addr, c ib.Contact) bool { return allowed || c.By != ib.Them || c.ID != dns }))
	if n := cross(1000); n != 2 {
		t.Errorf("%d of 2 pass", n)
	}
	allowed = false
	if n := cross(1000) + cross(1000); n != 0 {
		t.Errorf("%d pass of a flow that has ended", n)
	}
	for _, port := range []uint16{1, 53} {
		say(a, header{}, frameOf(b.MAC, a.MAC, "10.1.0.1", "10.1.0.2", protoUDP, datagram(port, 53, nil)))
	}
	if n := len(atB.caught()); n != 0 {
		t.Errorf("%d pass", n)
	}
}

func TestRoCE(t *testing.T) {
	s := New(Config{})
	defer s.Close()
	a, atA := plug(t, s, "red/net", "red/a", "10.1.0.1")
	b, atB := plug(t, s, "red/net", "red/b", "10.1.0.2")
	cross := func() (n int) {
		say(a, header{}, frameOf(b.MAC, a.MAC, "10.1.0.1", "10.1.0.2", protoUDP, datagram(0xc000, wire.Port, nil)))
		say(b, header{}, frameOf(a.MAC, b.MAC, "10.1.0.2", "10.1.0.1", protoUDP, datagram(0xc000, wire.Port, nil)))
		return len(atA.caught()) + len(atB.caught())
	}
	if n := cross(); n != 2 {
		t.Errorf("%d of 2 pass", n)
	}
	a.InUse = func() bool { return true }
	a.asked.Store(0)
	if n := cross(); n != 0 {
		t.Errorf("%d pass, and the daemon has the NIC", n)
	}
}

func TestArrivals(t *testing.T) {
	s := New(Config{})
	defer s.Close()
	far, other := &overlay.Host{Name: "far"}, &overlay.Host{Name: "other"}
	mac := overlay.MACOf(netip.MustParseAddr("10.1.0.7"))
	s.SetMap(mapOf(t, overlay.Member{Addr: netip.MustParseAddr("10.1.0.7"), MAC: mac, Host: far, NIC: "red/far"}))
	a, atA := plug(t, s, "red/net", "red/a", "10.1.0.1")
	text := datagram(1, 2, []byte("hello"))
	good := frameOf(a.MAC, mac, "10.1.0.7", "10.1.0.1", protoUDP, text)
	s.Receive(8, far, good)
	s.Receive(7, other, good)
	s.Receive(7, far, frameOf(a.MAC, a.MAC, "10.1.0.7", "10.1.0.1", protoUDP, text))
	s.Receive(7, far, frameOf(a.MAC, mac, "10.1.0.8", "10.1.0.1", protoUDP, text))
	s.Receive(7, far, ether(a.MAC, mac, etherARP, arp(2, mac, "10.1.0.7", a.MAC, "10.1.0.1")))
	s.Receive(7, far, good[:20])
	s.Receive(7, far, good)
	s.Receive(7, far, frameOf(everybody, mac, "10.1.0.7", "255.255.255.255", protoUDP, text))
	s.Close() // what was received is delivered
	if got := atA.caught(); len(got) != 2 || !bytes.Equal(got[0], good) {
		t.Errorf("got %x", got)
	}
	s.Receive(7, far, good)
}

// sendFunc is a Sender.
type sendFunc func(vni uint32, to *overlay.Host, frame []byte)

func (f sendFunc) SendFrame(vni uint32, to *overlay.Host, frame []byte) { f(vni, to, frame) }

func TestToOtherHosts(t *testing.T) {
	var sent [][]byte
	far := &overlay.Host{Name: "far"}
	s := New(Config{Hosts: sendFunc(func(vni uint32, to *overlay.Host, b []byte) {
		if vni != 7 || to != far {
			t.Errorf("to %v in %d", to, vni)
		}
		sent = append(sent, bytes.Clone(b))
	})})
	defer s.Close()
	mac := overlay.MACOf(netip.MustParseAddr("10.1.0.7"))
	s.SetMap(mapOf(t, overlay.Member{Addr: netip.MustParseAddr("10.1.0.7"), MAC: mac, Host: far, NIC: "red/far"}))
	a, _ := plug(t, s, "red/net", "red/a", "10.1.0.1")
	say(a, header{}, frameOf(mac, a.MAC, "10.1.0.1", "10.1.0.7", protoUDP, datagram(1, 2, nil)))
	say(a, header{}, frameOf(everybody, a.MAC, "10.1.0.1", "10.1.0.255", protoUDP, datagram(1, 2, nil)))
	h, large := segment(a.MAC, mac, "10.1.0.1", "10.1.0.7", 3000, 1400)
	say(a, h, large)
	if len(sent) != 2+3 {
		t.Errorf("%d frames", len(sent))
	}
}

func TestBucket(t *testing.T) {
	var b bucket
	now := time.Unix(1, 0)
	if !b.take(1<<30, now) || b.wait(now) != 0 {
		t.Error("there is a limit where none was set")
	}
	b.set(1_000_000, 100_000)
	total := 0
	for range 2000 { // two seconds
		for b.take(1500, now) {
			total += 1500
		}
		now = now.Add(time.Millisecond)
	}
	if total < 2_000_000 || total > 2_000_000+100_000+1500+1000 {
		t.Errorf("%d bytes in two seconds", total)
	}
	b.take(5000, now.Add(time.Millisecond))
	if w := b.wait(now.Add(time.Millisecond)); w <= 0 || w > 6*time.Millisecond {
		t.Errorf("waits %v", w)
	}
}

// TestTenantRate: a tenant's rate applies to all its ports together, and to no other tenant's.
func TestTenantRate(t *testing.T) {
	s := New(Config{})
	defer s.Close()
	a, _ := plug(t, s, "red/net", "red/a", "10.1.0.1")
	b, atB := plug(t, s, "red/net", "red/b", "10.1.0.2")
	c, atC := plug(t, s, "red/net", "red/c", "10.1.0.3")
	d, atD := plug(t, s, "blue/net", "blue/d", "10.1.0.1")
	e, _ := plug(t, s, "blue/net", "blue/e", "10.1.0.2")
	s.SetRate("red", 0, 1, 1) // a frame is minutes
	s.SetRate("nobody", 0, 1, 1)
	send := func(from, to *Port) {
		say(from, header{}, frameOf(to.MAC, from.MAC, from.Addrs[0].String(), to.Addrs[0].String(), protoUDP, datagram(1, 2, make([]byte, 100))))
	}
	for range 2 {
		send(a, b)
		send(a, c)
		send(e, d)
	}
	if x, y, z := len(atB.caught()), len(atC.caught()), len(atD.caught()); x != 1 || y != 0 || z != 2 || b.Capped.Load() != 1 || c.Capped.Load() != 2 {
		t.Errorf("they got %d, %d and %d, want 1, 0 and 2", x, y, z)
	}
	if a.shared.limits[out].set(1, 1); a.pause(time.Now()) != 0 {
		t.Error("nothing was sent, and it waits")
	}
	b.charge(100, time.Now())
	if a.pause(time.Now()) == 0 {
		t.Error("another of the tenant's NICs has sent, and it does not wait")
	}
	s.SetRate("red", 0, 0, 0)
	send(a, c)
	if len(atC.caught()) != 1 || a.pause(time.Now()) != 0 {
		t.Error("the limit is gone, and holds")
	}
	for _, p := range []*Port{a, b, c, d, e} {
		p.behind.Store(nil)
		p.Unplug()
	}
	if len(s.tenants) != 0 {
		t.Errorf("%d tenants are left", len(s.tenants))
	}
}

func TestTaken(t *testing.T) {
	s := New(Config{})
	defer s.Close()
	a, _ := plug(t, s, "red/net", "red/a", "10.1.0.1")
	if _, ok := a.attach(&attachment{}); ok {
		t.Error("two are behind one port")
	}
	if _, err := s.Plug(PortConfig{NIC: "red/x", Network: "red/net", Addrs: a.Addrs, MTU: 1500}); err == nil {
		t.Error("two have one address")
	}
}

// TestDetach: an attachment that does not end delays the removal of its port by detachTime at most.
func TestDetach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		a := netip.MustParseAddr("10.1.0.1")
		p, err := s.Plug(PortConfig{NIC: "red/a", Network: "red/net", MTU: 1500, MAC: overlay.MACOf(a), Addrs: []netip.Addr{a}})
		if err != nil {
			t.Fatal(err)
		}
		closed := false
		done, ok := p.attach(&attachment{receiver: &catcher{}, close: func() { closed = true }})
		if !ok {
			t.Fatal("somebody is attached")
		}
		start := time.Now()
		p.Unplug()
		if !closed || time.Since(start) != detachTime {
			t.Errorf("closed %v, after %v", closed, time.Since(start))
		}
		done()
		s.Close()
	})
}
