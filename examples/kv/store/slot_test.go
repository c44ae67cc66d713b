package store

import (
	"bytes"
	"errors"
	"testing"
)

// TestTornSlots mixes two records of a key at every byte, in both orders. No mixture passes as a record.
func TestTornSlots(t *testing.T) {
	const key = 7
	for _, n := range []int{0, 1, 8, 100, 1000} {
		before, after := make([]byte, slotSize(1000)), make([]byte, slotSize(1000))
		writeSlot(before, key, 41, bytes.Repeat([]byte{'a'}, n), nil)
		writeSlot(after, key, 42, bytes.Repeat([]byte{'b'}, n), nil)
		for cut := range valueAt + n + 1 {
			for _, pair := range [][2][]byte{{before, after}, {after, before}} {
				mixed := append(bytes.Clone(pair[0][:cut]), pair[1][cut:]...)
				value, version, err := readSlot(mixed, key)
				whole := bytes.Equal(mixed[:valueAt+n], pair[0][:valueAt+n]) || bytes.Equal(mixed[:valueAt+n], pair[1][:valueAt+n])
				if whole != (err == nil) {
					t.Errorf("%d bytes, mixed at %d: version %d, %q, %v", n, cut, version, value, err)
				}
			}
		}
	}
}

// TestTornByWords mixes two records word by word, in all combinations for a value of 8 bytes.
func TestTornByWords(t *testing.T) {
	const key, words = 3, 4 // version, checksum, length, value
	var records [2][valueAt + 8]byte
	writeSlot(records[0][:], key, 9, []byte("12345678"), nil)
	writeSlot(records[1][:], key, 10, []byte("abcdefgh"), nil)
	for choice := range 1 << words {
		var mixed [valueAt + 8]byte
		for w := range words {
			copy(mixed[8*w:8*w+8], records[choice>>w&1][8*w:])
		}
		_, _, err := readSlot(mixed[:], key)
		if whole := mixed == records[0] || mixed == records[1]; whole != (err == nil) {
			t.Errorf("choice %04b: %v", choice, err)
		}
	}
}

// TestOtherKey: a record of another key is rejected.
func TestOtherKey(t *testing.T) {
	slot := make([]byte, slotSize(8))
	writeSlot(slot, 5, 1, []byte("value"), nil)
	if _, _, err := readSlot(slot, 6); !errors.Is(err, errTorn) {
		t.Errorf("got %v, want %v", err, errTorn)
	}
	if value, version, err := readSlot(slot, 5); err != nil || version != 1 || string(value) != "value" {
		t.Errorf("got %q, version %d, %v", value, version, err)
	}
}

// TestCutSlot: a record that was not read completely is cut, not torn.
func TestCutSlot(t *testing.T) {
	slot := make([]byte, slotSize(100))
	writeSlot(slot, 5, 1, make([]byte, 100), nil)
	for n := range valueAt + 100 {
		if _, _, err := readSlot(slot[:n], 5); !errors.Is(err, errCut) {
			t.Fatalf("%d bytes: got %v, want %v", n, err, errCut)
		}
	}
}

// FuzzReadSlot: the bytes of a slot are a record that writeSlot would write, or none.
func FuzzReadSlot(f *testing.F) {
	slot := make([]byte, slotSize(40))
	writeSlot(slot, 5, 1, []byte("a value"), nil)
	f.Add(slot, uint64(5))
	f.Add([]byte{}, uint64(0))
	f.Fuzz(func(t *testing.T, slot []byte, key uint64) {
		value, version, err := readSlot(slot, key)
		if err != nil {
			return
		}
		again := bytes.Clone(slot)
		writeSlot(again, key, version, bytes.Clone(value), nil)
		if !bytes.Equal(again, slot) {
			t.Errorf("read %q, version %d; written again it is other bytes", value, version)
		}
	})
}

// FuzzParse: a parsed message has the length that it states.
func FuzzParse(f *testing.F) {
	m := make(message, headSize+3)
	m.setHead(opPut, 0, 1, 2, 3)
	f.Add([]byte(m))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil {
			return
		}
		if len(m) != headSize+len(m.value()) {
			t.Errorf("%d bytes, and a value of %d", len(m), len(m.value()))
		}
		again := bytes.Clone(m)
		message(again).setHead(m.op(), m.status(), m.key(), m.version(), m.length())
		if again[2], again[3] = m[2], m[3]; !bytes.Equal(again, m) {
			t.Errorf("%x made again is %x", []byte(m), again)
		}
		parseWhere(b)
		parseStats(b)
	})
}
