package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"vrdma/internal/pcap"
	"vrdma/internal/transport"
	"vrdma/internal/wire"
)

// capture is a RoCEv2 packet of a golden capture.
type capture struct {
	src, dst netip.AddrPort
	id       uint16
	data     []byte // from BTH to ICRC
}

func readCapture(t testing.TB, file string) (all []capture) {
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
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := parseIP(raw[14:], binary.BigEndian.Uint16(raw[12:])); ok {
			all = append(all, c)
		}
	}
}

// parseIP takes an IP packet apart. ok is false for what is not RoCEv2.
func parseIP(ip []byte, ethertype uint16) (c capture, ok bool) {
	var udp wire.UDP
	var src, dst netip.Addr
	switch ethertype {
	case 0x0800:
		h := wire.IPv4(ip)
		if !h.IsValid() || h.Protocol() != wire.ProtocolUDP {
			return c, false
		}
		udp, src, dst, c.id = h.Payload(), netip.AddrFrom4(h.Src()), netip.AddrFrom4(h.Dst()), h.ID()
	case 0x86dd:
		h := wire.IPv6(ip)
		if !h.IsValid() || h.NextHeader() != wire.ProtocolUDP {
			return c, false
		}
		udp, src, dst = h.Payload(), netip.AddrFrom16(h.Src()), netip.AddrFrom16(h.Dst())
	default:
		return c, false
	}
	if !udp.IsValid() || udp.DstPort() != wire.Port {
		return c, false
	}
	c.src, c.dst = netip.AddrPortFrom(src, udp.SrcPort()), netip.AddrPortFrom(dst, udp.DstPort())
	c.data = bytes.Clone(udp.Payload())
	return c, true
}

func goldenFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("../wire/testdata/golden/*.pcap")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden captures: %v", err)
	}
	return files
}

// TestGoldenBursts makes bursts of what rxe sent, as long as they will get, and packets
// of those again: the same ones.
func TestGoldenBursts(t *testing.T) {
	longest := uint32(0)
	for _, file := range goldenFiles(t) {
		packets := readCapture(t, file)
		var j Joiner
		var c Cutter
		for i := 0; i < len(packets); {
			run := packets[i:]
			n := 0
			for n < len(run) && run[n].src == run[0].src && run[n].dst == run[0].dst {
				p, err := wire.Parse(run[n].data)
				if err != nil {
					t.Fatalf("%s: %v", file, err)
				}
				if n == 0 && !j.Begin(p, GIDOf(run[0].src.Addr()), GIDOf(run[0].dst.Addr())) {
					t.Fatalf("%s: %v is no message's", file, p)
				}
				if n > 0 && !j.Extend(p) {
					break
				}
				n++
			}
			b := j.Burst()
			longest = max(longest, b.Packets)
			compareCut(t, file, &c, b, run[:n])
			i += n
		}
	}
	// The captures begin 64 KiB writes with a run of 16 packets of 4096 bytes.
	if longest != 16 {
		t.Errorf("the longest burst has %d packets, want 16", longest)
	}
}

// compareCut cuts b and expects the packets of want.
func compareCut(t *testing.T, file string, c *Cutter, b *transport.Burst, want []capture) {
	t.Helper()
	if err := c.Start(b, want[0].src, want[0].dst); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var flow wire.Flow
	flow.Set(want[0].src, want[0].dst)
	buf := make([]byte, MaxMessage)
	for i := 0; ; {
		n, segment, err := c.Next(buf, MaxSegments)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if n == 0 {
			if i != len(want) {
				t.Errorf("%s: %d packets, want %d", file, i, len(want))
			}
			return
		}
		for id, at := 0, 0; at < n; id, at = id+1, at+segment {
			p, err := wire.Parse(buf[at:min(n, at+segment)])
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if got, ok := flow.Check(p, uint16(id)); !ok || flow.IsIPv4() && int(got) != id {
				t.Errorf("%s: packet %d of the run has the ICRC of identification %d, %v", file, id, got, ok)
			}
			old, _ := wire.Parse(want[i].data)
			if _, ok := flow.Check(old, want[i].id); ok {
				flow.Seal(p, want[i].id) // rxe's identifications are its own
			} else {
				p.SetICRC(old.ICRC()) // the one that was damaged
			}
			if !bytes.Equal(p.Bytes(), want[i].data) {
				t.Errorf("%s, %v:\n got % x\nwant % x", file, old, p.Bytes(), want[i].data)
			}
			i++
		}
	}
}
