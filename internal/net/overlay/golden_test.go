package overlay_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/pcap"
	"vrdma.dev/vrdma/internal/net/wire"
)

// datagrams returns the payloads of the outer UDP datagrams of a capture.
func datagrams(t testing.TB, file string) (out [][]byte) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := pcap.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for {
		_, raw, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		at := 14 + 40 + 8
		if binary.BigEndian.Uint16(raw[12:]) == 0x0800 {
			at = 14 + 20 + 8
		}
		out = append(out, bytes.Clone(raw[at:]))
	}
}

// TestGolden decodes what the kernel sends and checks that this package would send the same bytes.
func TestGolden(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.pcap")
	if len(files) != 5 {
		t.Fatalf("%d captures, want 5", len(files))
	}
	roce, answers := 0, 0
	for _, f := range files {
		var asked []overlay.Question
		for i, d := range datagrams(t, f) {
			h, packet, kind := overlay.Parse(d)
			if h.VNI != 0x123456 {
				t.Errorf("%s %d: VNI %#x", f, i+1, h.VNI)
			}
			switch kind {
			case overlay.RoCE:
				roce++
				checkRoCE(t, d, &h, packet)
			case overlay.Neighbour:
				q, ok := overlay.ParseNeighbour(packet)
				if !ok || q.MAC != h.From {
					t.Fatalf("%s %d: %+v, %v", f, i+1, q, ok)
				}
				if q.Asks {
					asked = append(asked, q)
					continue
				}
				answers++
				b := make([]byte, overlay.NeighbourRoom)
				n := overlay.PutAnswer(b, h.VNI, &asked[len(asked)-1], h.From)
				if !bytes.Equal(b[:n], d) {
					t.Errorf("%s %d: we answer\n%x, the kernel\n%x", f, i+1, b[:n], d)
				}
			default:
				t.Errorf("%s %d: kind %d", f, i+1, kind)
			}
		}
	}
	if roce != 138 || answers < 4 {
		t.Errorf("%d packets and %d answers, want 138 and at least 4", roce, answers)
	}
}

// checkRoCE rebuilds a datagram from its decoded headers.
func checkRoCE(t *testing.T, d []byte, h *overlay.Head, packet []byte) {
	t.Helper()
	b := make([]byte, len(d))
	n := h.Put(b, len(packet))
	copy(b[n:], packet)
	if !bytes.Equal(b, d) {
		t.Errorf("made anew\n%x, it was\n%x", b[:n], d[:n])
	}
	p, err := wire.Parse(packet)
	if err != nil {
		t.Fatal(err)
	}
	var f wire.Flow
	f.Set(h.Src, h.Dst)
	if f.Sum(p, h.ID) != p.ICRC() {
		t.Error("the ICRC is not that of the head inside")
	}
	var tmpl overlay.Template
	tmpl.Set(*h)
	clear(b)
	tmpl.Put(b, len(packet))
	if tmpl.Size() != n || !bytes.Equal(b[:n], d[:n]) {
		t.Errorf("a template makes\n%x, it was\n%x", b[:n], d[:n])
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.pcap")
	for _, file := range files {
		for i, d := range datagrams(f, file) {
			if i < 8 {
				f.Add(d)
			}
		}
	}
	f.Fuzz(func(t *testing.T, d []byte) {
		h, packet, kind := overlay.Parse(d)
		switch kind {
		case overlay.RoCE:
			b := make([]byte, h.Size()+len(packet))
			n := h.Put(b, len(packet))
			g, again, k := overlay.Parse(append(b[:n], packet...))
			if k != kind || g != h || !bytes.Equal(again, packet) {
				t.Fatalf("%+v is read as %+v", h, g)
			}
		case overlay.Neighbour:
			q, ok := overlay.ParseNeighbour(packet)
			if !ok {
				return
			}
			b := make([]byte, overlay.NeighbourRoom)
			n := overlay.PutAnswer(b, h.VNI, &q, overlay.MACOf(q.Target))
			_, frame, k := overlay.Parse(b[:n])
			if a, ok := overlay.ParseNeighbour(frame); k != kind || !ok || a.Asks || a.MAC != overlay.MACOf(q.Target) {
				t.Fatalf("the answer to %+v is read as %+v", q, a)
			}
		}
	})
}

// TestNews checks that announcements are about the address itself.
func TestNews(t *testing.T) {
	for _, a := range []string{"10.0.0.1", "fd00::1"} {
		addr := netip.MustParseAddr(a)
		b := make([]byte, overlay.NeighbourRoom)
		n := overlay.PutNews(b, 7, addr, overlay.MACOf(addr))
		h, frame, kind := overlay.Parse(b[:n])
		q, ok := overlay.ParseNeighbour(frame)
		if kind != overlay.Neighbour || !ok || h.VNI != 7 || q.Asks || q.Sender != addr || q.Target != addr || q.MAC != overlay.MACOf(addr) {
			t.Errorf("%s: %+v, %+v, %v", a, h, q, ok)
		}
	}
}

func BenchmarkHead(b *testing.B) {
	var t overlay.Template
	t.Set(overlay.Head{
		VNI: 5, Src: netip.MustParseAddrPort("10.0.0.1:50000"), Dst: netip.MustParseAddrPort("10.0.0.2:4791"), TTL: 64, TOS: overlay.ECT0,
	})
	buf := make([]byte, 64)
	for b.Loop() {
		t.Put(buf, 1044)
	}
}
