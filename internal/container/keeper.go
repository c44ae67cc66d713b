package container

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A Keeper keeps CDI files in a directory:
//
//	DIR/vrdma-TENANT.json    one for each tenant with NICs
//	DIR/vrdma.json           NICs that were not declared
//	DIR/.vrdma.lock          held by the daemon whose files they are (flock, exclusive)
//
// A directory has the files of one daemon: with those of two there would be two devices of one name, and engines
// take neither. Engines pass over files that do not end like these, and read those that do
// at any moment, so each is written aside and renamed.
//
// The files name NICs, and who may know of a NIC is said elsewhere: others may read only the file
// of NICs that were not declared, and only if the daemon lets them in.
type Keeper struct {
	dir    string
	mode   fs.FileMode
	lock   *os.File
	owns   bool              // it made the directory
	before map[string][]byte // what the files say
}

// ErrKept means that another daemon keeps its files there.
var ErrKept = errors.New("another daemon keeps its files there")

// Keep takes a directory, which is made if it is not there, and removes what a daemon that died
// has left. mode is that of the daemon's socket.
func Keep(dir string, mode fs.FileMode) (*Keeper, error) {
	k := &Keeper{dir: dir, mode: mode, before: make(map[string][]byte)}
	err := os.Mkdir(dir, 0o755)
	k.owns = err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if k.lock, err = lockIn(dir); err != nil {
		if k.owns {
			os.Remove(dir)
		}
		return nil, err
	}
	if err := k.sweep(); err != nil {
		k.lock.Close()
		return nil, err
	}
	return k, nil
}

// lockIn locks a directory. The holder removes the file before it lets go, so a lock counts only if the
// path still leads to the file that was locked.
func lockIn(dir string) (*os.File, error) {
	path := filepath.Join(dir, ".vrdma.lock")
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				err = fmt.Errorf("%s: %w", dir, ErrKept)
			}
			return nil, err
		}
		there, err1 := os.Lstat(path)
		here, err2 := f.Stat()
		if err1 == nil && err2 == nil && os.SameFile(there, here) {
			return f, nil
		}
		f.Close()
	}
}

// name is that of a tenant's file.
func name(tenant string) string {
	if tenant == "" {
		return "vrdma.json"
	}
	return "vrdma-" + tenant + ".json"
}

// ours reports whether a file is one of a keeper's, or one that it was writing.
func ours(file string) bool {
	file = strings.TrimSuffix(file, partSuffix)
	return file == name("") || strings.HasPrefix(file, "vrdma-") && strings.HasSuffix(file, ".json")
}

const partSuffix = ".part"

// sweep removes all files of ours.
func (k *Keeper) sweep() error {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if ours(e.Name()) {
			err = errors.Join(err, os.Remove(filepath.Join(k.dir, e.Name())))
		}
	}
	return err
}

// Put makes the files those of these NICs. Files that stay the same are not touched; what could not be done is
// tried again with the next.
func (k *Keeper) Put(nics []NIC) error {
	var errs []error
	specs := Specs(nics)
	for tenant, s := range specs {
		text := s.Text()
		if bytes.Equal(k.before[tenant], text) {
			continue
		}
		if err := k.write(tenant, text); err != nil {
			errs = append(errs, err)
			continue
		}
		k.before[tenant] = text
	}
	for tenant := range k.before {
		if specs[tenant] != nil {
			continue
		}
		if err := os.Remove(filepath.Join(k.dir, name(tenant))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		delete(k.before, tenant)
	}
	return errors.Join(errs...)
}

// write replaces a file.
func (k *Keeper) write(tenant string, text []byte) error {
	path := filepath.Join(k.dir, name(tenant))
	mode := fs.FileMode(0o600)
	if tenant == "" {
		mode |= k.mode & 0o044
	}
	part := path + partSuffix
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		os.Remove(part)
	}
	return err
}

// Close removes the files, and the directory if it was made for them and nobody else has something there.
func (k *Keeper) Close() error {
	err := errors.Join(k.sweep(), os.Remove(k.lock.Name()), k.lock.Close())
	if k.owns {
		os.Remove(k.dir) // fails while others have something there
	}
	return err
}
