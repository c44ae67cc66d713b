package sysfs

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/testkit/leak"
)

// TestLater: a tree that rests has the same files as another, with the same text; it follows
// the counters while it is used, and has nothing open afterwards.
func TestLater(t *testing.T) {
	dir := t.TempDir()
	var sent atomic.Uint64
	read := func() []Counter {
		var c nic.Counters
		c.SentPackets = sent.Load()
		return Counters(c, roce.Counters{})
	}
	whole, err := New(filepath.Join(dir, "a.d", "sys"), testNIC(), 0o755, read)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Remove()
	open := leak.Descriptors(t)
	later := Later(filepath.Join(dir, "b.d", "sys"), testNIC(), 0o755, read)
	if texts(t, later.root) != nil {
		t.Error("something is written before anybody wants it")
	}
	if err := later.Write(); err != nil {
		t.Fatal(err)
	}
	compare := func(when string) {
		t.Helper()
		want, got := texts(t, whole.root), texts(t, later.root)
		for name, text := range want {
			if got[name] != text {
				t.Errorf("%s: %s is %q, want %q", when, name, got[name], text)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d files, want %d", when, len(got), len(want))
		}
	}
	compare("written")
	if n := leak.Descriptors(t); n != open {
		t.Errorf("%d descriptors, want %d as before", n, open)
	}
	for range 2 {
		if err := later.Use(); err != nil {
			t.Fatal(err)
		}
	}
	sent.Add(17)
	later.Sync()
	whole.Sync()
	compare("used")
	later.Done()
	sent.Add(1)
	later.Done()
	whole.Sync()
	compare("used no more")
	if n := leak.Descriptors(t); n != open {
		t.Errorf("%d descriptors, want %d as before", n, open)
	}
	if err := later.Use(); err != nil {
		t.Fatal(err)
	}
	compare("used again")
	if err := later.Remove(); err != nil {
		t.Error(err)
	}
	later.Done()
	if texts(t, later.root) != nil || later.Use() != nil || texts(t, later.root) != nil {
		t.Error("something is left, or comes back")
	}
	if n := leak.Descriptors(t); n != open {
		t.Errorf("%d descriptors, want %d as before", n, open)
	}
}

// TestSketch: a sketch is a part of the tree, says that it is one, and becomes the tree.
func TestSketch(t *testing.T) {
	dir := t.TempDir()
	read := func() []Counter { return Counters(nic.Counters{}, roce.Counters{}) }
	whole, err := New(filepath.Join(dir, "a.d", "sys"), testNIC(), 0o755, read)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Remove()
	want := texts(t, whole.root)
	later := Later(filepath.Join(dir, "b.d", "sys"), testNIC(), 0o755, read)
	defer later.Remove()
	for range 2 {
		if err := later.Sketch(); err != nil {
			t.Fatal(err)
		}
	}
	got := texts(t, later.root)
	if _, ok := got[Unfinished]; !ok {
		t.Errorf("a sketch has no file %s", Unfinished)
	}
	delete(got, Unfinished)
	if len(got) > 20 {
		t.Errorf("a sketch has %d files: %v", len(got), slices.Sorted(maps.Keys(got)))
	}
	for name, text := range got {
		if want[name] != text {
			t.Errorf("%s is %q in a sketch, want %q", name, text, want[name])
		}
	}
	for _, name := range []string{"class/infiniband_verbs/uverbs0/ibdev", "class/infiniband/rxe0/node_guid", "class/misc/rdma_cm/abi_version"} {
		if got[name] == "" {
			t.Errorf("a sketch has no %s", name)
		}
	}
	if err := later.Allow(0o700); err != nil {
		t.Error(err)
	}
	if err := later.Use(); err != nil {
		t.Fatal(err)
	}
	defer later.Done()
	if got := texts(t, later.root); !maps.Equal(got, want) {
		t.Errorf("the tree is %v, want %v", got, want)
	}
	if err := later.Sketch(); err != nil || !maps.Equal(texts(t, later.root), want) {
		t.Errorf("after it was sketched again (%v) the tree is another", err)
	}
}

// TestUnfinished: the library knows the file by the same name.
func TestUnfinished(t *testing.T) {
	text, err := os.ReadFile("../../../shim/protocol.h")
	if define := `#define VRDMA_UNFINISHED "` + Unfinished + `"`; err != nil || !strings.Contains(string(text), define) {
		t.Errorf("shim/protocol.h (%v) does not have %s", err, define)
	}
}

// texts returns the files below root.
func texts(t *testing.T, root string) (out map[string]string) {
	t.Helper()
	filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		if out == nil {
			out = make(map[string]string)
		}
		name, _ := filepath.Rel(root, path) // path lies below root
		out[name] = string(b)
		return nil
	})
	return out
}

// TestAdoptLater: the daemon before writes the tree after the next one has adopted it. A program that has read the tree's path
// finds it at every moment.
func TestAdoptLater(t *testing.T) {
	root := filepath.Join(t.TempDir(), "a.d", "sys")
	read := func() []Counter { return nil }
	before := Later(root, testNIC(), 0o755, read)
	next := Later(root, testNIC(), 0o755, read)
	next.Adopt()
	if err := before.Use(); err != nil {
		t.Fatal(err)
	}
	before.Leave()
	mark := filepath.Join(root, "mark")
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := next.Use(); err != nil {
		t.Fatal(err)
	}
	defer next.Remove()
	defer next.Done()
	if _, err := os.Stat(mark); err != nil {
		t.Errorf("the tree was written anew: %v", err)
	}
}
