package tunnel

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
)

// FuzzParse checks that parse never panics and returns data within the packet, and that it inverts putHeaders.
func FuzzParse(f *testing.F) {
	p := make([]byte, headers+5)
	a, b := netip.MustParseAddrPort("[fd56::1]:4789"), netip.MustParseAddrPort("[fd56::2]:51820")
	putHeaders(p, a, b, 5)
	f.Add(p)
	f.Add(p[:headers])
	f.Add([]byte{0x60})
	f.Fuzz(func(t *testing.T, p []byte) {
		from, to, data, ok := parse(p)
		if !ok {
			return
		}
		if len(data) > len(p)-headers {
			t.Fatalf("%d bytes of data in a packet of %d", len(data), len(p))
		}
		q := make([]byte, headers+len(data))
		putHeaders(q, from, to, len(data))
		copy(q[headers:], data)
		putChecksum(q)
		f, o, d, ok := parse(q)
		if !ok || f != from || o != to || !bytes.Equal(d, data) {
			t.Fatalf("%v %v %x became %v %v %x", from, to, data, f, o, d)
		}
	})
}

// TestChecksum compares with a sum computed byte by byte (RFC 1071).
func TestChecksum(t *testing.T) {
	for n := range 70 {
		p := make([]byte, headers+n)
		putHeaders(p, netip.MustParseAddrPort("[fd56::1:ffff]:4789"), netip.MustParseAddrPort("[fd56:ffff::2]:4789"), n)
		for i := range n {
			p[headers+i] = byte(0xff - i*37)
		}
		putChecksum(p)
		sum := uint32(protocolUDP) + uint32(8+n)
		for i, b := range p[offSrc:] {
			if i%2 == 0 {
				sum += uint32(b) << 8
			} else {
				sum += uint32(b)
			}
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		if sum != 0xffff || binary.BigEndian.Uint16(p[offChecksum:]) == 0 {
			t.Fatalf("%d bytes of data: the sum is %04x, want ffff", n, sum)
		}
	}
}

// TestRoom checks for every MTU that a datagram of the largest length fits, and one byte more does not.
func TestRoom(t *testing.T) {
	outside := func(n int) int { return (headers+n+padding-1)&^(padding-1) + sealed + 8 + 20 }
	for mtu := 600; mtu < 9100; mtu++ {
		n := Room(mtu, false)
		if outside(n) > mtu || outside(n+1) <= mtu {
			t.Fatalf("MTU %d: %d bytes become %d, one more %d", mtu, n, outside(n), outside(n+1))
		}
		if six := Room(mtu, true); six != Room(mtu-20, false) {
			t.Fatalf("MTU %d: %d over IPv6", mtu, six)
		}
	}
	if Room(10, true) != 0 {
		t.Error("room where there is none")
	}
}

// FuzzRing checks that messages come out as they went in, or are refused, for all lengths and orders.
func FuzzRing(f *testing.F) {
	f.Add([]byte{10, 200, 0, 0, 255, 255, 0, 1, 2, 3, 0, 0, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		r := newRing(8, 512)
		var want [][]byte
		for i, op := range ops {
			if op == 0 { // read
				s := r.next()
				if (s == nil) != (len(want) == 0) {
					t.Fatalf("step %d: %v, want %d messages", i, s, len(want))
				}
				if s != nil {
					if !bytes.Equal(s.data, want[0]) {
						t.Fatalf("step %d: %x, want %x", i, s.data, want[0])
					}
					want = want[1:]
					r.done(s)
				}
				continue
			}
			s := r.reserve(int(op))
			if s == nil {
				if len(want) == 0 {
					t.Fatalf("step %d: an empty ring has no room for %d bytes", i, op)
				}
				continue
			}
			for j := range s.data {
				s.data[j] = byte(i + j)
			}
			want = append(want, bytes.Clone(s.data))
			r.commit(s)
		}
	})
}
