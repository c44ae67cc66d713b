package provision

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A NIC's directory:
//
//	PATH.nics/                0711: names can be looked up, not listed
//	  TENANT/                 0711
//	    NAME/                 the gate: only users that may open the NIC can enter (gate.go)
//	      nic/                the directory that containers mount
//	        vrdma.sock        the NIC's listener
//	        guest.sock        for the QEMU of a virtual machine, made on request (switchport.go)
//	        vrdma.sock.d/     libvrdma.so, libvrdma-sockets.so (links), ld.so.preload, sys/ (the device tree)
//
// Without spec.open a NIC has the modes of the daemon's own socket. With spec.open every process that can enter the
// gate, or has the directory mounted, can connect. The listener then checks the caller.

// directories makes and removes the directories of NICs.
type directories struct {
	host    *host
	work    *workQueue
	passage passage

	mu        sync.Mutex // held while directories are made or removed that several NICs share
	discarded int        // guarded by mu: how many directories were moved to the trash
	warned    bool       // warnUnreachable has logged
}

// searchable is the mode of directories in which names are looked up and not listed.
const searchable = 0o711

// install puts the files that all NICs share into a NIC's directory.
func (d *directories) install(at launch.Place) error {
	of := d.host.cfg.Place
	for _, link := range []struct{ from, to string }{
		{of.Library(), at.Library()}, {of.Sockets(), at.Sockets()},
	} {
		if err := share(link.from, link.to); err != nil {
			return fmt.Errorf("cannot install %s: %w", filepath.Base(link.to), err)
		}
	}
	f, err := os.OpenFile(at.Preload(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) { // left by an earlier daemon
		if err := os.Remove(at.Preload()); err != nil {
			return err
		}
		f, err = os.OpenFile(at.Preload(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(container.PreloadText)
	return errors.Join(err, f.Chmod(0o644), f.Close())
}

// makeDirectories makes a NIC's directory and its parents.
func (d *directories) makeDirectories(s *hostedNIC, mode fs.FileMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	gate := s.place.Gate()
	for at := d.host.cfg.Place.NICs(); at != gate; {
		if err := makeDirectory(at, searchable); err != nil {
			return err
		}
		rest, _ := filepath.Rel(at, gate) // gate lies below at
		at = filepath.Join(at, strings.SplitN(rest, "/", 2)[0])
	}
	if err := makeDirectory(gate, 0o700); err != nil {
		return err
	}
	return errors.Join(d.setGate(s), makeDirectory(filepath.Dir(s.place.Socket), mode), makeDirectory(s.place.Dir(), mode))
}

// makeShared makes a directory that several containers may mount, and the directories that it is in. gate is the mode of
// the directory around it.
func (d *directories) makeShared(place launch.Place, gate, mode fs.FileMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := makeDirectory(d.host.cfg.Place.NICs(), searchable)
	if above := filepath.Dir(place.Gate()); err == nil && above != d.host.cfg.Place.NICs() {
		err = makeDirectory(above, searchable)
	}
	if err != nil {
		return err
	}
	return errors.Join(makeDirectory(place.Gate(), gate), makeDirectory(filepath.Dir(place.Socket), mode), makeDirectory(place.Dir(), mode))
}

// modes are the modes of a NIC's socket and directory. The gate closes the directory to other users. In a container every
// user loads the shared object, which says why a user may not open the NIC.
func (h *host) modes(s *hostedNIC) (socket, dir fs.FileMode) {
	if s.open.anybody() {
		return h.cfg.Mode, 0o755
	}
	return 0o666, 0o755
}

// allow sets the modes of the socket and its directories after spec.open has changed.
func (d *directories) allow(s *hostedNIC) error {
	mode, dirMode := d.host.modes(s)
	err := errors.Join(d.setGate(s), os.Chmod(s.place.Socket, mode), os.Chmod(filepath.Dir(s.place.Socket), dirMode), os.Chmod(s.place.Dir(), dirMode))
	return errors.Join(err, s.nic.Tree.Allow(dirMode))
}

// makeDirectory makes a directory. A directory that exists is taken over if it belongs to the daemon's user.
func makeDirectory(path string, mode fs.FileMode) error {
	err := os.Mkdir(path, mode)
	if err == nil {
		return os.Chmod(path, mode)
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || !ok || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s should be a directory of this user's: remove it", path)
	}
	return os.Chmod(path, mode)
}

// share links a file to a second name. It copies the file where the file system has no hard links.
func share(from, to string) error {
	err := os.Link(from, to)
	if errors.Is(err, fs.ErrExist) { // a daemon before us left it
		if err := os.Remove(to); err != nil {
			return err
		}
		err = os.Link(from, to)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(0o755), out.Close())
}

// warnUnreachable warns once that users cannot reach listeners that are open to a control group or a namespace.
func (d *directories) warnUnreachable() {
	dir := filepath.Dir(d.host.cfg.Place.Socket)
	if info, err := os.Stat(dir); d.warned || err != nil || info.Mode().Perm()&0o001 != 0 {
		return
	}
	d.warned = true
	d.host.cfg.Log.Warn("other users reach NICs that they may open only where their directory is mounted: the daemon's directory is closed to them",
		"directory", dir, "advice", "chmod o+x it, or start the daemon with --mode 0666")
}

// discard removes a NIC's directory, and the tenant's directory with the last one. The more than a hundred files of the
// NIC are removed in the background.
func (d *directories) discard(s *hostedNIC) {
	d.passage.set(s.key, new(tenant.Who))
	d.mu.Lock()
	defer d.mu.Unlock()
	dir, bin := s.place.Gate(), d.trash()
	d.discarded++
	to := filepath.Join(bin, strconv.Itoa(d.discarded))
	err := makeDirectory(bin, 0o700)
	if err == nil {
		err = os.Rename(dir, to)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		to = dir // fall back to removing the files here
		if err := os.RemoveAll(dir); err != nil {
			d.host.cfg.Log.Warn("something is left of a NIC", "nic", s.nic.Name, "error", err)
		}
	}
	d.prune(filepath.Dir(dir))
	d.work.add(func() {
		os.RemoveAll(to) // the next daemon's Sweep removes what is left
		d.removeEmpty(bin)
	})
}

// trash is the directory of removed NICs whose files are still to be deleted. No tenant can have this name.
func (d *directories) trash() string { return filepath.Join(d.host.cfg.Place.NICs(), ".gone") }

// empty removes the trash. The next daemon's Sweep removes what is left.
func (d *directories) empty() {
	os.RemoveAll(d.trash())
	d.removeEmpty(d.trash())
}

// removeEmpty is prune for a caller without the lock.
func (d *directories) removeEmpty(dir string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.prune(dir)
}

// prune removes a directory of NICs and its parents as far as they are empty. mu is held.
func (d *directories) prune(dir string) {
	for ; strings.HasPrefix(dir, d.host.cfg.Place.NICs()); dir = filepath.Dir(dir) {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			break // not empty
		}
	}
}

// Sweep removes the directories of NICs that an earlier daemon had and this one has not. It is called after all
// declared NICs have been created.
func (r *Provisioner) Sweep() {
	here := make(map[string]bool)
	var sockets []string
	for _, s := range r.nics {
		sockets = append(sockets, s.place.Socket)
	}
	if r.exposed != nil {
		sockets = append(sockets, r.exposed.place.Socket)
	}
	if r.waiting != nil {
		sockets = append(sockets, r.waiting.Socket)
	}
	for _, socket := range sockets {
		for dir := filepath.Dir(socket); strings.HasPrefix(dir, r.cfg.Place.NICs()); dir = filepath.Dir(dir) {
			here[dir] = true
		}
	}
	var walk func(dir string)
	walk = func(dir string) {
		if !here[dir] {
			if err := os.RemoveAll(dir); err != nil {
				r.cfg.Log.Warn("cannot remove what is left of a NIC", "error", err)
			}
			return
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return
		}
		for _, e := range entries {
			if path := filepath.Join(dir, e.Name()); e.IsDir() && !strings.HasSuffix(e.Name(), ".sock.d") {
				walk(path)
			}
		}
	}
	walk(r.cfg.Place.NICs())
}
