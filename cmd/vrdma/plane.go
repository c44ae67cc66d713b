package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"vrdma/internal/budget"
	"vrdma/internal/caller"
	"vrdma/internal/control"
	"vrdma/internal/inspect"
	"vrdma/internal/launch"
	"vrdma/internal/nic"
	"vrdma/internal/protocol"
	"vrdma/internal/rdmacm"
	"vrdma/internal/store"
	"vrdma/internal/store/etcd"
	"vrdma/internal/tenant"
	"vrdma/internal/vnic"
)

// storePath is the file of declared objects: what --store says, else a file of this daemon's own
// in $XDG_STATE_HOME/vrdma, /var/lib/vrdma for root, ~/.local/state/vrdma, or beside the socket.
// Like the control socket's its name is made from the program socket's path.
func storePath(flag string, place launch.Place) string {
	if flag != "" && !strings.HasPrefix(flag, etcd.Scheme) {
		return flag
	}
	socket := place.Socket
	if dir, err := filepath.EvalSymlinks(filepath.Dir(socket)); err == nil {
		socket = filepath.Join(dir, filepath.Base(socket))
	}
	sum := sha256.Sum256([]byte(socket))
	name := hex.EncodeToString(sum[:8]) + ".db"
	var places []string
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		places = append(places, filepath.Join(dir, "vrdma", name))
	}
	if os.Geteuid() == 0 {
		places = append(places, filepath.Join("/var/lib/vrdma", name))
	} else if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		places = append(places, filepath.Join(home, ".local/state/vrdma", name))
	}
	return firstReachable(append(places, place.Socket+".db"))
}

// firstReachable is the first path that is there, or could be: HOME may be another user's, after
// su or setpriv. The last one is taken anyway.
func firstReachable(paths []string) string {
	for _, p := range paths[:len(paths)-1] {
		if _, err := os.Lstat(p); err == nil || errors.Is(err, fs.ErrNotExist) {
			return p
		}
	}
	return paths[len(paths)-1]
}

// openStore opens the store: etcd, or a file, which is made when something is declared.
func (d *daemon) openStore(f *daemonFlags) error {
	if strings.HasPrefix(f.store, "etcd:") && !strings.HasPrefix(f.store, etcd.Scheme) {
		return usage("--store %s: a store in etcd is named %sHOST:PORT[,HOST:PORT…]; a file of that name is ./%[1]s", f.store, etcd.Scheme)
	}
	path := storePath(f.store, d.place)
	if strings.HasPrefix(f.store, etcd.Scheme) {
		return d.openEtcd(f, strings.TrimSuffix(path, ".db")+".copy")
	}
	if f.storeConfig != "" {
		return usage("--store-config is for a store in etcd: --store %sHOST:PORT", etcd.Scheme)
	}
	s, problems, err := store.Open(path)
	if err != nil {
		return lacks("%w", err)
	}
	for _, p := range problems {
		d.log.Warn("an entry of the store is left out", "store", path, "why", p)
	}
	d.store = s
	return nil
}

// openPlane has the rack hold what is declared.
func (d *daemon) openPlane() (err error) {
	plane, err := control.Open(control.Config{
		Store: d.store, Rack: d.rack, Host: d.host, Self: d.self(), Identity: identity(d.place.Socket), Log: d.log,
		Changed: d.admitTenants, Workloads: workloads{d},
		Overdrawn: func(err error) {
			var e *budget.Error
			if errors.As(err, &e) {
				d.overdrawn(e)
			}
		},
	})
	if err != nil {
		return lacks("%w", err)
	}
	d.plane.Store(plane)
	d.rack.Sweep() // the rack holds what is declared
	return nil
}

// host is what this host is called.
func (f *daemonFlags) host() (string, error) {
	if f.hostName != "" {
		if !(tenant.Key{Kind: tenant.KindHost, Name: f.hostName}).Valid() {
			return "", usage("--host-name %s: want a host's name, like node-7 or node7.example.com", f.hostName)
		}
		return f.hostName, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", lacks("the host's name, by which NICs say where they belong: %w; give one with --host-name", err)
	}
	return host, nil
}

// identity tells this daemon from others that say they are of the same host.
func identity(socket string) string {
	sum := sha256.Sum256(append([]byte("identity"), guidSeed(socket)...))
	return hex.EncodeToString(sum[:16])
}

// claimNIC is asked when a program is about to use a NIC: it has to be on this host.
func (d *daemon) claimNIC(k tenant.Key) error {
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(10 * time.Millisecond) {
		if plane := d.plane.Load(); plane != nil {
			return plane.Claim(k)
		}
		if time.Now().After(deadline) { // doors are opened before the plane is
			return errors.New("the daemon is not ready yet: try again")
		}
	}
}

