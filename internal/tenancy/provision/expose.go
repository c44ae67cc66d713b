package provision

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// The default NIC's own socket lies beside the daemon's other files, the directories of declared NICs included. No
// container may mount those. So containers have a second listener of the default NIC, in a directory like those of
// declared NICs:
//
//	PATH.nics/default/default/   the gate, with the mode of the daemon's own directory
//	  nic/                       0755, the directory that containers mount
//	    vrdma.sock               0666: for every process that has the mount, whatever its uid inside
//	    vrdma.sock.d/
//
// No tenant can be called default.

// exposed is that directory.
type exposed struct {
	place     launch.Place
	ephemeral bool
}

// Expose makes the directory and opens its listener of n, the default NIC. An ephemeral daemon removes the directory at
// its end.
func (r *Provisioner) Expose(n *registry.NIC, ephemeral bool) error {
	place, err := r.cfg.Place.NIC(registry.Default, registry.Default)
	if err != nil {
		return err
	}
	const mode, dirMode = fs.FileMode(0o666), fs.FileMode(0o755)
	err = r.directories.makeShared(place, r.cfg.DirMode, dirMode)
	r.exposed = &exposed{place: place, ephemeral: ephemeral}
	if err == nil {
		err = r.directories.install(place)
	}
	if err != nil {
		r.unexpose(nil)
		return err
	}
	err = r.listeners.OpenListener(server.Listener{Socket: place.Socket, NIC: n, DirMode: dirMode, SocketMode: mode, Rests: true, Secondary: true})
	if err != nil {
		r.unexpose(nil)
	}
	return err
}

// Await makes the directory that containers mount until their NIC exists (launch.Place.Waiting). No NIC is reachable
// from there.
func (r *Provisioner) Await() error {
	place, err := r.cfg.Place.Waiting()
	if err != nil {
		return err
	}
	err = r.directories.makeShared(place, 0o755, 0o755)
	if err == nil {
		err = r.directories.install(place)
	}
	if err == nil {
		r.waiting = &place
	}
	return err
}

// removeWaiting removes that directory.
func (r *Provisioner) removeWaiting(m mounts) {
	if r.waiting == nil {
		return
	}
	if err := clearPlace(*r.waiting, r.keeps(m, *r.waiting)); err != nil {
		r.cfg.Log.Warn("something is left of the directory for containers whose NIC is made", "error", err)
	}
	r.directories.removeEmpty(filepath.Dir(r.waiting.Socket))
}

// Networks are the networks in which NICs can be made for containers, sorted. It may be called at any time.
func (r *Provisioner) Networks() []tenant.Key {
	if list := r.networks.Load(); list != nil && r.waiting != nil {
		return *list
	}
	return nil
}

// noteNetworks remembers a world's networks. A container cannot have an address of the host.
func (r *Provisioner) noteNetworks(w *tenant.World) {
	var list []tenant.Key
	for _, o := range w.Objects(tenant.KindNetwork) {
		if n, ok := o.(*tenant.Network); ok && n.Spec.Way != tenant.WayHost {
			list = append(list, n.Key())
		}
	}
	slices.SortFunc(list, tenant.Key.Compare)
	if old := r.networks.Swap(&list); old == nil && len(list) > 0 || old != nil && !slices.Equal(*old, list) {
		r.changed()
	}
}

// unexpose removes the files in the directory, as clearPlace does, after the listener has been closed. The directory itself stays for the
// next daemon, because containers may have it mounted. An ephemeral daemon removes it, too.
func (r *Provisioner) unexpose(m mounts) {
	e := r.exposed
	if e == nil {
		return
	}
	err := clearPlace(e.place, !e.ephemeral && r.keeps(m, e.place))
	if e.ephemeral {
		r.directories.removeEmpty(filepath.Dir(e.place.Socket))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.cfg.Log.Warn("something is left of the directory for containers", "error", err)
	}
}

// clearPlace removes the files in a NIC's directory. The directory stays. keep leaves the files that a container mounts:
// every program in there loads the shared object, and without the file ld.so prints an error.
func clearPlace(at launch.Place, keep bool) error {
	dir := at.Dir()
	if keep {
		dir = at.Sysfs()
	}
	remove := os.RemoveAll(dir)
	if err := os.Remove(at.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		remove = errors.Join(remove, err)
	}
	return remove
}

// mounts are the directories of NICs that containers have mounted.
type mounts map[[2]uint64]bool

// findMounts looks into every mount namespace that this daemon can see.
func findMounts() mounts {
	found, seen := make(mounts), make(map[string]bool)
	processes, _ := filepath.Glob("/proc/[0-9]*") // the pattern is fine
	for _, p := range processes {
		space, err := os.Readlink(p + "/ns/mnt")
		if err != nil || seen[space] {
			continue
		}
		seen[space] = true
		var st syscall.Stat_t
		if syscall.Stat(p+"/root"+container.Dir, &st) == nil {
			found[[2]uint64{st.Dev, st.Ino}] = true
		}
	}
	return found
}

// has reports whether a container has mounted the directory of a NIC.
func (m mounts) has(at launch.Place) bool {
	var st syscall.Stat_t
	return syscall.Stat(filepath.Dir(at.Socket), &st) == nil && m[[2]uint64{st.Dev, st.Ino}]
}

// keeps reports whether the files that containers mount stay when the daemon ends.
func (r *Provisioner) keeps(m mounts, at launch.Place) bool { return r.cfg.Returns || m.has(at) }
