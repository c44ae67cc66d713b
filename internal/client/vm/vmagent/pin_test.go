package vmagent

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMapHuge: the pages are those of the file, at any offset.
func TestMapHuge(t *testing.T) {
	const size = 3*hugePage + pageSize
	fd, err := newMemfd("test", 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, offset := range []int64{0, pageSize, hugePage - pageSize, hugePage} {
		mem, unmap, err := mapHuge(fd, offset, size)
		if err != nil {
			t.Fatal(err)
		}
		if (address(mem)-uint64(offset))%hugePage != 0 {
			t.Errorf("offset %#x is at %#x", offset, address(mem))
		}
		mem[0], mem[size-1] = 1, 2
		var b [1]byte
		for at, want := range map[int64]byte{offset: 1, offset + size - 1: 2} {
			if _, err := unix.Pread(fd, b[:], at); err != nil || b[0] != want {
				t.Errorf("byte %#x of the file is %d (%v), want %d", at, b[0], err, want)
			}
		}
		clear(mem[:1])
		unmap()
	}
}

// TestLimit: the limit of pinned memory follows the machine's memory.
func TestLimit(t *testing.T) {
	total := uint64(1000)
	p := &pinner{share: 50, total: func() (uint64, error) { return total, nil }}
	if err := p.take(500); err != nil {
		t.Errorf("half of it: %v", err)
	}
	if err := p.take(1); !errors.Is(err, errFull) {
		t.Errorf("more than half of it: %v", err)
	}
	total = 1200 // plugged in
	if err := p.take(100); err != nil {
		t.Errorf("half of what was plugged in: %v", err)
	}
	total = 400 // in a balloon
	if err := p.take(1); !errors.Is(err, errFull) {
		t.Errorf("in a balloon: %v", err)
	}
	p.give(600)
	if err := p.take(200); err != nil {
		t.Errorf("half of what is left: %v", err)
	}
}
