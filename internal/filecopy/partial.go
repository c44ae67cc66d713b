package filecopy

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// partialSuffix ends the name of an incomplete file, .NAME.vrdma-partial in the target's directory. The next attempt resumes it.
const partialSuffix = ".vrdma-partial"

// partialName returns the name of the partial file of a name.
func partialName(base string) string {
	const most = 255
	if len(base)+1+len(partialSuffix) <= most {
		return "." + base + partialSuffix
	}
	return fmt.Sprintf(".%.100s-%x%s", base, sha256.Sum256([]byte(base)), partialSuffix)
}

// A partial is a file that is being received.
type partial struct {
	f         *os.File
	parent    *os.File
	base      string
	path      string // for messages
	had       int64  // its size when it was opened, from an earlier attempt
	overwrite bool
	// there means that this is the existing target, which may not be overwritten. If it is equal, as after an attempt whose last
	// message was lost, there is nothing to do.
	there bool
}

var errExists = errors.New("it exists, and is not overwritten unless you say so (--overwrite)")

// create opens the partial file of an entry of this size.
func (t *target) create(p string, size uint64, overwrite bool) (_ *partial, err error) {
	parent, base, err := t.parent(p)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			parent.Close()
		}
	}()
	out := &partial{parent: parent, base: base, path: p, overwrite: overwrite}
	switch err := out.free(); {
	case errors.Is(err, errExists):
		if out.compare(size) {
			return out, nil
		}
		return nil, err
	case err != nil:
		return nil, err
	}
	name := partialName(base)
	if out.f, err = openBeneath(parent, name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o600); err != nil {
		return nil, err
	}
	if err = out.claim(name); err != nil {
		out.f.Close()
		return nil, err
	}
	return out, nil
}

// compare opens the target itself, if it may be equal to the offered file.
func (p *partial) compare(size uint64) bool {
	f, err := openBeneath(p.parent, p.base, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || uint64(info.Size()) != size {
		f.Close()
		return false
	}
	p.f, p.had, p.there = f, info.Size(), true
	return true
}

// free rejects an existing target that may not or cannot be overwritten.
func (p *partial) free() error {
	var st unix.Stat_t
	err := unix.Fstatat(int(p.parent.Fd()), p.base, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &fs.PathError{Op: "stat", Path: p.path, Err: err}
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return &fs.PathError{Op: "write", Path: p.path, Err: unix.EISDIR}
	case !p.overwrite:
		return &fs.PathError{Op: "write", Path: p.path, Err: errExists}
	}
	return nil
}

// claim locks the partial file.
func (p *partial) claim(name string) error {
	fail := func(err error) error { return &fs.PathError{Op: "write", Path: p.path, Err: err} }
	if err := unix.Flock(int(p.f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fail(errors.New("another copy is writing it now, or has broken off and is not noticed yet: try again in a minute"))
	}
	var st, now unix.Stat_t
	if err := unix.Fstat(int(p.f.Fd()), &st); err != nil {
		return fail(err)
	}
	// The previous holder of the lock may have renamed the file.
	if err := unix.Fstatat(int(p.parent.Fd()), name, &now, unix.AT_SYMLINK_NOFOLLOW); err != nil || now.Ino != st.Ino || now.Dev != st.Dev {
		return fail(errors.New("another copy has just written it"))
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 || int(st.Uid) != os.Geteuid() {
		return fail(fmt.Errorf("%s is in the way: it is no partial file of ours, remove it", name))
	}
	p.had = st.Size
	return nil
}

// resize sets the size. A file that does not fit is rejected before it is sent.
func (p *partial) resize(size uint64, sparse bool) error {
	if p.there {
		return nil
	}
	if err := p.room(size, sparse); err != nil {
		return err
	}
	return p.f.Truncate(int64(size))
}

func (p *partial) room(size uint64, sparse bool) error {
	var st unix.Statfs_t
	if sparse || unix.Fstatfs(int(p.f.Fd()), &st) != nil || st.Blocks == 0 {
		return nil
	}
	var own unix.Stat_t
	if unix.Fstat(int(p.f.Fd()), &own) != nil {
		return nil
	}
	if have := st.Bavail*uint64(st.Bsize) + uint64(own.Blocks)*512; size > have {
		return &fs.PathError{Op: "write", Path: p.path, Err: fmt.Errorf("%w: it needs %d bytes, %d are left", unix.ENOSPC, size, have)}
	}
	return nil
}

// write writes data. Of a sparse file it writes only pages that are not zero, and first punches a hole over data of an earlier
// attempt.
func (p *partial) write(data []byte, at int64, sparse bool) error {
	if p.there {
		return errExists
	}
	if !sparse {
		_, err := p.f.WriteAt(data, at)
		return err
	}
	if p.had > at {
		if err := p.punch(at, int64(len(data))); err != nil {
			_, err := p.f.WriteAt(data, at) // the file system has no holes
			return err
		}
	}
	return eachRun(data, func(off int, run []byte) error {
		_, err := p.f.WriteAt(run, at+int64(off))
		return err
	})
}

// punch makes a hole. It holds the descriptor meanwhile: closing the file could give its number to another file.
func (p *partial) punch(at, n int64) error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, n)
	})
	return errors.Join(err, failed)
}

