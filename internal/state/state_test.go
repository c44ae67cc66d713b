package state

import (
	"strings"
	"testing"
)

type sample struct {
	Name   string            `cbor:"1,keyasint,omitempty"`
	List   []uint32          `cbor:"2,keyasint,omitempty"`
	Inner  map[uint32]sample `cbor:"3,keyasint,omitempty"`
	Larger uint64            `cbor:"4,keyasint,omitempty"`
}

// newer is sample in a later format.
type newer struct {
	Name   string   `cbor:"1,keyasint,omitempty"`
	List   []uint32 `cbor:"2,keyasint,omitempty"`
	Larger uint64   `cbor:"4,keyasint,omitempty"`
	Added  string   `cbor:"5,keyasint,omitempty"`
}

func TestFormatsReadEachOther(t *testing.T) {
	b, err := Write(Own("new"), newer{Name: "a", List: []uint32{1, 2}, Added: "later"})
	if err != nil {
		t.Fatal(err)
	}
	var old sample
	if _, err := Read(b, &old); err != nil || old.Name != "a" || len(old.List) != 2 {
		t.Fatalf("an older reader got %+v, %v", old, err)
	}
	b, _ = Write(Own("old"), old)
	var again newer
	if _, err := Read(b, &again); err != nil || again.Name != "a" || again.Added != "" {
		t.Fatalf("a newer reader got %+v, %v", again, err)
	}
}

func TestHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		header Header
		why    string // "": it can be read
	}{
		"own":           {header: Own("x")},
		"newer, fits":   {header: Header{Format: Format + 1, Oldest: Format}},
		"newer, unfit":  {header: Header{Format: Format + 2, Oldest: Format + 1}, why: "use a newer vrdma"},
		"older, unfit":  {header: Header{Format: OldestRead - 1, Oldest: OldestRead - 1}, why: "in smaller steps"},
		"without a one": {header: Header{}, why: "in smaller steps"},
	} {
		b, err := Write(c.header, sample{Name: "s"})
		if err != nil {
			t.Fatal(err)
		}
		var s sample
		_, err = Read(b, &s)
		if c.why == "" && err != nil || c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why)) {
			t.Errorf("%s: Read returned %v, want %q", name, err, c.why)
		}
	}
	var s sample
	if _, err := Read([]byte("nonsense"), &s); err == nil {
		t.Error("nonsense was read")
	}
}

func FuzzRead(f *testing.F) {
	b, _ := Write(Own("x"), sample{Name: "a", List: []uint32{1}, Inner: map[uint32]sample{7: {Larger: 1 << 40}}})
	f.Add(b)
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s sample
		h, err := Read(b, &s)
		if err != nil {
			return
		}
		again, err := Write(h, s)
		if err != nil {
			t.Fatal(err)
		}
		var s2 sample
		if _, err := Read(again, &s2); err != nil {
			t.Fatalf("what was read cannot be read again: %v", err)
		}
	})
}
