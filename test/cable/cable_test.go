package cable

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/pcap"
)

// roce returns an Ethernet frame with a RoCEv2 packet whose payload starts with a number.
func roce(n uint32) []byte {
	f := make([]byte, 100)
	binary.BigEndian.PutUint16(f[12:], 0x0800)
	f[14], f[14+9] = 0x45, udp
	binary.BigEndian.PutUint16(f[14+20+2:], rocePort)
	binary.BigEndian.PutUint32(f[14+20+8:], n)
	return f
}

func TestIsRoCE(t *testing.T) {
	v6 := make([]byte, 100)
	binary.BigEndian.PutUint16(v6[12:], 0x86dd)
	v6[14+6] = udp
	binary.BigEndian.PutUint16(v6[14+40+2:], rocePort)
	tcp := roce(1)
	tcp[14+9] = 6
	dns := roce(1)
	binary.BigEndian.PutUint16(dns[14+20+2:], 53)
	for _, c := range []struct {
		name  string
		frame []byte
		want  bool
	}{
		{"IPv4", roce(1), true}, {"IPv6", v6, true}, {"TCP", tcp, false}, {"other port", dns, false},
		{"short", roce(1)[:40], false}, {"empty", nil, false}, {"ARP", append([]byte{12: 8, 13: 6}, make([]byte, 60)...), false},
		{"options to the end", func() []byte { f := roce(1)[:60]; f[14] = 0x4f; return f }(), false},
	} {
		if got := isRoCE(c.frame); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// bench is a cable between two sockets, with the sockets of the test at its far ends.
func bench(t *testing.T) (c *Cable, a, b End) {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	a, b = Socket(t, at("a"), at("ca")), Socket(t, at("b"), at("cb"))
	return Connect(t, 7, Socket(t, at("ca"), at("a")), Socket(t, at("cb"), at("b"))), a, b
}

// carry sends n packets from a and returns the numbers that arrive at b: as many as the cable says it delivered, and
// any later ones.
func carry(t *testing.T, w *Cable, a, b End, n int) []uint32 {
	t.Helper()
	go func() {
		for i := range n {
			a.Write(roce(uint32(i)))
			time.Sleep(10 * time.Microsecond)
		}
	}()
	var got []uint32
	buf := make([]byte, maxFrame)
	complete := func() bool {
		c := w.Count()
		return c.Carried == n && len(got) >= n-c.Dropped+c.Duplicated
	}
	for end := time.Now().Add(time.Minute); len(got) < 3*n && time.Now().Before(end); {
		b.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		k, err := b.Read(buf)
		if err == nil {
			got = append(got, binary.BigEndian.Uint32(buf[14+20+8:k]))
		} else if complete() {
			break
		}
	}
	return got
}

// TestFaults checks which faults a cable causes, and how often.
func TestFaults(t *testing.T) {
	const n = 2000
	for _, c := range []struct {
		name   string
		faults Faults
		least  int
		most   int
		order  bool // kept
		count  func(Count) int
	}{
		{"none", Faults{}, n, n, true, func(c Count) int { return c.Carried / 10 }},
		{"drop", Faults{Drop: 0.1}, n * 8 / 10, n * 95 / 100, true, func(c Count) int { return c.Dropped }},
		{"duplicate", Faults{Duplicate: 0.1}, n * 105 / 100, n * 115 / 100, true, func(c Count) int { return c.Duplicated }},
		{"reorder", Faults{Reorder: 0.1}, n, n, false, func(c Count) int { return c.Reordered }},
		{"corrupt", Faults{Corrupt: 0.1}, n, n, true, func(c Count) int { return c.Corrupted }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, a, b := bench(t)
			w.SetFaults(c.faults)
			got := carry(t, w, a, b, n)
			if len(got) < c.least || len(got) > c.most {
				t.Errorf("%d packets arrived, want %d to %d", len(got), c.least, c.most)
			}
			sorted := true
			for i := 1; i < len(got); i++ {
				sorted = sorted && got[i] >= got[i-1]
			}
			if sorted != c.order {
				t.Errorf("packets in order: %v, want %v", sorted, c.order)
			}
			if k := c.count(w.Count()); k < n/20 || k > n/5 {
				t.Errorf("%d of %d are counted, want about a tenth: %+v", k, n, w.Count())
			}
		})
	}
}

// A long cable keeps the order, and every frame on it arrives.
func TestDelay(t *testing.T) {
	const n, delay = 100, 20 * time.Millisecond
	w, a, b := bench(t)
	w.SetDelay(delay)
	begin := time.Now()
	got := carry(t, w, a, b, n)
	if took := time.Since(begin); took < delay {
		t.Errorf("all was there after %v, want %v at least", took, delay)
	}
	if len(got) != n || !slices.IsSorted(got) {
		t.Errorf("%d packets arrived, want %d in order: %v", len(got), n, got)
	}
}

func TestCapture(t *testing.T) {
	w, a, b := bench(t)
	path := filepath.Join(t.TempDir(), "x.pcap")
	stop := w.Capture(t, path)
	carry(t, w, a, b, 10)
	stop()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcap.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; ; n++ {
		if _, _, err := r.Next(); err != nil {
			break
		}
	}
	if n != 10 {
		t.Errorf("the capture holds %d packets, want 10", n)
	}
}

// TestTAP connects the kernel's interfaces to both ends.
func TestTAP(t *testing.T) {
	a, b := NewNamespace(t), NewNamespace(t)
	Connect(t, 1, TAP(t, a, "eth0", 1500), TAP(t, b, "eth0", 1500))
	a.Address(t, "eth0", "10.55.0.1/24")
	b.Address(t, "eth0", "10.55.0.2/24")
	var ok bool
	b.Do(t, func() { ok = answers("10.55.0.1") })
	if !ok {
		t.Error("no connection through the cable")
	}
}

// answers reports whether a host answers: it refuses a connection.
func answers(ip string) bool {
	c, err := net.DialTimeout("tcp", ip+":9", time.Minute)
	if err == nil {
		c.Close()
	}
	return err == nil || errors.Is(err, unix.ECONNREFUSED)
}

// TestMark checks that a marked header has the right checksum, and that only packets of ECN-capable senders are marked.
func TestMark(t *testing.T) {
	f := roce(1)
	if mark(f) {
		t.Error("a packet that is not ECN-capable was marked")
	}
	f[15] = 2
	if !mark(f) || f[15] != 3 {
		t.Errorf("TOS is %#x, want 0x3", f[15])
	}
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	if got := sum&0xffff + sum>>16; got != 0xffff {
		t.Errorf("the header sums up to %#x, want 0xffff", got)
	}
}

// TestLine checks that a full queue drops frames and a long one marks them.
func TestLine(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	a := Socket(t, at("a"), at("ca"))
	Socket(t, at("b"), at("cb"))
	end := Socket(t, at("cb"), at("b"))
	w := Connect(t, 7, Socket(t, at("ca"), at("a")), end)
	w.Limit(t, end, Bottleneck{Rate: 100, Queue: 20, Mark: 10})
	for i := range 100 {
		f := roce(uint32(i))
		f[15] = 2
		a.Write(f)
	}
	deadline := time.Now().Add(time.Minute)
	var l Load
	for l.Frames < 100 && time.Now().Before(deadline) {
		n := w.Load(end)
		l.Frames, l.Marked, l.Lost, l.Sum = l.Frames+n.Frames, l.Marked+n.Marked, l.Lost+n.Lost, l.Sum+n.Sum
		time.Sleep(5 * time.Millisecond)
	}
	if l.Frames != 100 || l.Lost < 50 || l.Marked < 5 || l.Queue() < 10 {
		t.Errorf("%+v, average queue %d; want 100 frames, most of them lost, some marked", l, l.Queue())
	}
}
