package pcap

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestRoundTrip(t *testing.T) {
	var file bytes.Buffer
	w, err := NewWriter(&file, RawIP)
	if err != nil {
		t.Fatal(err)
	}
	packets := [][]byte{{}, {1}, bytes.Repeat([]byte{7}, 5000)}
	at := time.Unix(1_700_000_000, 123_456_789)
	for i, p := range packets {
		if err := w.Write(at.Add(time.Duration(i)), p); err != nil {
			t.Fatal(err)
		}
	}
	r, err := NewReader(&file)
	if err != nil {
		t.Fatal(err)
	}
	if r.LinkType() != RawIP {
		t.Errorf("link type: got %d, want %d", r.LinkType(), RawIP)
	}
	for i, want := range packets {
		when, got, err := r.Next()
		if err != nil || !bytes.Equal(got, want) || !when.Equal(at.Add(time.Duration(i))) {
			t.Errorf("packet %d: got %d bytes at %v (%v), want %d at %v", i, len(got), when, err, len(want), at)
		}
	}
	if _, _, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: got %v, want EOF", err)
	}
}

func TestDamage(t *testing.T) {
	var file bytes.Buffer
	w, err := NewWriter(&file, Ethernet)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(time.Now(), make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	whole := file.Bytes()
	huge := bytes.Clone(whole)
	copy(huge[headerSize+8:], []byte{0xff, 0xff, 0xff, 0xff})
	for _, c := range []struct {
		name string
		data []byte
	}{
		{"empty", nil},
		{"header cut", whole[:10]},
		{"pcapng", append([]byte{0x0a, 0x0d, 0x0d, 0x0a}, make([]byte, 40)...)},
		{"record header cut", whole[:headerSize+5]},
		{"packet cut", whole[:len(whole)-1]},
		{"absurd length", huge},
	} {
		r, err := NewReader(bytes.NewReader(c.data))
		if err == nil {
			_, _, err = r.Next()
		}
		if err == nil || errors.Is(err, io.EOF) && strings.HasPrefix(c.name, "record") {
			t.Errorf("%s: got %v, want an error", c.name, err)
		}
	}
}

func FuzzReader(f *testing.F) {
	var file bytes.Buffer
	w, _ := NewWriter(&file, Ethernet)
	_ = w.Write(time.Unix(1, 2), []byte("hello"))
	f.Add(file.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := NewReader(bytes.NewReader(data))
		if err != nil {
			return
		}
		for range len(data)/recordSize + 1 {
			if _, _, err := r.Next(); err != nil {
				return
			}
		}
		t.Fatal("more packets than the file has room for")
	})
}
