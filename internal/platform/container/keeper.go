package container

import (
	"bytes"
	"encoding/json"
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
// One daemon owns a directory: with two there could be two devices of one name, and engines accept neither. Engines
// ignore files with other suffixes and may read a file at any time, so each is written under another name and renamed.
//
// A keeper touches only files that a keeper wrote, which it recognises by their content (written): other programs may
// have files of such a name.
//
// The files name NICs, and not all users may know them: other users may read only the file of the default NIC, and
// only if they may use the daemon.
type Keeper struct {
	dir    string
	mode   fs.FileMode
	lock   *os.File
	owns   bool              // it created the directory
	before map[string][]byte // content of the files
}

// ErrKept means that another daemon has its files there.
var ErrKept = errors.New("another daemon has its files there")

// Keep takes a directory and creates it if needed. The files of an earlier daemon stay until Put knows the NICs. mode is that of the
// daemon's socket.
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
	if err := k.adopt(); err != nil {
		k.lock.Close()
		return nil, err
	}
	return k, nil
}

// adopt takes over the files of an earlier keeper: Put replaces them, or removes them.
func (k *Keeper) adopt() error {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if file := e.Name(); named(file) && written(filepath.Join(k.dir, file)) {
			k.before[strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(file, "vrdma"), ".json"), "-")] = nil
		}
	}
	return nil
}

// lockIn locks a directory. The holder removes the lock file before it unlocks, so a lock counts only if the
// path still names the locked file.
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

// name returns the name of a tenant's file.
func name(tenant string) string {
	if tenant == "" {
		return "vrdma.json"
	}
	return "vrdma-" + tenant + ".json"
}

// named reports whether a file has a keeper's name.
func named(file string) bool {
	return file == name("") || strings.HasPrefix(file, "vrdma-") && strings.HasSuffix(file, ".json")
}

// mostSpec bounds a CDI file that is read: 64 thousand NICs.
const mostSpec = 64 << 20

// written reports whether a keeper wrote a file. CDI 0.5.0 has no field for an owner, and engines refuse unknown fields, so
// the content decides: the kind, and for each device the two mounts of a NIC. An empty file, which a crash may leave, counts by
// its name.
func written(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > mostSpec {
		return false
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	return len(text) == 0 || generated(text)
}

// generated reports whether Specs could have made a text.
func generated(text []byte) bool {
	var s Spec
	if json.Unmarshal(text, &s) != nil || s.Kind != Kind && s.Kind != NetworkKind || len(s.Devices) == 0 {
		return false
	}
	for _, d := range s.Devices {
		m := d.Edits.Mounts
		if len(m) != 2 || m[0].ContainerPath != Dir || m[1].ContainerPath != Preload || m[1].HostPath != filepath.Join(m[0].HostPath, preloadBelow) {
			return false
		}
	}
	return true
}

// preloadBelow is the path of Preload below a NIC's directory.
const preloadBelow = "vrdma.sock.d/ld.so.preload"

// partName returns the name of a file that is being written. Engines ignore it.
const partName = ".vrdma.part"

// sweep removes all files that a keeper wrote.
func (k *Keeper) sweep() error {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(k.dir, e.Name())
		if e.Name() == partName || named(e.Name()) && written(path) {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}

// Put writes the files for these NICs. It does not touch unchanged files; the next call retries what failed.
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
		path := filepath.Join(k.dir, name(tenant))
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
	if _, err := os.Lstat(path); err == nil && !written(path) {
		return fmt.Errorf("%s exists and is not a file of vrdma: rename it, or choose another directory", path)
	}
	part := filepath.Join(k.dir, partName)
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

// Close removes the files, unless they stay for the next keeper, and the directory if the keeper created it and it is empty.
func (k *Keeper) Close(stay bool) (err error) {
	if !stay {
		err = k.sweep()
	}
	err = errors.Join(err, os.Remove(k.lock.Name()), k.lock.Close())
	if k.owns {
		os.Remove(k.dir) // fails if it is not empty
	}
	return err
}
