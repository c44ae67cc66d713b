package handover

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func pair(t *testing.T) (old, next *Link) {
	t.Helper()
	old, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if next, err = Open(theirs); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { old.Close(); next.Close() })
	return old, next
}

// Messages and any number of descriptors arrive in order.
func TestDescriptors(t *testing.T) {
	old, next := pair(t)
	const num = 3*filesAtOnce + 1
	fds, dir := make([]int, num), t.TempDir()
	for i := range fds {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := fmt.Fprint(f, i); err != nil {
			t.Fatal(err)
		}
		fds[i] = int(f.Fd())
	}
	sent := make(chan error, 1)
	large := make([]byte, 1<<20)
	go func() { sent <- errors.Join(old.Send(Offer, large, fds), old.Send(State, "second", nil)) }()
	var got []byte
	files, err := next.Receive(Offer, &got)
	if err != nil || len(files) != num || len(got) != len(large) {
		t.Fatalf("%d descriptors and %d bytes arrived: %v", len(files), len(got), err)
	}
	defer CloseAll(files)
	for i, f := range files {
		var b [16]byte
		n, err := f.ReadAt(b[:], 0)
		if n == 0 || string(b[:n]) != fmt.Sprint(i) {
			t.Fatalf("descriptor %d reads %q, %v", i, b[:n], err)
		}
	}
	var text string
	if _, err := next.Receive(State, &text); err != nil || text != "second" {
		t.Errorf("got %q, %v", text, err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

func TestRefuse(t *testing.T) {
	old, next := pair(t)
	old.Refuse(errors.New("a virtual machine uses it"))
	_, err := next.Receive(Offer, nil)
	var r *Refusal
	if !errors.As(err, &r) || r.Why != "a virtual machine uses it" {
		t.Errorf("got %v", err)
	}
}

// The other daemon's end, and a message of another kind, are errors.
func TestOutOfOrder(t *testing.T) {
	old, next := pair(t)
	if err := old.Send(Go, nil, []int{0}); err != nil {
		t.Fatal(err)
	}
	if _, err := next.Receive(State, nil); err == nil {
		t.Error("another message was taken for the state")
	}
	old.Close()
	if _, err := next.Receive(State, nil); err == nil {
		t.Error("the end of the other daemon was taken for a message")
	}
}
