package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"vrdma.dev/vrdma/internal/abi/abitext"
	"vrdma.dev/vrdma/internal/device/nic"
)

// Renew updates the addresses of the NIC in the tree. Programs may read it meanwhile: each changed file is replaced atomically,
// and the others stay.
func (t *Tree) Renew() error {
	t.life.Lock()
	defer t.life.Unlock()
	if t.gone || !t.sketched {
		return nil
	}
	f := t.nic.Face()
	if err := t.renewInterfaces(f.GIDs); err != nil || !t.written {
		return err
	}
	state, phys := portState(f)
	if err := t.replace(filepath.Join(t.port(), "state"), state); err != nil {
		return err
	}
	if err := t.replace(filepath.Join(t.port(), "phys_state"), phys); err != nil {
		return err
	}
	for row := range f.TableLen() {
		g, full := f.Entry(row)
		if err := t.replace(filepath.Join(t.port(), "gids", fmt.Sprint(row)), abitext.SysfsGID(g.GID)); err != nil {
			return err
		}
		name := filepath.Join(t.port(), "gid_attrs/ndevs", fmt.Sprint(row))
		if full && g.NetDev != "" {
			w := t.writer()
			w.dir(filepath.Dir(name)) // a tree of addresses without interfaces lacks it
			if err := w.err; err != nil {
				return err
			}
			if err := t.replace(name, g.NetDev); err != nil {
				return err
			}
		} else if err := t.remove(name); err != nil {
			return err
		}
	}
	return nil
}

// portState is the logical and the physical state of the port.
func portState(f *nic.Face) (state, phys string) {
	if f.Down {
		return "1: DOWN", "3: Disabled"
	}
	return "4: ACTIVE", "5: LinkUp"
}

// renewInterfaces updates the network interfaces of the device.
func (t *Tree) renewInterfaces(gids []nic.GIDEntry) error {
	d := filepath.Join("class/infiniband", t.nic.Name)
	at := filepath.Join(t.root, parentDevice, "net")
	if err := t.renewParent(filepath.Join(d, "parent"), gids); err != nil {
		return err
	}
	now := make(map[string]bool)
	w := t.writer()
	for _, g := range gids {
		if g.NetDev != "" {
			now[filepath.Base(g.NetDev)] = true
			w.dir(filepath.Join(parentDevice, "net", filepath.Base(g.NetDev)))
		}
	}
	list, err := os.ReadDir(at)
	if err = errors.Join(w.err, err); err != nil {
		return err
	}
	for _, e := range list {
		if !now[e.Name()] {
			if err := os.Remove(filepath.Join(at, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// renewParent updates the interface of the first address, if it has one.
func (t *Tree) renewParent(name string, gids []nic.GIDEntry) error {
	if len(gids) > 0 && gids[0].NetDev != "" {
		return t.replace(name, gids[0].NetDev)
	}
	return t.remove(name)
}

// remove removes an attribute, if it exists.
func (t *Tree) remove(name string) error {
	if err := os.Remove(filepath.Join(t.root, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// replace writes an attribute, newline included, unless it is unchanged. Other attributes may share the old file, see Later: it
// stays unchanged.
func (t *Tree) replace(name, text string) error {
	path, fresh := filepath.Join(t.root, name), filepath.Join(t.root, "fresh")
	if old, err := os.ReadFile(path); err == nil && string(old) == text+"\n" {
		return nil
	}
	f, err := newFile(fresh, fileMode(t.mode))
	if err != nil {
		return err
	}
	_, err = f.WriteString(text + "\n")
	return errors.Join(err, f.Close(), os.Rename(fresh, path))
}

// newFile makes a file in place of whatever has its name. Root of a container that has the tree may have put a link there.
func newFile(path string, mode fs.FileMode) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(mode); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
