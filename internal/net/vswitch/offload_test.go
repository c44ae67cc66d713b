package vswitch

import (
	"bytes"
	"net/netip"
	"testing"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

// segment returns a large TCP segment with n bytes, to be split into segments of size bytes.
func segment(from, to overlay.MAC, src, dst string, n, size int) (header, []byte) {
	tcp := make([]byte, 32, 32+n)
	be.PutUint16(tcp, 1000)
	be.PutUint16(tcp[2:], 2000)
	be.PutUint32(tcp[4:], 0xffff_ff00) // the sequence number goes round
	tcp[12], tcp[13] = 8<<4, tcpFIN|tcpPSH|tcpCWR|0x10
	for i := range n {
		tcp = append(tcp, byte(i*7))
	}
	h := header{flags: needsSum, gso: gsoTCP4, segment: uint16(size), sumStart: 99, sumOffset: 99}
	if netip.MustParseAddr(src).Is6() {
		h.gso = gsoTCP6
	}
	return h, frameOf(to, from, src, dst, protoTCP, tcp)
}

func TestSegments(t *testing.T) {
	a, b := overlay.MAC{2, 1}, overlay.MAC{2, 2}
	for _, c := range []struct{ name, src, dst string }{{"IPv4", "10.1.0.1", "10.1.0.2"}, {"IPv6", "fd00::1", "fd00::2"}} {
		t.Run(c.name, func(t *testing.T) {
			for _, n := range []int{1, 1400, 1401, 2800, 60000} {
				h, whole := segment(a, b, c.src, c.dst, n, 1400)
				var f frame
				f.virtio = h
				cut := min(300, len(whole))
				if !f.take([][]byte{whole[:7], whole[7:cut], whole[cut:]}) {
					t.Fatal("not taken")
				}
				if !f.settle() || int(f.virtio.sumStart) != f.l4 || f.virtio.sumOffset != 16 {
					t.Fatalf("not settled: %+v", f.virtio)
				}
				var data []byte
				count := 0
				f.plain(make([]byte, 2*maxFrame), func(got []byte) {
					checkSegment(t, got, f.l4, uint32(0xffff_ff00+len(data)))
					flags, last := got[f.l4+13], len(data)+len(got)-f.payload == n
					if flags&tcpFIN != 0 != last || flags&tcpPSH != 0 != last || flags&tcpCWR != 0 != (count == 0) {
						t.Errorf("segment %d has flags %#x", count, flags)
					}
					data = append(data, got[f.payload:]...)
					count++
				})
				if want := (n + 1399) / 1400; count != want || !bytes.Equal(data, whole[f.payload:]) {
					t.Errorf("%d bytes became %d segments, want %d, with %d bytes", n, count, want, len(data))
				}
			}
		})
	}
}

// checkSegment checks an ordinary TCP frame: lengths, sums, sequence number.
func checkSegment(t *testing.T, b []byte, l4 int, seq uint32) {
	t.Helper()
	ip := b[etherSize:]
	if ip[0]>>4 == 4 {
		if p := wire.IPv4(ip); fold(sum(ip[:wire.IPv4Size], 0)) != 0xffff || int(be.Uint16(p[2:])) != len(ip) {
			t.Errorf("the IPv4 header is wrong: %x", ip[:20])
		}
	} else if wire.IPv6(ip).PayloadLength() != len(ip)-wire.IPv6Size {
		t.Errorf("the IPv6 header is wrong: %x", ip[:40])
	}
	if s := fold(sum(b[l4:], pseudo(ip, protoTCP, len(b)-l4))); s != 0xffff {
		t.Errorf("the checksum is wrong: %#x", s)
	}
	if got := be.Uint32(b[l4+4:]); got != seq {
		t.Errorf("sequence number %#x, want %#x", got, seq)
	}
}

// A missing checksum, with padding behind the packet.
func TestChecksum(t *testing.T) {
	text := frameOf(overlay.MAC{2, 2}, overlay.MAC{2, 1}, "10.1.0.1", "10.1.0.2", protoUDP, datagram(5, 6, []byte("odd")))
	var f frame
	f.virtio = header{flags: needsSum}
	if !f.take([][]byte{append(text, 1, 2, 3)}) || !f.settle() {
		t.Fatal("not taken")
	}
	f.plain(make([]byte, 2*maxFrame), func(b []byte) {
		u := b[f.l4 : len(b)-3]
		if s := fold(sum(u, pseudo(b[etherSize:], protoUDP, len(u)))); s != 0xffff {
			t.Errorf("the checksum is wrong: %#x", s)
		}
	})
}

// An impossible header is refused, and its statements about the frame are checked.
func TestSettle(t *testing.T) {
	a, b := overlay.MAC{2, 1}, overlay.MAC{2, 2}
	_, tcp := segment(a, b, "10.1.0.1", "10.1.0.2", 3000, 1000)
	udp := frameOf(b, a, "10.1.0.1", "10.1.0.2", protoUDP, datagram(1, 2, nil))
	icmp := frameOf(b, a, "10.1.0.1", "10.1.0.2", protoICMP, make([]byte, 8))
	short4, short6 := shortened(a, b)
	for _, c := range []struct {
		name  string
		h     header
		frame []byte
		want  bool
	}{
		{"plain", header{}, udp, true},
		{"that it is good", header{flags: sumGood}, udp, true},
		{"sum of UDP", header{flags: needsSum, sumStart: 65535, sumOffset: 65535}, udp, true},
		{"sum of ICMP", header{flags: needsSum}, icmp, false},
		{"TSO without sum", header{gso: gsoTCP4, segment: 1000}, tcp, false},
		{"TSO of IPv6", header{flags: needsSum, gso: gsoTCP6, segment: 1000}, tcp, false},
		{"TSO of nothing", header{flags: needsSum, gso: gsoTCP4}, tcp, false},
		{"TSO of UDP", header{flags: needsSum, gso: gsoTCP4, segment: 1000}, udp, false},
		{"UFO", header{flags: needsSum, gso: 3, segment: 1000}, udp, false},
		{"TSO", header{flags: needsSum, gso: gsoTCP4 | gsoECN, segment: 1000}, tcp, true},
		{"IPv4 that ends before TCP", header{flags: needsSum, gso: gsoTCP4, segment: 1}, short4, false},
		{"IPv6 that ends before TCP", header{flags: needsSum, gso: gsoTCP6, segment: 1}, short6, false},
	} {
		var f frame
		f.virtio = c.h
		if got := f.take([][]byte{c.frame}) && f.settle(); got != c.want || got && f.virtio.flags&sumGood != 0 {
			t.Errorf("%s: %v, %+v", c.name, got, f.virtio)
		}
	}
	// Each function that reads the frame rejects it.
	for _, whole := range [][]byte{short4, short6} {
		f := frame{ether: be.Uint16(whole[12:]), proto: protoTCP, l4: etherSize + wire.IPv4Size, virtio: header{flags: needsSum, gso: gsoTCP4, segment: 1}}
		if f.ether == etherIPv6 {
			f.l4, f.virtio.gso = etherSize+wire.IPv6Size, gsoTCP6
		}
		f.payload, f.size = f.l4+20, len(whole)
		f.head = f.room[:copy(f.room[:], whole)]
		if f.settle() {
			t.Error("a packet that ends before its payload is settled")
		}
		f.cut(whole, make([]byte, maxFrame), func([]byte) { t.Error("a packet that ends before its payload is cut") })
	}
}

// shortened are frames with a TCP header behind the end of the IP packet.
func shortened(from, to overlay.MAC) (four, six []byte) {
	_, four = segment(from, to, "10.1.0.1", "10.1.0.2", 100, 1)
	be.PutUint16(four[etherSize+2:], wire.IPv4Size)
	_, six = segment(from, to, "fd00::1", "fd00::2", 100, 1)
	be.PutUint16(six[etherSize+4:], 0)
	return four, six
}