// admitTenants opens the tenants' socket while a tenant has administrators.
func (d *daemon) admitTenants(w *tenant.World) {
	admit := false
	for _, o := range w.Objects(tenant.KindTenant) {
		a := &o.(*tenant.Tenant).Spec.Administrators
		admit = admit || len(a.UIDs)+len(a.GIDs) > 0
	}
	if err := d.server.AdmitTenants(admit); err != nil {
		d.log.Warn("administrators of tenants cannot reach the daemon: the tenants' socket cannot be made", "error", err)
	}
}

// serveObjects answers those who ask about declared objects.
func (d *daemon) serveObjects(c *protocol.Conn, v *inspect.View) {
	plane := d.plane.Load()
	if plane == nil {
		return // not yet, or not any more
	}
	peer := control.Peer{Who: v.Who, Operator: v.All, Resident: v.Resident}
	if !v.All && !v.Tenants {
		if peer.Door = vnic.Default; v.NIC != nil {
			peer.Door = v.NIC.Name
		}
	}
	plane.Serve(c, peer)
}

// administers reports whether who looks administers a tenant.
func (d *daemon) administers(v *inspect.View, tenant string) bool {
	plane := d.plane.Load()
	return plane != nil && v.Conn != nil && plane.Administers(v.Conn, control.Peer{Who: v.Who, Operator: v.All, Resident: v.Resident}, tenant)
}

// record takes an event from any goroutine, the loop included.
func (d *daemon) record(e control.Event) {
	if plane := d.plane.Load(); plane != nil {
		plane.Record(e)
	}
}

// nicKey is the key of a declared NIC by its name in the daemon.
func nicKey(n *vnic.NIC) (k tenant.Key) {
	if of, name, declared := n.Whose(); declared {
		k = tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: name}
	}
	return k
}

// refused is told of a caller that was not let in at a NIC's door.
func (d *daemon) refused(n *vnic.NIC, who *caller.Caller, why error) {
	d.record(control.Event{
		Verb: control.EventRefused, Object: nicKey(n), Reason: "open: " + why.Error(),
		By: control.Actor{UID: who.UID, Pid: who.Pid, Program: who.Program},
	})
}

// opened is told of programs that open a NIC's device, and close it. Those of the default NIC,
// which nobody declared, are not recorded.
func (d *daemon) opened(n *vnic.NIC, who *caller.Caller, open bool) {
	e := control.Event{
		Verb: control.EventOpened, Object: nicKey(n), By: control.Actor{UID: who.UID, Pid: who.Pid, Program: who.Program},
	}
	if !open {
		e.Verb = control.EventClosed
	}
	if e.Object != (tenant.Key{}) {
		d.record(e)
	}
}

// capped is told on the loop of a NIC that has met a cap.
func (d *daemon) capped(key tenant.Key, limit string) {
	d.record(control.Event{Verb: control.EventCapped, Object: key, Reason: limit})
}

// overdrawn is told of a limit that was met.
func (d *daemon) overdrawn(e *budget.Error) {
	event := control.Event{Verb: control.EventQuota, Reason: e.Error()}
	if e.Tenant != "" {
		event.Object = tenant.Key{Kind: tenant.KindTenant, Name: e.Tenant}
	}
	d.record(event)
}

// denied is told on the loop of what the rules have refused.
func (d *daemon) denied(key tenant.Key, of nic.Denial) {
	e := control.Event{
		Verb: control.EventRefused, Object: key, Peer: of.Peer.Addr().String(), Reason: of.What.String() + ": " + of.Why,
		By: control.Actor{UID: of.UID, Pid: of.Pid, Program: of.Program},
	}
	if of.Pid == 0 { // nobody's
		e.By.UID = -1
	}
	if of.What == nic.Revoked {
		e.Verb, e.Reason = control.EventRevoked, of.Why
	}
	d.record(e)
}

// connected is told on the loop of connections that were made, and of their end.
func (d *daemon) connected(n *vnic.NIC, of rdmacm.Notice) {
	e := control.Event{
		Verb: control.EventConnected, Object: nicKey(n), Peer: of.Remote.String(), Reason: "to " + of.Remote.String(),
		By: control.Actor{UID: of.UID, Pid: of.Pid, Program: of.Program},
	}
	if of.Passive {
		e.Reason = "at " + of.Local.String()
	}
	if of.Ended {
		e.Verb = control.EventDisconnected
	}
	d.record(e)
}
