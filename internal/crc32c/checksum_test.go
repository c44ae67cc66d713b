package crc32c

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// TestFolds holds the factors to those that are published for Ethernet's polynomial (the paper in doc.go).
func TestFolds(t *testing.T) {
	for n, want := range map[int]uint64{544: 0x154442bd4, 480: 0x1c6e41596, 160: 0x1751997d0, 96: 0x0ccaa009e, 64: 0x163cd6124} {
		if got := power(crc32.IEEE, n); got != want {
			t.Errorf("x^%d is %#x, want %#x", n, got, want)
		}
	}
	f := newFolds(crc32.IEEE)
	if f.quotient != 0x1f7011641 || f.polynomial != 0x1db710641 {
		t.Errorf("the quotient is %#x, of the polynomial %#x", f.quotient, f.polynomial)
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{7})
	r.Read(b)
	return b
}

// TestChecksum compares with hash/crc32, for every length up to some thousand bytes and some longer ones.
func TestChecksum(t *testing.T) {
	b := random(1<<17 + 64)
	check := func(data []byte) {
		t.Helper()
		if got, want := Checksum(data), crc32.Checksum(data, plain); got != want {
			t.Fatalf("%d bytes: %#x, want %#x", len(data), got, want)
		}
	}
	for n := range 3000 {
		check(b[:n])
		check(b[n%64:][:n])
	}
	for _, n := range []int{4096, 9000, 65519, 65536, 1 << 17} {
		for at := range 5 {
			check(b[13*at:][:n])
		}
	}
	// "123456789", which every description of a CRC has the sum of.
	if got := Checksum([]byte("123456789")); got != 0xe3069283 {
		t.Errorf("%#x", got)
	}
}

func FuzzChecksum(f *testing.F) {
	f.Add(random(600))
	f.Add(random(2048))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, want := Checksum(data), crc32.Checksum(data, plain); got != want {
			t.Fatalf("%#x, want %#x", got, want)
		}
	})
}

func TestNoAllocations(t *testing.T) {
	b := random(4096)
	if n := testing.AllocsPerRun(100, func() { Checksum(b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkChecksum(b *testing.B) {
	for _, n := range []int{512, 4096, 128 << 10} {
		data := random(n)
		for name, f := range map[string]func(){
			"wide":  func() { Checksum(data) },
			"plain": func() { crc32.Checksum(data, plain) },
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					f()
				}
			})
		}
	}
}
