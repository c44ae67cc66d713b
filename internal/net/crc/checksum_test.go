package crc

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/bits"
	"math/rand/v2"
	"testing"
)

// TestFolds compares the factors with those published for Ethernet's polynomial (the paper in doc.go).
func TestFolds(t *testing.T) {
	for n, want := range map[int]uint64{544: 0x154442bd4, 480: 0x1c6e41596, 160: 0x1751997d0, 96: 0x0ccaa009e, 64: 0x163cd6124} {
		if got := power(crc32.IEEE, n); got != want {
			t.Errorf("x^%d is %#x, want %#x", n, got, want)
		}
	}
	f := newFolds(crc32.IEEE, 64)
	if f.quotient != 0x1f7011641 || f.polynomial != 0x1db710641 {
		t.Errorf("the quotient is %#x, of the polynomial %#x", f.quotient, f.polynomial)
	}
	for name, c := range map[string]struct{ got, want folds }{
		"Castagnoli's, 64 bytes": {wideCastagnoli, newFolds(crc32.Castagnoli, 64)},
		"Ethernet's, 64 bytes":   {wideEthernet, newFolds(crc32.IEEE, 64)},
		"Ethernet's, 32 bytes":   {halfEthernet, newFolds(crc32.IEEE, 32)},
	} {
		if c.got != c.want {
			t.Errorf("%s: the factors are %#x, want %#x", name, c.got, c.want)
		}
	}
}

// newFolds computes the factors.
func newFolds(polynomial uint32, register int) (f folds) {
	// The halves of 16 bytes are 64 bits apart, and the product of reflected polynomials is one bit short: hence the 32 more and less.
	pair := func(bytes int) [2]uint64 {
		return [2]uint64{power(polynomial, 8*bytes+32), power(polynomial, 8*bytes-32)}
	}
	f.loop = pair(4 * register)
	for i := range f.join {
		f.join[i] = pair((3 - i) * register)
	}
	for i := range 3 {
		f.last[i] = pair(48 - 16*i)
	}
	f.end = [2]uint64{power(polynomial, 96), power(polynomial, 64)}
	f.polynomial, f.quotient = uint64(polynomial)<<1|1, quotient(polynomial)
	return f
}

// power returns x^n mod the polynomial, reflected and shifted for the multiplication.
func power(polynomial uint32, n int) uint64 {
	r := uint32(1 << 31) // x^0
	for range n {
		carry := r & 1
		r >>= 1
		if carry != 0 {
			r ^= polynomial
		}
	}
	return uint64(r) << 1
}

// quotient is x^64 divided by the polynomial, reflected: 33 bits.
func quotient(polynomial uint32) (q uint64) {
	p := uint64(bits.Reverse32(polynomial)) | 1<<32
	r := uint64(1)
	for i := range 65 {
		if i > 0 {
			r <<= 1
		}
		if r>>32 != 0 {
			r ^= p
			q |= 1 << (i - 32) // of x^(64-i), which reflected in 33 bits is bit 32-(64-i)
		}
	}
	return q
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{7})
	r.Read(b)
	return b
}

// everyWay runs f with each way of folding that this processor supports, and without folding.
func everyWay(t *testing.T, f func(t *testing.T)) {
	hasWide, hasHalf := wide, half || wide // a processor with the wide registers has the others, too
	defer func() { wide, half = hasWide, hasHalf && !hasWide }()
	for name, w := range map[string][2]bool{"plain": {}, "wide": {true, false}, "half": {false, true}} {
		if w[0] && !hasWide || w[1] && !hasHalf {
			t.Logf("this processor cannot fold %s", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			wide, half = w[0], w[1]
			f(t)
		})
	}
}

// same compares the results with hash/crc32.
func same(t *testing.T, data []byte, begin uint32) {
	t.Helper()
	if got, want := Castagnoli(data), crc32.Checksum(data, plain); got != want {
		t.Fatalf("Castagnoli's of %d bytes: %#x, want %#x", len(data), got, want)
	}
	if got, want := Ethernet(begin, data), crc32.Update(begin, crc32.IEEETable, data); got != want {
		t.Fatalf("Ethernet's of %d bytes, begun with %#x: %#x, want %#x", len(data), begin, got, want)
	}
	room := make([]byte, len(data)+8)
	if got, want := EthernetCopy(begin, room[4:len(data)+4], data), crc32.Update(begin, crc32.IEEETable, data); got != want {
		t.Fatalf("Ethernet's of %d bytes that are copied, begun with %#x: %#x, want %#x", len(data), begin, got, want)
	}
	if !bytes.Equal(room[4:len(data)+4], data) || string(room[:4])+string(room[len(data)+4:]) != "\x00\x00\x00\x00\x00\x00\x00\x00" {
		t.Fatalf("the copy of %d bytes is not what was copied, or there is more", len(data))
	}
}

// TestChecksum tests every length up to some thousand bytes and some longer ones.
func TestChecksum(t *testing.T) {
	b := random(1<<17 + 64)
	everyWay(t, func(t *testing.T) {
		for n := range 3000 {
			same(t, b[:n], 0)
			same(t, b[n%64:][:n], uint32(n)*0x9e3779b1)
		}
		for _, n := range []int{4096, 4116, 9000, 65519, 65536, 1 << 17} {
			for at := range 5 {
				same(t, b[13*at:][:n], uint32(at))
			}
		}
		// "123456789" is the usual test vector of CRCs.
		if c, e := Castagnoli([]byte("123456789")), Ethernet(0, []byte("123456789")); c != 0xe3069283 || e != 0xcbf43926 {
			t.Errorf("%#x, %#x", c, e)
		}
	})
}

func FuzzChecksum(f *testing.F) {
	f.Add(random(600), uint32(0))
	f.Add(random(2048), uint32(1))
	f.Fuzz(func(t *testing.T, data []byte, begin uint32) { same(t, data, begin) })
}

func TestNoAllocations(t *testing.T) {
	b := random(4096)
	if n := testing.AllocsPerRun(100, func() { Castagnoli(b); Ethernet(0, b); EthernetCopy(0, b, b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkChecksum(b *testing.B) {
	for _, n := range []int{256, 1024, 1040, 4096, 128 << 10} {
		data, room := random(n), make([]byte, n+28)[28:] // as behind headers
		for _, f := range []struct {
			name string
			sum  func()
		}{
			{"Castagnoli", func() { Castagnoli(data) }},
			{"plain Castagnoli", func() { crc32.Checksum(data, plain) }},
			{"Ethernet", func() { Ethernet(0, data) }},
			{"copy and Ethernet", func() { EthernetCopy(0, room, data) }},
			{"copy, Ethernet", func() { copy(room, data); Ethernet(0, room) }},
			{"plain Ethernet", func() { crc32.ChecksumIEEE(data) }},
		} {
			b.Run(fmt.Sprintf("%s/%d", f.name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					f.sum()
				}
			})
		}
	}
}
