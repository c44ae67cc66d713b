package wire

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"vrdma.dev/vrdma/internal/net/pcap"
	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/testkit/golden"
	"vrdma.dev/vrdma/test/cable"
)

// attacker is somebody on the same wire as two hosts. It sees everything and sends
// whatever it likes in anybody's name; the host a is what it is after.
//
//	a ──┐
//	    ├── hub ── attacker
//	b ──┘
type attacker struct {
	*lab
	v6    bool
	probe *cable.Probe
	rng   *rand.Rand
	ready atomic.Bool // the hosts have their addresses

	mu      sync.Mutex // guards all below
	samples []golden.Packet
	out     int // bytes of UDP payload from a to port 4791
}

// stranger is an unused address.
func (k *attacker) stranger() netip.Addr {
	if k.v6 {
		return netip.MustParseAddr("fd00:99::77")
	}
	return netip.MustParseAddr("10.99.0.77")
}

// newAttacker makes two hosts with an attacker between them.
func newAttacker(t *testing.T, v6 bool) *attacker {
	t.Helper()
	k := &attacker{v6: v6, rng: rand.New(rand.NewPCG(1, 2))}
	k.probe = cable.NewProbe(func(frame []byte) { k.see(frame) })
	k.lab = newWire(t, layout{mtu: 1500, cable: true, more: []cable.End{k.probe}})
	k.ready.Store(true)
	// The host's answers to the stranger must reach the wire.
	k.a.space.IP(t, "neighbour", "add", k.stranger().String(), "lladdr", "02:00:00:00:00:77", "dev", "eth0", "nud", "permanent")
	k.a.start(t)
	k.b.start(t)
	return k
}

// see reads the frames on the wire.
func (k *attacker) see(frame []byte) {
	p, ok := golden.Parse(frame, pcap.Ethernet)
	if !ok || !k.ready.Load() {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch p.Src.Addr().String() {
	case k.a.ip4, k.a.ip6:
		k.out += len(p.Data)
	case k.b.ip4, k.b.ip6:
		const enough = 400
		if len(k.samples) == enough {
			k.samples = k.samples[1:]
		}
		p, _ = golden.Parse(bytes.Clone(frame), pcap.Ethernet)
		k.samples = append(k.samples, p)
	}
}

// sent returns how much a has sent.
func (k *attacker) sent() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.out
}

// forge wraps a packet in a frame for host a. If sealed, and if it is a valid packet, it gets the right ICRC.
func (k *attacker) forge(from netip.AddrPort, data []byte, sealed bool) []byte {
	k.mu.Lock()
	sample := k.samples[0]
	k.mu.Unlock()
	data = bytes.Clone(data)
	if p, err := wire.Parse(data); err == nil && sealed {
		var flow wire.Flow
		flow.Set(from, sample.Dst)
		flow.Seal(p, 0)
	}
	head := 14 + wire.IPv4Size
	if k.v6 {
		head = 14 + wire.IPv6Size
	}
	f := make([]byte, head+wire.UDPSize, head+wire.UDPSize+len(data))
	copy(f, sample.Frame[:14])
	if k.v6 {
		h := wire.IPv6(f[14:])
		h.Init()
		h.SetPayloadLength(wire.UDPSize + len(data))
		h.SetHopLimit(wire.DefaultTTL)
		h.SetSrc(from.Addr().As16())
		h.SetDst(sample.Dst.Addr().As16())
	} else {
		h := wire.IPv4(f[14:])
		h.Init()
		h.SetTotalLength(wire.IPv4Size + wire.UDPSize + len(data))
		h.SetFragment(wire.DontFragment)
		h.SetTTL(wire.DefaultTTL)
		h.SetSrc(from.Addr().As4())
		h.SetDst(sample.Dst.Addr().As4())
		h.SetChecksum(h.Sum())
	}
	u := wire.UDP(f[head:])
	u.SetSrcPort(from.Port())
	u.SetDstPort(wire.Port)
	u.SetLength(wire.UDPSize + len(data))
	return append(f, data...)
}

// counted returns host a's counters of rejected packets: damaged, malformed, or without a receiver.
func (k *attacker) counted(t *testing.T) uint64 {
	t.Helper()
	c := k.a.Status(t).Counters
	return c["rx_icrc_encapsulated"] + c["rx_roce_error_pkts"] + c["rx_roce_discard_pkts"]
}
