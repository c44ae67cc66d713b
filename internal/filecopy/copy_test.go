package filecopy

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestSizes copies files of many sizes in both directions.
func TestSizes(t *testing.T) {
	over(t, func(t *testing.T, l *lab) {
		from, back := t.TempDir(), t.TempDir()
		var paths, names []string
		sizes := []int{0, 1, 4095, blockSize - 1, blockSize, blockSize + 1, maxChunk, 3*maxChunk + 17, 9 << 20}
		for _, n := range sizes {
			name := fmt.Sprint("f", n)
			paths = append(paths, write(t, filepath.Join(from, name), content(n)))
			names = append(names, "/"+name)
		}
		ok(t, l.client().Put(testContext(t), paths, "/", true))
		ok(t, l.client().Get(testContext(t), names, back, true))
		for _, n := range sizes {
			same(t, filepath.Join(l.dir, fmt.Sprint("f", n)), content(n))
			same(t, filepath.Join(back, fmt.Sprint("f", n)), content(n))
		}
		tidy(t, l.dir, "f0", "f1", "f1048576", "f131071", "f131072", "f131073", "f3145745", "f4095", "f9437184")
	})
}

// TestTree copies directories.
func TestTree(t *testing.T) {
	over(t, func(t *testing.T, l *lab) {
		from := filepath.Join(t.TempDir(), "tree")
		for i := range 60 {
			write(t, filepath.Join(from, fmt.Sprint("d", i%7), fmt.Sprint("e", i%3), fmt.Sprint("f", i)), content(i*100))
		}
		ok(t, os.MkdirAll(filepath.Join(from, "empty"), 0o750))
		ok(t, os.Symlink("../d1", filepath.Join(from, "empty", "link")))
		c := l.client()
		c.Recursive, c.Preserve = true, true
		ok(t, c.Put(testContext(t), []string{from}, "/", false))     // into an existing directory
		ok(t, c.Put(testContext(t), []string{from}, "/copy", false)) // with another name
		c.Patience = patience
		back := filepath.Join(t.TempDir(), "back")
		ok(t, c.Get(testContext(t), []string{"copy"}, back, false))
		// All served files into a new directory; and the content of one directory into an existing one.
		all := filepath.Join(t.TempDir(), "all")
		ok(t, c.Get(testContext(t), []string{"/"}, all, false))
		if err := c.Put(testContext(t), []string{from + "/."}, "/new", false); err == nil {
			t.Error("what has no name got one")
		}
		for _, root := range []string{filepath.Join(l.dir, "tree"), filepath.Join(l.dir, "copy"), back, filepath.Join(all, "copy")} {
			for i := range 60 {
				same(t, filepath.Join(root, fmt.Sprint("d", i%7), fmt.Sprint("e", i%3), fmt.Sprint("f", i)), content(i*100))
			}
			a, err := os.Stat(filepath.Join(from, "empty"))
			ok(t, err)
			b, err := os.Stat(filepath.Join(root, "empty"))
			ok(t, err)
			if a.Mode() != b.Mode() || !a.ModTime().Equal(b.ModTime()) {
				t.Errorf("%s/empty is %v of %v, want %v of %v", root, b.Mode(), b.ModTime(), a.Mode(), a.ModTime())
			}
			if to, err := os.Readlink(filepath.Join(root, "empty", "link")); err != nil || to != "../d1" {
				t.Errorf("the link is to %q (%v)", to, err)
			}
		}
	})
}
