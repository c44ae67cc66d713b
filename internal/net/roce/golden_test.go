package roce

import (
	"bytes"
	"testing"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/testkit/golden"
)

// TestGoldenBursts joins rxe's packets to the longest possible bursts, and splits those into the same packets again.
func TestGoldenBursts(t *testing.T) {
	longest := uint32(0)
	for _, file := range golden.Files(t) {
		packets := golden.Read(t, file)
		var j Joiner
		var c Cutter
		for i := 0; i < len(packets); {
			run := packets[i:]
			n := 0
			for n < len(run) && run[n].Src == run[0].Src && run[n].Dst == run[0].Dst {
				p, err := wire.Parse(run[n].Data)
				if err != nil {
					t.Fatalf("%s: %v", file, err)
				}
				if n == 0 && !j.Begin(p, ib.GIDOf(run[0].Src.Addr()), ib.GIDOf(run[0].Dst.Addr())) {
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

// compareCut splits b and compares with the packets of want.
func compareCut(t *testing.T, file string, c *Cutter, b *transport.Burst, want []golden.Packet) {
	t.Helper()
	if err := c.Start(b, want[0].Src, want[0].Dst); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var flow wire.Flow
	flow.Set(want[0].Src, want[0].Dst)
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
			old, _ := wire.Parse(want[i].Data)
			if _, ok := flow.Check(old, want[i].ID); ok {
				flow.Seal(p, want[i].ID) // use rxe's identifications
			} else {
				p.SetICRC(old.ICRC()) // the corrupted packet
			}
			if !bytes.Equal(p.Bytes(), want[i].Data) {
				t.Errorf("%s, %v:\n got % x\nwant % x", file, old, p.Bytes(), want[i].Data)
			}
			i++
		}
	}
}
