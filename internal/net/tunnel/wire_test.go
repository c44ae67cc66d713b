package tunnel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/roce"
)

// A wireNet is an underlay in memory. It records what it has carried.
type wireNet struct {
	mu   sync.Mutex
	ends map[netip.Addr]*wireEnd
	seen []datagram
	// way, if set, returns what arrives for a datagram. It is called with the network locked.
	way func(d datagram) []datagram
}

type datagram struct {
	from, to netip.AddrPort
	data     []byte
}

// A wireEnd is a socket of a wireNet.
type wireEnd struct {
	net    *wireNet
	at     netip.AddrPort
	in     chan datagram
	closed chan struct{}
	once   sync.Once
}

func newWire() *wireNet { return &wireNet{ends: map[netip.Addr]*wireEnd{}} }

// socket returns the socket of an address.
func (n *wireNet) socket(at netip.AddrPort) *wireEnd {
	e := &wireEnd{net: n, at: at, in: make(chan datagram, 1<<14), closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ends[at.Addr()] = e
	return e
}

// carry delivers datagrams.
func (n *wireNet) carry(ds ...datagram) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range ds {
		n.seen = append(n.seen, d)
		arrives := []datagram{d}
		if n.way != nil {
			arrives = n.way(d)
		}
		n.deliver(arrives...)
	}
}

// deliver is carry for datagrams in flight. The caller holds mu.
func (n *wireNet) deliver(ds ...datagram) {
	for _, d := range ds {
		if e := n.ends[d.to.Addr()]; e != nil && e.at == d.to {
			select {
			case e.in <- d:
			default:
			}
		}
	}
}

// captured returns the carried datagrams of one WireGuard type; 0 means any.
func (n *wireNet) captured(kind uint32) (c []datagram) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range n.seen {
		if kind == 0 || binary.LittleEndian.Uint32(d.data) == kind {
			c = append(c, d)
		}
	}
	return c
}

func (e *wireEnd) send(bufs [][]byte, to netip.AddrPort) error {
	for _, b := range bufs {
		e.net.carry(datagram{e.at, to, bytes.Clone(b)})
	}
	return nil
}

func (e *wireEnd) receivers() []receiver {
	return []receiver{func(bufs [][]byte, sizes []int, from []netip.AddrPort) (int, error) {
		select {
		case d := <-e.in:
			sizes[0], from[0] = copy(bufs[0], d.data), d.from
			return 1, nil
		case <-e.closed:
			return 0, net.ErrClosed
		}
	}}
}

func (e *wireEnd) close() error {
	e.once.Do(func() {
		close(e.closed)
		e.net.mu.Lock()
		defer e.net.mu.Unlock()
		if e.net.ends[e.at.Addr()] == e {
			delete(e.net.ends, e.at.Addr())
		}
	})
	return nil
}

// A testHost is a host with a tunnel. The goroutine that calls say and hear acts as its loop.
type testHost struct {
	t    testing.TB
	net  *wireNet
	name string
	addr netip.Addr // in the underlay
	key  Key
	tun  *Tunnel
	msgs []roce.Message
}

// newHost creates a host at 192.0.2.N, or 2001:db8::N, and opens its tunnel.
func newHost(t testing.TB, n *wireNet, addr string) *testHost {
	t.Helper()
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	h := &testHost{t: t, net: n, name: "host-" + addr, addr: netip.MustParseAddr(addr), key: k, msgs: make([]roce.Message, 16)}
	for i := range h.msgs {
		h.msgs[i].Data = make([]byte, 1<<16)
	}
	h.open()
	return h
}

func (h *testHost) open() {
	h.t.Helper()
	o := Options{Log: chatter(h), Key: h.key, Addrs: []netip.Addr{h.addr}, Port: overlay.DefaultTunnelPort}
	var err error
	if h.tun, err = open(o, h.net.socket(netip.AddrPortFrom(h.addr, o.Port))); err != nil {
		h.t.Fatal(err)
	}
}

func (h *testHost) close() {
	h.t.Helper()
	if err := h.tun.Close(); err != nil {
		h.t.Error(err)
	}
}

// entry returns the host's entry in the map.
func (h *testHost) entry(self bool) *overlay.Host {
	return &overlay.Host{Name: h.name, Addrs: []netip.Addr{h.addr}, Key: h.key.Public(), Self: self}
}

