package vmproto

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
)

func TestFrames(t *testing.T) {
	var b []byte
	want := []Frame{
		{Message, 7, []byte("a request")}, {Close, 9, []byte{}}, {Pin, 1, RunsBody(3, []Run{{0x1000, 4096}, {0x9000, 8}})}, {Bell, 2, []byte{}},
	}
	for _, f := range want {
		b = Append(b, f.Kind, f.ID, f.Body)
	}
	r := NewReader(bytes.NewReader(b))
	for i, w := range want {
		f, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if f.Kind != w.Kind || f.ID != w.ID || !bytes.Equal(f.Body, w.Body) {
			t.Errorf("frame %d: got %v, want %v", i, f, w)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

// TestFind: a reader that starts in the middle of a stream understands it from the next greeting on.
func TestFind(t *testing.T) {
	g := Greeting{Nonce: [16]byte{1, 2, 3}, Version: 5, Name: "machine"}
	b := AppendHello(append([]byte("the rest of a frame vrdma\x00agent"), helloMagic[:7]...), g)
	b = Append(b, Close, 4)
	r := NewReader(bytes.NewReader(b))
	got, err := r.FindHello()
	if err != nil || got != g {
		t.Fatalf("got %+v, %v", got, err)
	}
	if f, err := r.Next(); err != nil || f.Kind != Close || f.ID != 4 {
		t.Errorf("after it: %+v, %v", f, err)
	}
	a := Answer{Nonce: g.Nonce, Version: 1, Text: "because"}
	back, err := NewReader(bytes.NewReader(AppendWelcome([]byte{0x72, 0x76, 2}, a))).FindWelcome()
	if err != nil || back != a {
		t.Errorf("got %+v, %v", back, err)
	}
}

func FuzzNext(f *testing.F) {
	f.Add(Append(nil, Message, 1, []byte("x")))
	f.Add(AppendHello(nil, Greeting{Name: "m"}))
	f.Add(Append(nil, Returned, 1, ReturnedBody([]Returning{{Handle: 1, N: 8}})))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		var again []byte
		for {
			fr, err := r.Next()
			if err != nil {
				if !errors.Is(err, ErrMalformed) && err != io.EOF && err != io.ErrUnexpectedEOF {
					t.Fatal(err)
				}
				break
			}
			again = Append(again, fr.Kind, fr.ID, fr.Body)
		}
		if !bytes.HasPrefix(b, again) {
			t.Errorf("%x was read as %x", b, again)
		}
	})
}

// FuzzBodies: every decoded body encodes to the same bytes.
func FuzzBodies(f *testing.F) {
	f.Add(RunsBody(1, []Run{{0x1000, 4096}}))
	f.Add(ReturnedBody([]Returning{{Handle: 2, N: 16}}))
	f.Add(FileBody("class/x", []byte("1\n")))
	f.Add(OpenBody(Person{1, 2, 3}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, runs, err := ParseRuns(b); err == nil {
			if n2, again, err := ParseRuns(RunsBody(n, runs)); err != nil || n2 != n || !slices.Equal(again, runs) {
				t.Errorf("runs %v became %v, %v", runs, again, err)
			}
		}
		if list, err := ParseReturned(b); err == nil && !bytes.Equal(ReturnedBody(list), b) && len(b) > 0 {
			t.Errorf("events %x became %x", b, ReturnedBody(list))
		}
		if path, content, err := ParseFile(b); err == nil && !bytes.Equal(FileBody(path, content), b) {
			t.Errorf("file %x became %q, %x", b, path, content)
		}
		if p, err := ParseOpen(b); err == nil && !bytes.Equal(OpenBody(p), b) {
			t.Errorf("open %x became %v", b, p)
		}
		ParseHello(b)
		ParseNumber(b)
	})
}
