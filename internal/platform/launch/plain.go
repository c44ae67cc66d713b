package launch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// errLink means that something else stands where a file of ours belongs. In a directory
// that others can write to, following it would have us write where they want.
var errLink = errors.New("is not a plain file of one name: remove it, or choose another place with --socket")

// openPlain opens a file of a place: never through a symbolic link, never a device or a
// pipe (which would make us wait), and never a file that has another name elsewhere.
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
	// A file without a name is one that its owner has just removed.
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1 {
		f.Close()
		return nil, fmt.Errorf("%s %w", path, errLink)
	}
	return f, nil
}

// ReadOwn reads a file of a place that says what we trust: it has to be ours, and nobody else may write to it. What is longer than most is
// cut off.
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
		return nil, fmt.Errorf("%s is not ours alone: remove it, or choose another place with --socket", path)
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
