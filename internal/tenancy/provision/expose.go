package provision

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// The default NIC's own socket lies beside everything that is the daemon's, the directories of
// declared NICs included, which no container may have. So containers have a second door to it, in
// a directory like those of declared NICs:
//
//	PATH.nics/default/default/   the gate, with the mode of the daemon's own directory
//	  nic/                       0755, and what is mounted
//	    vrdma.sock               0666: whoever has the mount, whatever the uids inside
//	    vrdma.sock.d/
//
// No tenant is called default.

// exposed is that directory.
type exposed struct {
	place     launch.Place
	ephemeral bool
}

// Expose has the directory there, and opens its door to n, the default NIC. An ephemeral daemon takes
// the directory away again at its end: what it serves has ended by then.
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
		r.unexpose()
		return err
	}
	err = r.listeners.OpenListener(server.Listener{Socket: place.Socket, NIC: n, DirMode: dirMode, SocketMode: mode, Rests: true, Secondary: true})
	if err != nil {
		r.unexpose()
	}
	return err
}

// Await has the directory there that containers have mounted until their NIC has been made (launch.Place.Waiting). Nothing leads from
// there to a NIC.
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

// awaitNoMore takes that directory away.
func (r *Provisioner) removeWaiting() {
	if r.waiting == nil {
		return
	}
	if err := clearPlace(*r.waiting); err != nil {
		r.cfg.Log.Warn("something is left of the directory for containers whose NIC is made", "error", err)
	}
	r.directories.removeEmpty(filepath.Dir(r.waiting.Socket))
}

// Networks are those in which NICs can be made for containers, in order. It may be called at any time.
func (r *Provisioner) Networks() []tenant.Key {
	if list := r.networks.Load(); list != nil && r.waiting != nil {
		return *list
	}
	return nil
}

// noteNetworks remembers a world's networks. Of the host's addresses a container can have none.
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

// conceal takes away what lies in the directory, after the door has been closed, and the directory
// itself if the daemon is ephemeral. Otherwise it stays: containers that have it mounted shall find the next daemon.
func (r *Provisioner) unexpose() {
	e := r.exposed
	if e == nil {
		return
	}
	err := clearPlace(e.place)
	if e.ephemeral {
		r.directories.removeEmpty(filepath.Dir(e.place.Socket))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.cfg.Log.Warn("something is left of the directory for containers", "error", err)
	}
}

// clearPlace removes what lies in a NIC's directory. The directory stays.
func clearPlace(at launch.Place) error {
	err := os.RemoveAll(at.Dir())
	if rerr := os.Remove(at.Socket); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	return err
}