// eachRun calls f for each run of pages that are not zero.
func eachRun(data []byte, f func(off int, run []byte) error) error {
	const page = 4096
	start := -1
	for at := 0; at < len(data); at += page {
		piece := data[at:min(at+page, len(data))]
		switch zero := isZero(piece); {
		case !zero && start < 0:
			start = at
		case zero && start >= 0:
			if err := f(start, data[start:at]); err != nil {
				return err
			}
			start = -1
		}
	}
	if start >= 0 {
		return f(start, data[start:])
	}
	return nil
}

var zeroes [4096]byte

func isZero(b []byte) bool { return string(b) == string(zeroes[:len(b)]) }

// commit sets the attributes and renames the file.
func (p *partial) commit(m *meta, preserve bool) error {
	if p.there {
		return p.close()
	}
	mode := m.Mode & 0o777
	if !preserve {
		mode &^= umask()
	}
	if err := unix.Fchmod(int(p.f.Fd()), mode); err != nil {
		return &fs.PathError{Op: "chmod", Path: p.path, Err: err}
	}
	if preserve {
		if err := setTime(p.f, m); err != nil {
			return &fs.PathError{Op: "set the time of", Path: p.path, Err: err}
		}
	}
	flags := uint(unix.RENAME_NOREPLACE)
	if p.overwrite {
		flags = 0
	}
	dir := int(p.parent.Fd())
	err := unix.Renameat2(dir, partialName(p.base), dir, p.base, flags)
	if errors.Is(err, unix.EINVAL) && flags != 0 { // the file system does not support the flag
		if err = p.free(); err == nil {
			err = unix.Renameat(dir, partialName(p.base), dir, p.base)
		}
	}
	if errors.Is(err, unix.EEXIST) {
		err = errExists
	}
	if err != nil {
		return &fs.PathError{Op: "rename to", Path: p.path, Err: err}
	}
	return p.close()
}

// setTime sets the modification time that the sender sent.
func setTime(f *os.File, m *meta) error {
	at := unix.NsecToTimespec(int64(m.MTime))
	now := unix.NsecToTimespec(time.Now().UnixNano())
	return unix.UtimesNanoAt(int(f.Fd()), "", []unix.Timespec{now, at}, unix.AT_EMPTY_PATH)
}

// close keeps the partial file for the next attempt.
func (p *partial) close() error { return errors.Join(p.f.Close(), p.parent.Close()) }

// remove removes the partial file.
func (p *partial) remove() {
	if !p.there {
		_ = unix.Unlinkat(int(p.parent.Fd()), partialName(p.base), 0)
	}
	p.close()
}

// umask reads the process's umask from /proc, without changing it.
func umask() uint32 {
	text, err := os.ReadFile("/proc/self/status")
	if err == nil {
		var mask uint32
		for _, line := range splitLines(string(text)) {
			if n, _ := fmt.Sscanf(line, "Umask:\t%o", &mask); n == 1 {
				return mask
			}
		}
	}
	return 0o077
}
