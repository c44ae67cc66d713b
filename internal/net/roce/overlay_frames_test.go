package roce

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"vrdma.dev/vrdma/internal/net/overlay"
)

// wall is a switch that stores its frames.
type wall struct{ got []string }

func (w *wall) Wants(uint32, netip.Addr) bool { return false }

func (w *wall) Receive(vni uint32, from *overlay.Host, frame []byte) {
	w.got = append(w.got, fmt.Sprintf("%d %s %x", vni, from.Name, frame))
}

// etherFrame returns a frame with a TCP segment between the members at inA and inB.
func etherFrame(size int, fill byte) []byte {
	to, from := overlay.MACOf(inB), overlay.MACOf(inA)
	f := append(append(append([]byte{}, to[:]...), from[:]...), 0x08, 0x00)
	n := size - len(f)
	f = append(f, 0x45, 0, byte(n>>8), byte(n), 0, 0, 0x40, 0, 64, 6, 0, 0)
	a, b := inA.As4(), inB.As4()
	f = append(append(f, a[:]...), b[:]...)
	return append(f, bytes.Repeat([]byte{fill}, size-len(f))...)
}

// TestOverlayFrames checks that frames arrive unchanged and in order, several per call, and are counted and captured.
func TestOverlayFrames(t *testing.T) {
	w := newOverlayWorld(t, 0)
	var file bytes.Buffer
	tap, err := NewTap(&file)
	if err != nil {
		t.Fatal(err)
	}
	w.a.SetTap(tap)
	var arrivals bytes.Buffer
	tapB, err := NewTap(&arrivals)
	if err != nil {
		t.Fatal(err)
	}
	w.b.SetTap(tapB)
	at := &wall{}
	w.b.SetFrames(at)
	before := w.a.Counters()
	host := w.a.Members().Hosts(5)[0]
	var want []string
	for i := range 10 {
		f := etherFrame(1000, byte(i))
		if i == 9 {
			f = etherFrame(80, 9) // the last datagram of a call may be shorter
		}
		w.a.SendFrame(5, host, f)
		want = append(want, fmt.Sprintf("5 a %x", f))
	}
	w.a.Flush()
	for w.b.Poll(&insider{}) {
	}
	if got, want := fmt.Sprint(at.got), fmt.Sprint(want); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	after := w.a.Counters()
	if n, calls := after.SentPackets-before.SentPackets, after.SentCalls-before.SentCalls; n != 10 || calls != 1 {
		t.Errorf("%d datagrams left in %d calls, want 10 in 1", n, calls)
	}
	w.a.SetTap(nil)
	w.b.SetTap(nil)
	for name, c := range map[string]struct {
		tap  *Tap
		file *bytes.Buffer
	}{"sender": {tap, &file}, "receiver": {tapB, &arrivals}} {
		if err := c.tap.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(c.file.Bytes(), etherFrame(1000, 3)[overlay.EthernetSize:]) {
			t.Errorf("the %s's capture lacks the packet in the fourth frame", name)
		}
	}
}

// TestOverlayFramesLost checks that a frame for an impossible network, host or length is counted and not sent.
func TestOverlayFramesLost(t *testing.T) {
	w := newOverlayWorld(t, 0)
	host := w.a.Members().Hosts(5)[0]
	sent := 0
	w.net.Way = func(*FakeDatagram) { sent++ }
	for i, c := range []struct {
		vni   uint32
		to    *overlay.Host
		frame []byte
	}{
		{99, host, etherFrame(100, 1)},
		{5, &overlay.Host{Name: "gone"}, etherFrame(100, 1)},
		{5, host, etherFrame(100, 1)[:overlay.EthernetSize-1]},
		{5, host, make([]byte, MaxMessage)},
	} {
		w.a.SendFrame(c.vni, c.to, c.frame)
		w.a.Flush()
		if n := w.a.Counters().NoSource; n != uint64(i+1) || sent != 0 {
			t.Errorf("case %d: %d frames counted as lost, %d datagrams sent", i, n, sent)
		}
	}
	// The switch may have an older map: the host is identified by its name.
	w.a.SendFrame(5, &overlay.Host{Name: host.Name}, etherFrame(100, 1))
	if w.a.Flush(); sent != 1 {
		t.Errorf("%d datagrams sent to a host by its name, want 1", sent)
	}
}

// TestOverlayFramesSealed checks that frames of an encrypted network use only the tunnel.
func TestOverlayFramesSealed(t *testing.T) {
	w := newOverlayWorld(t, 0)
	clear := 0
	w.net.Way = func(*FakeDatagram) { clear++ }
	at := &wall{}
	w.b.SetFrames(at)
	f := etherFrame(500, 7)
	send := func(encrypted bool) {
		w.a.SetMap(sealedMap(t, "a", encrypted))
		w.b.SetMap(sealedMap(t, "b", true))
		w.a.SendFrame(5, w.a.Members().Hosts(5)[0], f)
		w.a.Flush()
		for w.b.Poll(&insider{}) {
		}
	}
	if send(true); len(at.got) != 0 || clear != 0 {
		t.Fatalf("without a tunnel %d frames arrived, %d left in the clear", len(at.got), clear)
	}
	pa, pb := &pipe{}, &pipe{}
	pa.other, pb.other = pb, pa
	w.a.SetTunnel(pa)
	w.b.SetTunnel(pb)
	if send(true); fmt.Sprint(at.got) != fmt.Sprintf("[5 a %x]", f) || clear != 0 {
		t.Fatalf("through the tunnel came %v, %d left in the clear", at.got, clear)
	}
	if send(false); len(at.got) != 1 || clear != 1 {
		t.Fatalf("a frame in the clear: %d frames arrived in all, want 1; %d left in the clear, want 1", len(at.got), clear)
	}
}
