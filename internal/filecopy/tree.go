package filecopy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Files is where a side may read and write.
type Files struct {
	root *os.File // nil: everywhere
}

// Everywhere allows all that the user may access. The user names the paths.
func Everywhere() Files { return Files{} }

// Below allows a directory and everything below it. The kernel resolves paths (openat2, RESOLVE_BENEATH), so that no "..", absolute
// path or symbolic link leads out of it.
func Below(dir string) (Files, error) {
	f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Files{}, err
	}
	files := Files{f}
	probe, err := files.open(".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		f.Close()
		return Files{}, fmt.Errorf("%s cannot be served: the kernel has to have openat2 (Linux 5.6): %w", dir, err)
	}
	probe.Close()
	return files, nil
}

// Close closes the directory.
func (f Files) Close() error {
	if f.root == nil {
		return nil
	}
	return f.root.Close()
}

// open opens a path.
func (f Files) open(name string, flags int) (*os.File, error) {
	if f.root == nil {
		return os.OpenFile(name, flags|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	}
	if name = strings.TrimLeft(name, "/"); name == "" {
		name = "."
	}
	return openBeneath(f.root, name, flags, 0)
}

// openBeneath opens a path below a directory.
func openBeneath(dir *os.File, name string, flags int, mode uint32) (*os.File, error) {
	return openResolved(dir, name, flags, mode, 0)
}

// openResolved does so with more rules (RESOLVE_…).
func openResolved(dir *os.File, name string, flags int, mode uint32, rules uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOCTTY | unix.O_NONBLOCK), Mode: uint64(mode),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | rules,
	}
	for range 100 {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), name), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // EAGAIN: a directory was renamed meanwhile
			continue
		case errors.Is(err, unix.EXDEV):
			return nil, &fs.PathError{Op: "open", Path: name, Err: errOutside}
		}
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: unix.EAGAIN}
}

var errOutside = errors.New("it leads out of the directory, by .. or a symbolic link")

// checkPath rejects paths of entries that no correct sender sends.
func checkPath(p string) error {
	switch {
	case p == "" || p == ".":
		return violation("an entry without a name")
	case len(p) > maxPath || strings.ContainsRune(p, 0):
		return violation("the path %.80q, which is too long or has a zero byte", p)
	case strings.HasPrefix(p, "/"):
		return violation("the absolute path %.80q", p)
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == "" || part == "." || part == ".." {
			return violation("the path %.80q, which has a part %q", p, part)
		}
	}
	return nil
}

// wishes are the entries that a client has requested. The server names what it sends; wishes prevents that it sends something else.
type wishes struct {
	tops      map[string]bool // topName of each
	recursive bool
}

func newWishes(paths []string, recursive bool) *wishes {
	w := &wishes{make(map[string]bool), recursive}
	for _, p := range paths {
		w.tops[topName(p)] = true
	}
	return w
}

// check rejects an entry that was not requested. A request for the content of a directory allows any name.
func (w *wishes) check(p string, isFile bool) error {
	if w == nil {
		return nil
	}
	top, _, below := strings.Cut(p, "/")
	switch {
	case !w.recursive && (below || !isFile):
		return violation("%.80q, which is no file that was asked for: directories are not copied without -r", p)
	case !w.tops[top] && !(w.recursive && w.tops[""]):
		return violation("%.80q, which was not asked for", p)
	}
	return nil
}

// A target is the directory below which entries are written.
type target struct {
	dir *os.File
	// rename replaces the first element of every path; empty: it does not.
	rename string
}

// newTarget finds where entries go: below a path that is a directory, or to the path itself, whose parent must be a directory.
func (f Files) newTarget(name string, into, exact bool) (*target, error) {
	dir, err := f.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	switch {
	case err == nil && exact:
		dir.Close()
	case err == nil:
		return &target{dir: dir}, nil
	case into || errors.Is(err, errOutside):
		return nil, err
	case strings.HasSuffix(name, "/"):
		return nil, fmt.Errorf("%s is no directory: %w", name, err)
	}
	parent, base := path.Split(name)
	if base == "" || base == "." || base == ".." {
		return nil, err
	}
	if parent == "" {
		parent = "."
	}
	if dir, err = f.open(parent, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return nil, err
	}
	return &target{dir, base}, nil
}

// enter makes the target, a new name, a directory.
func (t *target) enter() error {
	if t.rename == "" {
		return nil
	}
	_, err := t.mkdir(t.rename, 0o777)
	var dir *os.File
	if err == nil {
		dir, err = openBeneath(t.dir, t.rename, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	}
	t.dir.Close()
	t.dir, t.rename = dir, ""
	return err
}

// place returns the path of an entry below the directory.
func (t *target) place(p string) (string, error) {
	if err := checkPath(p); err != nil {
		return "", err
	}
	if t.rename == "" {
		return p, nil
	}
	_, rest, found := strings.Cut(p, "/")
	if !found {
		return t.rename, nil
	}
	return t.rename + "/" + rest, nil
}

// parent opens the directory of an entry.
func (t *target) parent(p string) (*os.File, string, error) {
	dir, base := path.Split(p)
	if dir == "" {
		dir = "."
	}
	f, err := openBeneath(t.dir, dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	return f, base, err
}

// mkdir makes a directory unless it exists, and reports whether it made one.
func (t *target) mkdir(p string, mode uint32) (made bool, err error) {
	parent, base, err := t.parent(p)
	if err != nil {
		return false, err
	}
	defer parent.Close()
	err = unix.Mkdirat(int(parent.Fd()), base, mode&0o777|0o700)
	if err == nil {
		return true, nil
	}
	if errors.Is(err, unix.EEXIST) {
		d, err := openBeneath(parent, base, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err == nil {
			d.Close()
		}
		return false, err
	}
	return false, &fs.PathError{Op: "mkdir", Path: p, Err: err}
}

// symlink makes a symbolic link that stays inside of the copied tree: other programs may follow it later.
func (t *target) symlink(p, to string) error {
	if path.IsAbs(to) || !within(p, to) {
		return fmt.Errorf("the symbolic link to %s leads out of what is copied, so it was left out", to)
	}
	// The meaning of .. is only known in a path without links.
	dir, base := path.Split(p)
	parent, err := openResolved(t.dir, dir, unix.O_RDONLY|unix.O_DIRECTORY, 0, unix.RESOLVE_NO_SYMLINKS)
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("a symbolic link is not made below another one, which %s has", dir)
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := unix.Symlinkat(to, int(parent.Fd()), base); err != nil && !errors.Is(err, unix.EEXIST) {
		return &fs.PathError{Op: "symlink", Path: p, Err: err}
	}
	return nil
}

// within reports whether a link at p to a relative path stays below the first element of p. It rejects .. after a name: the name may
// be a link.
func within(p, to string) bool {
	named := false
	for part := range strings.SplitSeq(to, "/") {
		switch part {
		case "", ".":
		case "..":
			if named {
				return false
			}
		default:
			named = true
		}
	}
	top, _, _ := strings.Cut(p, "/")
	end := path.Join(path.Dir(p), to)
	return strings.Contains(p, "/") && (end == top || strings.HasPrefix(end, top+"/"))
}
