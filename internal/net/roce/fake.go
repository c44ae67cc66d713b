package roce

import (
	"net/netip"
	"slices"
	"sync"

	"vrdma.dev/vrdma/internal/net/wire"
)

// A FakeNet is a network in memory, for tests. Datagrams arrive at once, complete and in order, unless Way
// changes that.
type FakeNet struct {
	// Way, if set, decides what happens to a datagram. It may change the datagram's bytes. It is called with
	// the network locked.
	Way func(d *FakeDatagram)

	mu    sync.Mutex // guards everything below, and the queues of all binds
	binds map[netip.AddrPort]*FakeBind
}

// FakeDatagram is a datagram in flight.
type FakeDatagram struct {
	From, To netip.AddrPort
	Data     []byte
	CE       bool // arrives with the Congestion Experienced mark
	Copies   int  // number of times that it arrives: 1 unless changed
}

// FakeOptions are the properties of a fake bind.
type FakeOptions struct {
	Segments int // maximum datagrams in one sent message; 0 means MaxSegments
	Merge    int // maximum datagrams merged into one received message; 0 means MaxSegments
	Queue    int // maximum datagrams waiting to be received; more are lost; 0 means 4096
	// FailSegments makes the first message with several datagrams fail with ErrSegments, as on a device
	// without offloads.
	FailSegments bool
	// Port is the port at which datagrams arrive; 0 means RoCEv2's.
	Port uint16
	// Shards is the number of loops that receive; 0 means one. Unsteered delivers everything to the first, as if the
	// kernel had merged all trains.
	Shards    int
	Unsteered bool
	// SendBuffer is the number of messages that one Send accepts before ErrFull; 0 means no limit.
	SendBuffer int
}

// A FakeBind is a Bind on a FakeNet.
type FakeBind struct {
	net     *FakeNet
	addrs   []netip.Addr
	opts    FakeOptions
	waiting []FakeDatagram
	Lost    int // datagrams lost because the queue was full
	closed  bool
	more    []*FakeBind // the other shards
	table   SteeringTable
}

// NewFakeNet returns an empty network.
func NewFakeNet() *FakeNet { return &FakeNet{binds: map[netip.AddrPort]*FakeBind{}} }

// Bind adds a host with these addresses.
func (n *FakeNet) Bind(o FakeOptions, addrs ...netip.Addr) *FakeBind {
	if o.Segments == 0 {
		o.Segments = MaxSegments
	}
	if o.Merge == 0 {
		o.Merge = MaxSegments
	}
	if o.Queue == 0 {
		o.Queue = 4096
	}
	if o.Port == 0 {
		o.Port = wire.Port
	}
	b := &FakeBind{net: n, addrs: addrs, opts: o}
	for range o.Shards - 1 {
		b.more = append(b.more, &FakeBind{net: n, addrs: addrs, opts: o})
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range addrs {
		n.binds[netip.AddrPortFrom(a, o.Port)] = b
	}
	return b
}

// Shards implements Steered.
func (b *FakeBind) Shards() int { return 1 + len(b.more) }

// Shard implements Steered.
func (b *FakeBind) Shard(i int) Shard { return b.more[i-1] }

// Steer implements Steered.
func (b *FakeBind) Steer(t *SteeringTable) error {
	b.net.mu.Lock()
	defer b.net.mu.Unlock()
	b.table = *t
	return nil
}

// Descriptors implements Shard: there are none.
func (b *FakeBind) Descriptors() []int { return nil }

// at is the shard at which a datagram arrives.
func (b *FakeBind) at(d *FakeDatagram) *FakeBind {
	if len(b.more) == 0 || b.opts.Unsteered || len(d.Data) < wire.BTHSize {
		return b
	}
	qp := wire.BTH(d.Data).DestQP()
	if i := b.table[BucketOf(qp)]; i > 0 && qp != wire.GSIQP {
		return b.more[i-1]
	}
	return b
}

// Source implements Bind with eight source ports per address.
func (b *FakeBind) Source(local netip.Addr, hash uint32) (int, netip.AddrPort, bool) {
	i := slices.Index(b.addrs, local)
	if i < 0 {
		return 0, netip.AddrPort{}, false
	}
	k := int(hash % poolSize)
	return i*poolSize + k, netip.AddrPortFrom(local, firstPort+uint16(k)), true
}

// Segments implements Bind.
func (b *FakeBind) Segments() int { return b.opts.Segments }

// Send implements Bind.
func (b *FakeBind) Send(msgs []Message) (int, error) {
	b.net.mu.Lock()
	defer b.net.mu.Unlock()
	for i := range msgs {
		m := &msgs[i]
		if b.opts.SendBuffer > 0 && i == b.opts.SendBuffer {
			return i, ErrFull
		}
		if packetsIn(m) > 1 && b.opts.FailSegments {
			b.opts.FailSegments, b.opts.Segments = false, 1
		}
		if int(packetsIn(m)) > b.opts.Segments {
			return i, ErrSegments
		}
		from := netip.AddrPortFrom(b.addrs[m.Source/poolSize], firstPort+uint16(m.Source%poolSize))
		segment := m.Segment
		if segment <= 0 {
			segment = len(m.Data)
		}
		for at := 0; at < len(m.Data); at += segment {
			b.net.carry(FakeDatagram{From: from, To: m.Remote, Data: slices.Clone(m.Data[at:min(len(m.Data), at+segment)]), Copies: 1})
		}
	}
	return len(msgs), nil
}

// carry delivers a datagram. The caller holds n.mu.
func (n *FakeNet) carry(d FakeDatagram) {
	if n.Way != nil {
		n.Way(&d)
	}
	to := n.binds[d.To]
	if to == nil || to.closed {
		return
	}
	to = to.at(&d)
	for range d.Copies {
		if len(to.waiting) == to.opts.Queue {
			to.Lost++
			continue
		}
		to.waiting = append(to.waiting, d)
	}
}

// Receive implements Bind.
func (b *FakeBind) Receive(msgs []Message) (int, error) {
	b.net.mu.Lock()
	defer b.net.mu.Unlock()
	n := 0
	for n < len(msgs) && len(b.waiting) > 0 {
		k := b.merge(&msgs[n])
		b.waiting = b.waiting[k:]
		n++
	}
	return n, nil
}

// merge fills in m with the first waiting datagrams, as GRO does, and returns their number.
func (b *FakeBind) merge(m *Message) int {
	first := &b.waiting[0]
	size := len(first.Data)
	m.Data = append(m.Data[:0], first.Data...)
	m.Segment, m.Remote, m.Local, m.CE = 0, first.From, first.To, first.CE
	k := 1
	for k < len(b.waiting) && k < b.opts.Merge {
		d := &b.waiting[k]
		if d.From != first.From || d.To != first.To || d.CE != first.CE || len(d.Data) > size || len(m.Data)+len(d.Data) > MaxMessage {
			break
		}
		m.Data = append(m.Data, d.Data...)
		m.Segment = size
		if k++; len(d.Data) < size {
			break
		}
	}
	return k
}

// Close implements Bind.
func (b *FakeBind) Close() error {
	b.net.mu.Lock()
	defer b.net.mu.Unlock()
	b.closed = true
	return nil
}
