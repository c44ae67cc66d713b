package sysfs

import (
	"io/fs"
	"os"
	"path/filepath"

	"vrdma.dev/vrdma/internal/device/nic"
)

// A daemon may have a thousand NICs, of which most are idle. A tree of New has a file of its own
// for every attribute, and the counters' files are open: 50 descriptors, and a page of tmpfs for
// each of 140 files. To make a thousand of them takes seconds of a processor, to remove them again
// as long. A tree of Later costs a part of that:
//
//	placed ── Sketch ──▶ sketched ── Write ──▶ written ── Use ──▶ followed ── the last Done ──▶ written
//
// Sketched, the tree has what libibverbs and librdmacm read before they open the device: the class
// of verbs, and the device without its port. The file Unfinished says so to libvrdma.so, which
// then connects to the daemon before a program looks at a port. Whoever connects uses the NIC.
//
// Files with the same text are one file (of this tree: those of two NICs are never one, because
// who may write to one of them may write to its text). Written, all counters are 0 and one file.
// The first Use makes them files of their own, which are open and followed while somebody uses
// the NIC.

// Unfinished is a file in the root of a tree that is only sketched (VRDMA_UNFINISHED).
const Unfinished = "unfinished"

// Later returns the tree of a NIC that nobody uses yet. Nothing is written.
func Later(root string, n *nic.NIC, dirMode fs.FileMode, read func() []Counter) *Tree {
	t := newTree(root, n, dirMode, read)
	t.rests = true
	return t
}

// Sketch has as much of the tree there as a program reads before it connects to the daemon.
func (t *Tree) Sketch() error {
	t.life.Lock()
	defer t.life.Unlock()
	return t.sketch()
}

// Write has the tree there, so that who does not ask first can read it. It may be called again.
func (t *Tree) Write() error {
	t.life.Lock()
	defer t.life.Unlock()
	return t.write()
}

// Rewrite has the tree say what the NIC shows now. Nobody has the device open.
func (t *Tree) Rewrite() error {
	t.life.Lock()
	defer t.life.Unlock()
	t.unfollow()
	t.written, t.sketched = false, false
	if t.users == 0 {
		return t.sketch() // whoever uses it has it written
	}
	err := t.write()
	if err == nil {
		err = t.follow()
	}
	return err
}

// Use follows the counters until Done.
func (t *Tree) Use() error {
	t.life.Lock()
	defer t.life.Unlock()
	if t.users++; !t.rests || t.users > 1 {
		return nil
	}
	err := t.write()
	if err == nil {
		err = t.follow()
	}
	if err != nil {
		t.users--
	}
	return err
}

// Done undoes Use.
func (t *Tree) Done() {
	t.life.Lock()
	defer t.life.Unlock()
	if t.users--; t.rests && t.users == 0 && t.done != nil {
		t.Sync()
		t.unfollow()
	}
}

// Allow changes the mode of the directories, and of the files with them.
func (t *Tree) Allow(dirMode fs.FileMode) error {
	t.life.Lock()
	defer t.life.Unlock()
	t.mode = dirMode
	if !t.sketched || t.gone {
		return nil
	}
	return filepath.WalkDir(t.root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.Chmod(path, dirMode|0o700)
		case d.Type().IsRegular():
			return os.Chmod(path, fileMode(dirMode))
		}
		return nil
	})
}
