package provision

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A NIC's directory:
//
//	PATH.nics/                0711: who does not know a name finds none
//	  TENANT/                 0711
//	    NAME/                 the gate: only those pass who may open the NIC (gate.go)
//	      nic/                what is mounted
//	        vrdma.sock        the door
//	        guest.sock        for the QEMU of a virtual machine, once somebody has asked for it (guest.go)
//	        vrdma.sock.d/     libvrdma.so, libvrdma-sockets.so (links), ld.so.preload, sys/ (the device tree)
//
// A NIC that does not say who may open it has the modes of the daemon's own socket. One that
// does can be connected to by everybody who has passed the gate, or has the directory mounted,
// and the door asks.

// directories makes and removes the directories of NICs.
type directories struct {
	host *host
	work *workQueue

	mu        sync.Mutex // held while directories are made or removed that several NICs share
	discarded int        // guarded by mu: how many directories were moved to the trash
	warned    bool       // warnUnreachable has logged
}

// searchable is the mode of directories in which names are looked up and not listed.
const searchable = 0o711

// openness is who may open a NIC. It may be asked at any time.
type openness struct{ now atomic.Pointer[tenant.Who] }

// set changes it, and reports whether it was something else.
func (o *openness) set(w tenant.Who) bool {
	old := o.now.Swap(&w)
	return old != nil && !(slices.Equal(old.UIDs, w.UIDs) && slices.Equal(old.GIDs, w.GIDs) && old.Container == w.Container && old.Namespace == w.Namespace)
}

// anybody reports whether the modes of the socket decide alone.
func (o *openness) anybody() bool {
	w := o.now.Load()
	return len(w.UIDs)+len(w.GIDs) == 0 && w.Container == "" && w.Namespace == ""
}

// admit says why somebody may not open the NIC. The daemon's owner is not asked.
func (o *openness) admit(who *credentials.Caller, conn syscall.Conn) error {
	w := o.now.Load()
	if len(w.UIDs)+len(w.GIDs) > 0 && !slices.Contains(w.UIDs, who.UID) && !who.InGroup(conn, w.GIDs) {
		return fmt.Errorf("user %d may not open it (spec.open)", who.UID)
	}
	if w.Container != "" {
		group, err := who.ControlGroup(conn)
		if err != nil {
			return fmt.Errorf("your control group is not known: %w", err)
		}
		if !credentials.Within(group, w.Container) {
			return fmt.Errorf("the control group %s may not open it (spec.open.container)", group)
		}
	}
	if w.Namespace != "" {
		// A tenant's administrators may name any path: whether there is a file is not told.
		want, err := credentials.NamespaceAt(w.Namespace)
		if got, gerr := who.NetworkNamespace(conn); err != nil || gerr != nil || got != want {
			return errors.New("only the network namespace in spec.open.namespace may open it, if it is one")
		}
	}
	return nil
}

// openDoor makes the directory and opens the door.
func (r *Provisioner) listen(s *hostedNIC) (err error) {
	defer func() {
		if err != nil {
			r.directories.discard(s)
		}
	}()
	mode, dirMode := r.modes(s)
	if err := r.directories.makeDirectories(s, dirMode); err != nil {
		return err
	}
	if err := r.directories.install(s.place); err != nil {
		return err
	}
	if !s.open.anybody() {
		r.directories.warnUnreachable()
	}
	a := s.account
	var claim func() error
	if r.cfg.Placement != nil {
		claim = func() error { return r.cfg.Placement.Claim(s.key) }
	}
	var attach func(syscall.Conn) error
	var detach func()
	if s.namespace != nil {
		attach, detach = s.namespace.attach, s.namespace.detach
	} else if s.ethernet != nil {
		attach, detach = func(conn syscall.Conn) error { s.ethernet.tapFor(conn); return nil }, func() {} // it ends with the container
	}
	var bound []server.Binding
	if r.cfg.Workloads != nil {
		bound = r.cfg.Workloads.Bound(s.key)
	}
	var guest func() (protocol.GuestCard, error)
	if s.ethernet != nil {
		guest = s.ethernet.card
	}
	return r.listeners.OpenListener(server.Listener{
		Claim: claim, Attach: attach, Detach: detach, Machine: guest,
		Socket: s.place.Socket, NIC: s.nic, DirMode: dirMode, SocketMode: mode, Admit: s.open.admit, Account: a.budget,
		Commands: a.commands, Requests: a.requests, Rests: true, Exclusive: true, Programs: &s.programs, Bound: bound,
	})
}

// install puts the files that are the same for all NICs into a NIC's directory.
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
	if errors.Is(err, fs.ErrExist) { // a daemon before us left it
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

// makeDirectories makes a NIC's directory, and those that it is in.
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

// modes are those of a NIC's socket and directory.
func (h *host) modes(s *hostedNIC) (socket, dir fs.FileMode) {
	if s.open.anybody() {
		return h.cfg.Mode, h.cfg.DirMode
	}
	return 0o666, 0o755
}

// allow gives the socket and its directories the modes that they have to have now.
func (d *directories) allow(s *hostedNIC) error {
	mode, dirMode := d.host.modes(s)
	err := errors.Join(d.setGate(s), os.Chmod(s.place.Socket, mode), os.Chmod(filepath.Dir(s.place.Socket), dirMode), os.Chmod(s.place.Dir(), dirMode))
	return errors.Join(err, s.nic.Tree.Allow(dirMode))
}

// makeDirectory makes a directory of ours, or takes the one that is there, if it is.
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

// share has a file under a second name, or where the file system does not do that, a copy.
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

// warnUnreachable says once that users cannot get to the doors that are open to them.
func (d *directories) warnUnreachable() {
	dir := filepath.Dir(d.host.cfg.Place.Socket)
	if info, err := os.Stat(dir); d.warned || err != nil || info.Mode().Perm()&0o001 != 0 {
		return
	}
	d.warned = true
	d.host.cfg.Log.Warn("other users reach NICs that they may open only where their directory is mounted: the daemon's directory is closed to them",
		"directory", dir, "advice", "chmod o+x it, or start the daemon with --mode 0666")
}

// discard takes a NIC's directory away, and that of the tenant with the last one. What was in it,
// more than a hundred files, is removed beside everything else.
func (d *directories) discard(s *hostedNIC) {
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
		to = dir // so it takes as long as it takes
		if err := os.RemoveAll(dir); err != nil {
			d.host.cfg.Log.Warn("something is left of a NIC", "nic", s.nic.Name, "error", err)
		}
	}
	d.prune(filepath.Dir(dir))
	d.work.add(func() {
		os.RemoveAll(to) // what is left Sweep finds, when the next daemon starts
		d.removeEmpty(bin)
	})
}

// bin is where the directories of NICs that are gone wait to be removed. No tenant is called so.
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

// prune removes a directory of NICs, and those that it is in, as far as they are empty.
// directories is held.
func (d *directories) prune(dir string) {
	for ; strings.HasPrefix(dir, d.host.cfg.Place.NICs()); dir = filepath.Dir(dir) {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			break // others are there
		}
	}
}

// Sweep removes the directories of NICs that a daemon before us had, and that are not here. It is
// called when all NICs that are declared have been put in.
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
