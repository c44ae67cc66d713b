package tunnel

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/roce"
)

const (
	// ringBytes and ringSlots are the size of each ring.
	ringBytes = 2 << 20
	ringSlots = 1024
	// maxDatagram is the longest datagram that fits into one of WireGuard's buffers.
	maxDatagram = device.MaxMessageSize - sealed - padding - headers
)

// Options configure a tunnel.
type Options struct {
	// Key is this host's private key.
	Key Key
	// Addrs are the addresses of this host that receive WireGuard, at most one per family.
	Addrs []netip.Addr
	// Port is the UDP port there; 0 means overlay.DefaultTunnelPort.
	Port uint16
	// Buffer is the size of the socket buffers; 0 means 16 MiB. The kernel may limit it.
	Buffer int
	Log    *slog.Logger
	// Inherited returns the socket of an address at the port that another daemon has left (Sockets), which the tunnel
	// then owns; none: the tunnel opens one. nil: there are none.
	Inherited func(port uint16, addr netip.Addr) []int
	// Silent makes the tunnel read and send nothing until Begin: the sockets are another daemon's until then.
	Silent bool
}

// Counters count packets.
type Counters struct {
	Sent        uint64 // encrypted, to other hosts
	SendErrors  uint64 // dropped: refused by the kernel, for instance without a route
	TooLong     uint64 // dropped: too long for the path
	NoPeer      uint64 // dropped: no tunnel to the host
	Waiting     uint64 // dropped: no session with the host for too long
	Received    uint64 // decrypted and passed to the loop
	ReceiveFull uint64 // dropped: the loop is too slow
	Malformed   uint64 // dropped: a peer sent a packet that is not a datagram for this host
	Unknown     uint64 // datagrams dropped: from an address of no peer
}

// counters are the counters of a running tunnel.
type counters struct {
	sent, sendErrors, tooLong, noPeer, waiting, received, receiveFull, malformed, unknown atomic.Uint64
}

// A Tunnel connects this host with others, each over an encrypted channel. The methods of roce.Tunnel belong to the loop; any
// goroutine may call the others.
type Tunnel struct {
	log      *slog.Logger
	device   *device.Device
	port     uint16
	families map[bool]bool // by Is6: whether this host has an address
	count    counters

	// members is the map that the loop uses. addrs caches the inner addresses of its hosts.
	members *overlay.Map
	addrs   map[*overlay.Host]netip.AddrPort

	// The housekeeping goroutine applies the map that the loop set last.
	wanted  atomic.Pointer[overlay.Map]
	news    chan struct{} // wanted has changed
	pending atomic.Bool   // wanted is not applied yet
	mu      sync.Mutex    // guards key; held while peers change
	key     Key
	silent  bool // until Begin; guarded by mu
	peers   atomic.Pointer[peers]
	wait    time.Duration // how long the host with the larger key delays its handshake initiation
	sockets func() map[netip.Addr][]int

	// To WireGuard: the loop writes, inside.Read reads.
	out        *ring
	cut        int // offset of inside.Read in its next message
	readerIdle atomic.Bool
	work       chan struct{} // there is a message
	room       chan struct{} // a packet was sent

	// From WireGuard: inside.Write writes, the loop reads.
	inMu  sync.Mutex // serializes the writers
	in    *ring
	event int // eventfd
	told  atomic.Bool

	events  chan tun.Event
	closing sync.Once
	closed  chan struct{}
	helpers sync.WaitGroup
	shut    sync.Once
}

var _ roce.Tunnel = (*Tunnel)(nil)

// Open opens the tunnel of this host. It has no peers before SetMap.
func Open(o Options) (*Tunnel, error) {
	if o.Port == 0 {
		o.Port = overlay.DefaultTunnelPort
	}
	s, err := listenUDP(o)
	if err != nil {
		return nil, err
	}
	t, err := open(o, s)
	if err != nil {
		s.close()
		return nil, err
	}
	t.sockets = s.descriptors
	return t, nil
}

// open opens a tunnel over a socket; Close closes the socket.
func open(o Options, s socket) (*Tunnel, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	t := &Tunnel{
		log: o.Log, key: o.Key, port: o.Port, families: map[bool]bool{}, silent: o.Silent, wait: precedence,
		out: newRing(ringSlots, ringBytes), in: newRing(ringSlots, ringBytes),
		work: make(chan struct{}, 1), room: make(chan struct{}, 1),
		addrs: make(map[*overlay.Host]netip.AddrPort), news: make(chan struct{}, 1),
		events: make(chan tun.Event), closed: make(chan struct{}),
	}
	for _, a := range o.Addrs {
		t.families[a.Unmap().Is6()] = true
	}
	t.peers.Store(&peers{self: overlay.TunnelAddr(o.Key.Public()), key: o.Key.Public()})
	var err error
	if t.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("tunnel: eventfd: %w", err)
	}
	complain := func(format string, args ...any) { t.log.Debug("WireGuard: " + fmt.Sprintf(format, args...)) }
	chat := device.DiscardLogf
	if t.log.Enabled(context.Background(), slog.LevelDebug) {
		chat = complain
	}
	t.device = device.NewDevice(inside{t}, &outside{Tunnel: t, socket: s}, &device.Logger{Verbosef: chat, Errorf: complain})
	if o.Silent {
		t.wait = shortPrecedence
	}
	err = t.setKey(o.Key)
	if err == nil && !o.Silent {
		err = t.device.Up()
	}
	if err != nil {
		t.device.Close()
		unix.Close(t.event)
		return nil, fmt.Errorf("tunnel: %w", err)
	}
	t.helpers.Go(t.maintain)
	return t, nil
}

