package roce

import (
	"net/netip"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/net/overlay"
)

// pipe is a Tunnel that stores what is sent and is connected to another pipe.
type pipe struct {
	other *pipe
	host  *overlay.Host // the peer, in the map of this side
	in    [][]byte
}

func (p *pipe) Send(msgs []Message) (int, error) {
	for _, m := range msgs {
		segment := m.Segment
		if segment <= 0 {
			segment = len(m.Data)
		}
		for at := 0; at < len(m.Data); at += segment {
			p.other.in = append(p.other.in, append([]byte{}, m.Data[at:min(len(m.Data), at+segment)]...))
		}
	}
	return len(msgs), nil
}

func (p *pipe) Receive(msgs []Message) (n int, _ error) {
	for n < len(msgs) && len(p.in) > 0 {
		msgs[n].Data = msgs[n].Data[:copy(msgs[n].Data, p.in[0])]
		msgs[n].Segment, msgs[n].Host, msgs[n].CE = 0, p.host, false
		p.in = p.in[1:]
		n++
	}
	return n, nil
}

func (p *pipe) FD() int                 { return -1 }
func (p *pipe) Overhead() int           { return 80 }
func (p *pipe) Dropped() TunnelCounters { return TunnelCounters{} }
func (p *pipe) Close() error            { return nil }

func (p *pipe) SetMap(m *overlay.Map) {
	if h := m.Hosts(5); len(h) == 1 {
		p.host = h[0]
	}
}

// sealedMap returns a map with a and b in network 5.
func sealedMap(t *testing.T, self string, encrypted bool) *overlay.Map {
	t.Helper()
	a := &overlay.Host{Name: "a", Addrs: []netip.Addr{underA}, Self: self == "a", Key: [32]byte{1}}
	b := &overlay.Host{Name: "b", Addrs: []netip.Addr{underB}, Self: self == "b", Key: [32]byte{2}}
	m, err := overlay.NewMap([]overlay.Network{{VNI: 5, Name: "red/n", Encrypted: encrypted, Members: []overlay.Member{member(inA, a), member(inB, b)}}})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestOverlaySealed checks that packets of an encrypted network are sent only through the tunnel, are dropped without one, and are
// accepted only from it.
func TestOverlaySealed(t *testing.T) {
	w := newOverlayWorld(t, 0)
	clear := 0
	w.net.Way = func(*FakeDatagram) { clear++ }
	send := func(encrypted bool) *insider {
		w.a.SetMap(sealedMap(t, "a", encrypted))
		w.b.SetMap(sealedMap(t, "b", true))
		var span memory.Span
		if err := w.a.Send(5, inA, inB, writeBurst(&span, 5000, 1024)); err != nil {
			t.Fatal(err)
		}
		w.a.Flush()
		got := &insider{}
		for w.b.Poll(got) {
		}
		return got
	}
	if got := send(true); got.packets != 0 || clear != 0 {
		t.Fatalf("without a tunnel %d packets left and %d came in", clear, got.packets)
	}
	pa, pb := &pipe{}, &pipe{}
	pa.other, pb.other = pb, pa
	w.a.SetTunnel(pa)
	w.b.SetTunnel(pb)
	if got := send(true); got.packets != 5 || clear != 0 {
		t.Fatalf("through the tunnel came %d packets, want 5; %d left in the clear", got.packets, clear)
	}
	// A host that does not know, or ignores, that the network is encrypted.
	if got := send(false); got.packets != 0 || clear == 0 {
		t.Fatalf("%d packets in the clear, of which %d came in", clear, got.packets)
	}
	if n := w.b.Counters().Overlay.Unsealed; n != 5 {
		t.Errorf("%d packets were counted as not encrypted, want 5", n)
	}
}
