package crc

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// TestPower holds the factors to those that are published for Ethernet's polynomial (the paper in doc.go).
func TestPower(t *testing.T) {
	for n, want := range map[int]uint64{544: 0x154442bd4, 480: 0x1c6e41596, 160: 0x1751997d0, 96: 0x0ccaa009e, 64: 0x163cd6124} {
		if got := power(crc32.IEEE, n); got != want {
			t.Errorf("x^%d is %#x, want %#x", n, got, want)
		}
	}
	if got := Ethernet.folds.quotient; got != 0x1f7011641 {
		t.Errorf("the quotient is %#x", got)
	}
	if got := Ethernet.folds.polynomial; got != 0x1db710641 {
		t.Errorf("the polynomial is %#x", got)
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{7})
	r.Read(b)
	return b
}

// TestUpdate compares with hash/crc32, for every length up to some thousand bytes and some longer ones.
func TestUpdate(t *testing.T) {
	b := random(1<<17 + 64)
	for _, table := range []*Table{Ethernet, Castagnoli} {
		check := func(c uint32, data []byte) {
			t.Helper()
			if got, want := Update(c, table, data), crc32.Update(c, table.plain, data); got != want {
				t.Fatalf("%d bytes behind %#x: %#x, want %#x", len(data), c, got, want)
			}
		}
		for n := range 3000 {
			check(0, b[:n])
			check(rand.Uint32(), b[n%64:][:n])
		}
		for _, n := range []int{4096, 8192, 9000, 65519, 65536, 1 << 17} {
			for at := range 5 {
				check(rand.Uint32(), b[13*at:][:n])
			}
		}
	}
}

func FuzzUpdate(f *testing.F) {
	f.Add(uint32(0), random(600))
	f.Add(^uint32(0), random(2048))
	f.Fuzz(func(t *testing.T, c uint32, data []byte) {
		for _, table := range []*Table{Ethernet, Castagnoli} {
			if got, want := Update(c, table, data), crc32.Update(c, table.plain, data); got != want {
				t.Fatalf("%#x, want %#x", got, want)
			}
		}
	})
}

func TestNoAllocations(t *testing.T) {
	b := random(4096)
	if n := testing.AllocsPerRun(100, func() { Update(1, Ethernet, b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{512, 1024, 4096, 64 << 10, 128 << 10} {
		data := random(n)
		for name, f := range map[string]func(){
			"ethernet":        func() { Update(0, Ethernet, data) },
			"ethernet-plain":  func() { crc32.Update(0, Ethernet.plain, data) },
			"castagnoli":      func() { Update(0, Castagnoli, data) },
			"castagnoliplain": func() { crc32.Update(0, Castagnoli.plain, data) },
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
