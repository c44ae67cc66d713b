package roce

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/pcap"
	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/testkit/golden"
)

// readTap reads a tap's capture and checks every packet's ICRC against its headers.
func readTap(t *testing.T, data []byte) (all []wire.Packet, ends [][2]netip.AddrPort) {
	t.Helper()
	if r, err := pcap.NewReader(bytes.NewReader(data)); err != nil || r.LinkType() != pcap.RawIP {
		t.Fatalf("not a capture of raw IP: %v", err)
	}
	for _, c := range golden.Decode(t, data) {
		if h := wire.IPv4(c.IP); c.Src.Addr().Is4() && h.Checksum() != h.Sum() {
			t.Errorf("IPv4 checksum %#x, want %#x", h.Checksum(), h.Sum())
		}
		p, err := wire.Parse(c.Data)
		if err != nil {
			t.Fatal(err)
		}
		var flow wire.Flow
		flow.Set(c.Src, c.Dst)
		if flow.Sum(p, c.ID) != p.ICRC() {
			t.Errorf("%v: bad ICRC", p)
		}
		all = append(all, p)
		ends = append(ends, [2]netip.AddrPort{c.Src, c.Dst})
	}
	if last := len(all); last > 0 && golden.Decode(t, data)[last-1].Number != last {
		t.Error("the capture holds packets that are not RoCEv2")
	}
	return all, ends
}

func TestTap(t *testing.T) {
	var fileA, fileB bytes.Buffer
	tapA, err := NewTap(&fileA)
	if err != nil {
		t.Fatal(err)
	}
	tapB, err := NewTap(&fileB)
	if err != nil {
		t.Fatal(err)
	}
	_, a, b := pair(FakeOptions{})
	a.SetTap(tapA)
	b.SetTap(tapB)
	var span memory.Span
	s := &sink{t: t}
	for _, n := range []int{0, 1, 1024, 100_000} {
		if err := carry(a, simpleBurst(&span, transport.KindWrite, n)); err != nil {
			t.Fatal(err)
		}
		a.Flush()
		drain(b, s)
	}
	// A burst that stays on the host, over IPv6.
	local := simpleBurst(&span, transport.KindSend, 3000)
	local.SGID, local.DGID = ib.GIDOf(host6), ib.GIDOf(host6)
	tapA.Burst(local)
	if err := errors.Join(tapA.Close(), tapB.Close()); err != nil {
		t.Fatal(err)
	}
	sent, ends := readTap(t, fileA.Bytes())
	rcvd, _ := readTap(t, fileB.Bytes())
	const remote = 1 + 1 + 1 + 98
	if len(sent) != remote+3 || len(rcvd) != remote {
		t.Fatalf("%d packets sent, %d received; want %d and %d", len(sent), len(rcvd), remote+3, remote)
	}
	for i := range rcvd {
		if !bytes.Equal(sent[i].Bytes(), rcvd[i].Bytes()) {
			t.Errorf("packet %d: sent %v, received %v", i, sent[i], rcvd[i])
		}
	}
	for i, e := range ends[remote:] {
		if e[0].Addr() != host6 || e[1].Addr() != host6 || e[0].Port() < firstPort || e[1].Port() != wire.Port {
			t.Errorf("local packet %d goes from %v to %v", i, e[0], e[1])
		}
	}
	if tapA.LeftOut()+tapB.LeftOut() != 0 {
		t.Errorf("%d packets left out", tapA.LeftOut()+tapB.LeftOut())
	}
}

// stuck is a file that blocks until it is released.
type stuck struct {
	release chan struct{}
	err     error
	n       int
}

func (s *stuck) Write(b []byte) (int, error) {
	<-s.release
	if s.err != nil {
		return 0, s.err
	}
	s.n += len(b)
	return len(b), nil
}

// TestTapSlow checks that a slow reader loses packets, but costs neither time nor memory.
func TestTapSlow(t *testing.T) {
	file := &stuck{release: make(chan struct{})}
	tap, err := NewTap(file)
	if err != nil {
		t.Fatal(err)
	}
	var span memory.Span
	b := simpleBurst(&span, transport.KindSend, 60_000)
	const bursts = 200
	for range bursts {
		tap.Burst(b)
	}
	close(file.release)
	if err := tap.Close(); err != nil {
		t.Fatal(err)
	}
	left := tap.LeftOut()
	if left == 0 || left >= bursts*59 {
		t.Errorf("%d of %d packets left out", left, bursts*59)
	}
	// The first chunks are written almost empty, while the writer is idle, and none is completely full.
	if file.n < tapChunk*tapChunks/2 || file.n > tapChunk*tapChunks {
		t.Errorf("%d bytes written, want half of %d or more", file.n, tapChunk*tapChunks)
	}
}

func TestTapFails(t *testing.T) {
	file := &stuck{release: make(chan struct{}), err: errors.New("disk full")}
	close(file.release)
	tap, err := NewTap(file)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); !tap.Failed() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	var span memory.Span
	tap.Burst(simpleBurst(&span, transport.KindSend, 2000))
	if err := tap.Close(); !errors.Is(err, file.err) {
		t.Errorf("got %v, want %v", err, file.err)
	}
	if tap.LeftOut() != 2 {
		t.Errorf("%d packets left out, want 2", tap.LeftOut())
	}
}

func TestTapAllocations(t *testing.T) {
	tap, err := NewTap(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var span memory.Span
	b := simpleBurst(&span, transport.KindSend, 60_000)
	if n := testing.AllocsPerRun(50, func() { tap.Burst(b) }); n != 0 {
		t.Errorf("%v allocations a burst", n)
	}
	if err := tap.Close(); err != nil {
		t.Fatal(err)
	}
}
