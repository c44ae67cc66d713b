package launch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// errLink means that a link, device or other object is in place of a file. In a directory that
// others can write to, following it would let them choose the file that is written.
var errLink = errors.New("is not a regular file with one name: remove it, or choose another path with --socket")

// openPlain opens a file of a place: not through a symbolic link, not a device or a pipe, which
// could block, and not a file with a second name.
func openPlain(path string, flags int, mode fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, mode)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EISDIR) {
		return nil, fmt.Errorf("%s %w", path, errLink)
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	// A link count of 0 means that the owner has just removed the file.
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1 {
		f.Close()
		return nil, fmt.Errorf("%s %w", path, errLink)
	}
	return f, nil
}

// ReadOwn reads a file of a place whose content is trusted: this user must own it, and no other user may write to it. It reads at most
// most bytes.
func ReadOwn(path string, most int64) ([]byte, error) {
	f, err := openPlain(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return nil, fmt.Errorf("%s is not ours alone: remove it, or choose another path with --socket", path)
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// readPlain reads a small file of a place.
func readPlain(path string) ([]byte, error) {
	f, err := openPlain(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 4096))
}
