package store

import (
	"path/filepath"
	"testing"
	"time"
)

func openCopyTest(t *testing.T, path string) *Copy {
	t.Helper()
	c, problems, err := OpenCopy(path, "0123456789", func(err error) { t.Error(err) })
	if err != nil || len(problems) > 0 {
		t.Fatalf("OpenCopy: %v, %v", problems, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// copyTexts is texts of a copy.
func copyTexts(t *testing.T, c *Copy) (string, int64) {
	t.Helper()
	list, revision, err := c.List("")
	if err != nil {
		t.Fatal(err)
	}
	return texts(list), revision
}

// A closed copy is read again with its revision, its time and the host's name.
func TestCopy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "copy")
	c := openCopyTest(t, path)
	if !c.Heard().IsZero() || c.Revision() != 0 {
		t.Errorf("a new copy is of %v, at %d", c.Heard(), c.Revision())
	}
	w := c.Watch("", 0)
	c.Replace([]Entry{{"a", []byte("1"), 3}, {"b", []byte("1"), 7}}, 9)
	if c.Advance(12, []Change{{Key: "none", Deleted: true}}) {
		t.Error("deleting what is not there is a change")
	}
	c.Advance(15, []Change{{Key: "c", Value: []byte("1")}, {Key: "a", Deleted: true}})
	now := time.Now()
	c.Hear(now)
	c.Save()
	want := "b=1@9 c=1@15"
	if got, r := copyTexts(t, c); got != want || r != 15 {
		t.Errorf("it has %s at %d", got, r)
	}
	for i, changes := range []int{2, 2} {
		if b, err := next(t, w); err != nil || len(b.Changes) != changes || b.Revision != []int64{9, 15}[i] {
			t.Errorf("the watch says %+v, %v", b, err)
		}
	}
	c.Close()

	c, _, err := OpenCopy(path, "9876543210", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, r := copyTexts(t, c); got != want || r != 15 || !c.Heard().Equal(now) || c.ID() != "0123456789" {
		t.Errorf("opened again it has %s at %d, of %v, as %s", got, r, c.Heard(), c.ID())
	}
	// b is the same, c was written again, d is new, and an entry that is not in the list is removed.
	w = c.Watch("", 0)
	c.Replace([]Entry{{"b", []byte("1"), 7}, {"c", []byte("1"), 16}, {"d", []byte("1"), 17}}, 20)
	if got, r := copyTexts(t, c); got != "b=1@9 c=1@20 d=1@20" || r != 20 {
		t.Errorf("replaced it has %s at %d", got, r)
	}
	if b, err := next(t, w); err != nil || len(b.Changes) != 2 {
		t.Errorf("the watch says %+v, %v", b, err)
	}
	c.Replace([]Entry{{"d", []byte("1"), 17}}, 21)
	if b, err := next(t, w); err != nil || len(b.Changes) != 2 || !b.Changes[0].Deleted || b.Revision != 21 {
		t.Errorf("the watch says %+v, %v", b, err)
	}
}

// While the next daemon has the file, the copy goes on in memory. Afterwards the file is what the copy is, whatever the
// next daemon wrote.
func TestCopyLent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "copy")
	c := openCopyTest(t, path)
	c.Replace([]Entry{{"a", []byte("1"), 3}, {"b", []byte("1"), 4}}, 9)
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
	next := openCopyTest(t, path)
	if got, r := copyTexts(t, next); got != "a=1@9 b=1@9" || r != 9 || next.ID() != c.ID() {
		t.Errorf("the next daemon has %s at %d as client %s", got, r, next.ID())
	}
	next.Advance(20, []Change{{Key: "theirs", Value: []byte("1")}, {Key: "a", Deleted: true}})
	next.Close()
	c.Advance(15, []Change{{Key: "ours", Value: []byte("1")}, {Key: "b", Deleted: true}})
	c.Save()
	if err := c.Reclaim(); err != nil {
		t.Fatal(err)
	}
	c.Advance(16, []Change{{Key: "late", Value: []byte("1")}})
	c.Close()
	if got, r := copyTexts(t, openCopyTest(t, path)); got != "a=1@9 late=1@16 ours=1@15" || r != 16 {
		t.Errorf("after a failed upgrade the file has %s at %d", got, r)
	}
}