// setKey tells WireGuard this host's private key.
func (t *Tunnel) setKey(k Key) error {
	return t.device.IpcSet("private_key=" + hex.EncodeToString(k.private.Bytes()) + "\n")
}

// SetKey changes this host's key. Other hosts accept it when their map contains it.
func (t *Tunnel) SetKey(k Key) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.setKey(k); err != nil {
		return err
	}
	t.key = k
	return t.follow(t.wanted.Load())
}

// Port returns the UDP port at which WireGuard is received.
func (t *Tunnel) Port() uint16 { return t.port }

// Addr is this host's address inside the tunnel.
func (t *Tunnel) Addr() netip.Addr { return t.peers.Load().self }

// FD implements roce.Tunnel.
func (t *Tunnel) FD() int { return t.event }

// Overhead implements roce.Tunnel.
func (t *Tunnel) Overhead() int { return Head }

// SetMap implements roce.Tunnel. Another goroutine applies the map shortly after, because that takes too long for the loop.
func (t *Tunnel) SetMap(m *overlay.Map) {
	t.members = m
	clear(t.addrs)
	t.wanted.Store(m)
	t.pending.Store(true)
	signal(t.news)
}

// signal wakes the goroutine that waits for c, now or at its next wait.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Send implements roce.Tunnel.
func (t *Tunnel) Send(msgs []roce.Message) (done int, err error) {
	for ; done < len(msgs) && err == nil; done++ {
		if err = t.push(&msgs[done]); err != nil {
			break
		}
	}
	if done > 0 && t.readerIdle.Load() {
		signal(t.work)
	}
	return done, err
}

// push writes a message into the ring.
func (t *Tunnel) push(m *roce.Message) error {
	segment := m.Segment
	if segment <= 0 || segment > len(m.Data) {
		segment = len(m.Data)
	}
	to, ok := t.inner(m.Host)
	if !ok {
		t.count.noPeer.Add(1)
		return roce.ErrNoTunnel
	}
	if p := t.peers.Load().inside[to.Addr()]; segment > maxDatagram || segment == 0 || p != nil && segment > int(p.room.Load()) {
		t.count.tooLong.Add(1)
		return unix.EMSGSIZE
	}
	s := t.out.reserve(len(m.Data))
	if s == nil {
		return roce.ErrFull
	}
	copy(s.data, m.Data)
	s.to, s.segment = to, segment
	t.out.commit(s)
	return nil
}

// inner returns the inner address at which a host receives VXLAN.
func (t *Tunnel) inner(h *overlay.Host) (netip.AddrPort, bool) {
	if a, found := t.addrs[h]; found {
		return a, a.IsValid()
	}
	var to netip.AddrPort
	if h != nil && h.Key != [32]byte{} {
		a := overlay.TunnelAddr(h.Key)
		if t.members.HostBehind(a) != h {
			return to, false // the host is of another map
		}
		port := h.Port
		if port == 0 {
			port = overlay.DefaultPort
		}
		to = netip.AddrPortFrom(a, port)
	}
	t.addrs[h] = to
	return to, to.IsValid()
}

// Receive implements roce.Tunnel.
func (t *Tunnel) Receive(msgs []roce.Message) (int, error) {
	n := 0
	for n < len(msgs) {
		s := t.in.next()
		if s == nil && t.told.Load() {
			// Make the descriptor unreadable, then check again: a writer may have skipped the wake-up because the
			// descriptor was readable.
			var b [8]byte
			_, _ = unix.Read(t.event, b[:])
			t.told.Store(false)
			s = t.in.next()
		}
		if s == nil {
			break
		}
		m := &msgs[n]
		if m.Host = t.members.HostBehind(s.from.Addr()); m.Host == nil {
			t.count.unknown.Add(datagrams(s, 0)) // the peer has just been removed
			t.in.done(s)
			continue
		}
		m.Data = m.Data[:copy(m.Data, s.data)]
		m.Remote, m.Local, m.Segment, m.CE = s.from, s.to, s.segment, false
		t.in.done(s)
		n++
	}
	return n, nil
}

// Counters returns the current counters.
func (t *Tunnel) Counters() Counters {
	c := &t.count
	return Counters{
		Sent: c.sent.Load(), SendErrors: c.sendErrors.Load(), TooLong: c.tooLong.Load(),
		NoPeer: c.noPeer.Load(), Waiting: c.waiting.Load(), Received: c.received.Load(),
		ReceiveFull: c.receiveFull.Load(), Malformed: c.malformed.Load(), Unknown: c.unknown.Load(),
	}
}

// Dropped implements roce.Tunnel.
func (t *Tunnel) Dropped() roce.TunnelCounters {
	c := t.Counters()
	return roce.TunnelCounters{Strangers: c.Unknown, NoSession: c.NoPeer + c.Waiting, Refused: c.Malformed, Full: c.ReceiveFull + c.SendErrors + c.TooLong}
}

// Close closes the tunnel.
func (t *Tunnel) Close() error {
	err := errors.New("tunnel: closed already")
	t.shut.Do(func() {
		t.device.Close()
		t.helpers.Wait()
		err = unix.Close(t.event)
	})
	return err
}
