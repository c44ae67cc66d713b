package sysfs

import (
	"io/fs"
	"os"
	"path/filepath"

	"vrdma.dev/vrdma/internal/device/nic"
)

// A daemon may have a thousand NICs, most of them idle. A tree of New has a separate file for every attribute, and open counter files: 50
// descriptors, and a page of tmpfs for each of 140 files. Creating or removing a thousand trees takes seconds. A tree of Later costs a
// fraction of that:
//
//	placed ── Sketch ──▶ sketched ── Write ──▶ written ── Use ──▶ followed ── the last Done ──▶ written
//
// A sketched tree has the files that libibverbs and librdmacm read before they open the device: the verbs class, and the device without its
// port. The file Unfinished tells libvrdma.so to connect to the daemon before a program reads a port. A connection uses the NIC.
//
// Files with equal content are one file, but only within a tree: a client that can write to a file must not change another NIC's.
// In a written tree all counters are 0 and one file. The first Use makes them separate files, which are open and updated while
// the NIC is in use.

// Unfinished is a file in the root of a sketched tree (VRDMA_UNFINISHED).
const Unfinished = "unfinished"

// Later returns the tree of a NIC that is not in use yet. It writes nothing.
func Later(root string, n *nic.NIC, dirMode fs.FileMode, read func() []Counter) *Tree {
	t := newTree(root, n, dirMode, read)
	t.rests = true
	return t
}

// Sketch writes the part of the tree that a program reads before it connects to the daemon.
func (t *Tree) Sketch() error {
	t.life.Lock()
	defer t.life.Unlock()
	return t.sketch()
}

// Write writes the tree for programs that do not connect first. It may be called again.
func (t *Tree) Write() error {
	t.life.Lock()
	defer t.life.Unlock()
	return t.write()
}

// Rewrite updates the tree to the NIC's current state. No program has the device open.
func (t *Tree) Rewrite() error {
	t.life.Lock()
	defer t.life.Unlock()
	t.unfollow()
	t.written, t.sketched, t.adopts = false, false, false
	if t.users == 0 {
		return t.sketch() // the next user writes the rest
	}
	err := t.write()
	if err == nil {
		err = t.follow()
	}
	return err
}

// Use updates the counters until Done.
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

// Done reverts Use.
func (t *Tree) Done() {
	t.life.Lock()
	defer t.life.Unlock()
	if t.users--; t.rests && t.users == 0 && t.done != nil {
		t.Sync()
		t.unfollow()
	}
}

// Allow changes the mode of the directories, and of the files accordingly.
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