// mapOf returns the map of an encrypted network of these hosts, as seen by self.
func mapOf(t testing.TB, self string, hosts ...*overlay.Host) *overlay.Map {
	t.Helper()
	n := overlay.Network{VNI: 5, Name: "red/train", Encrypted: true}
	for i, h := range hosts {
		c := *h
		c.Self = h.Name == self
		n.Members = append(n.Members, overlay.Member{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Host: &c})
	}
	m, err := overlay.NewMap([]overlay.Network{n})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// join makes hosts know each other.
func join(t testing.TB, hosts ...*testHost) {
	t.Helper()
	var entries []*overlay.Host
	for _, h := range hosts {
		entries = append(entries, h.entry(false))
	}
	for _, h := range hosts {
		h.follow(entries...)
	}
}

// retained keeps the peers of tests in virtual time alive. WireGuard drains the channels of an unused peer in a finalizer, and
// channels of virtual time must not be used from outside.
var retained struct {
	sync.Mutex
	peers []*peers
}

// follow sets the map of a host, and waits until it is applied.
func (h *testHost) follow(entries ...*overlay.Host) {
	h.t.Helper()
	h.tun.SetMap(mapOf(h.t, h.name, entries...))
	for end := time.Now().Add(time.Minute); h.tun.pending.Load(); time.Sleep(time.Microsecond) {
		if time.Now().After(end) {
			h.t.Fatal("the peers do not follow the map")
		}
	}
	retained.Lock()
	defer retained.Unlock()
	retained.peers = append(retained.peers, h.tun.peers.Load())
}

// to returns a message to another host.
func (h *testHost) to(o *testHost, data []byte, segment int) roce.Message {
	return roce.Message{Data: data, Segment: segment, Host: h.tun.members.HostBehind(overlay.TunnelAddr(o.key.Public()))}
}

// say sends one datagram to a host.
func (h *testHost) say(o *testHost, text string) {
	h.t.Helper()
	if n, err := h.tun.Send([]roce.Message{h.to(o, []byte(text), 0)}); n != 1 || err != nil {
		h.t.Fatalf("Send: %d, %v", n, err)
	}
}

// meet waits until there is a session with another host.
func (h *testHost) meet(o *testHost) {
	h.t.Helper()
	h.say(o, "hello")
	o.await(1)
}

// heard is a datagram received through a tunnel.
type heard struct {
	from netip.Addr
	text string
}

// hear returns the received datagrams.
func (h *testHost) hear() (all []heard) {
	h.t.Helper()
	for {
		for i := range h.msgs {
			h.msgs[i].Data = h.msgs[i].Data[:1<<16]
		}
		n, err := h.tun.Receive(h.msgs)
		if err != nil {
			h.t.Fatal(err)
		}
		if n == 0 {
			return all
		}
		for _, m := range h.msgs[:n] {
			for c := range slices.Chunk(m.Data, max(1, m.Segment)) {
				all = append(all, heard{m.Remote.Addr(), string(c)})
			}
		}
	}
}

// await receives until there are n datagrams, for a minute at most.
func (h *testHost) await(n int) (all []heard) {
	h.t.Helper()
	for end := time.Now().Add(time.Minute); len(all) < n; {
		if all = append(all, h.hear()...); len(all) >= n {
			break
		}
		if time.Now().After(end) {
			h.t.Fatalf("%s heard %d datagrams within a minute, want %d; %+v", h.name, len(all), n, h.tun.Counters())
		}
		time.Sleep(time.Millisecond)
	}
	return all
}

// readable reports whether the descriptor that wakes the loop is readable.
func (h *testHost) readable() bool {
	p := []unix.PollFd{{Fd: int32(h.tun.FD()), Events: unix.POLLIN}}
	n, _ := unix.Poll(p, 0)
	return n == 1
}

// texts returns n different datagrams.
func texts(what string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s %06d in the clear", what, i))
	}
	return all
}

// wantHeard compares the received datagrams with those sent, in any order.
func wantHeard(t testing.TB, got []heard, from *testHost, want []string) {
	t.Helper()
	var all []string
	for _, g := range got {
		if g.from != overlay.TunnelAddr(from.key.Public()) {
			t.Fatalf("%q is from %v, want %s at %v", g.text, g.from, from.name, overlay.TunnelAddr(from.key.Public()))
		}
		all = append(all, g.text)
	}
	slices.Sort(all)
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(all, want) {
		t.Fatalf("heard %d datagrams, want %d: %.3q…, want %.3q…", len(all), len(want), all, want)
	}
}

// chatter returns a logger for debugging WireGuard.
func chatter(h *testHost) *slog.Logger {
	if os.Getenv("VRDMA_TEST_CHATTER") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("host", h.name)
}
