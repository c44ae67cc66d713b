package provision

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/engine"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/vswitch"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/policy"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// DeviceName is the name of every NIC's device. libibverbs' rxe provider matches the beginning of it, and a program
// sees only one device.
const DeviceName = "rxe0"

// removeTime bounds how long Remove waits until the programs of a NIC have released it. Foreign memory that does not
// arrive delays a session for some seconds.
const removeTime = 30 * time.Second

// Listeners opens and closes the sockets of NICs. server.Server implements it.
type Listeners interface {
	OpenListener(server.Listener) error
	CloseListeners(ctx context.Context, nics []*registry.NIC, force bool) map[*registry.NIC]error
	Users(n *registry.NIC) []server.User
	Recheck(n *registry.NIC)
}

// Config is the configuration of a Provisioner.
type Config struct {
	Engine *engine.Engine
	NICs   *registry.Table
	Budget *budget.Ledger // nil: nothing is bounded
	Log    *slog.Logger
	Place  launch.Place // the daemon's
	// Mode and DirMode are the modes of sockets and directories of NICs without spec.open.
	Mode, DirMode fs.FileMode
	Owner         int // uid
	// Seed determines the NICs' GUIDs, so that they are the same after a restart.
	Seed []byte
	// Underlay is the MTU of the host's network; 0: there is no other host.
	Underlay int
	// Between opens the sockets of virtual networks between hosts; nil: these networks stay on this host.
	// OverlayMTU is the MTU of the interfaces that they leave through. OverlayHead is the number of bytes that the overlay adds
	// to a packet with IPv4 inside, TunnelHead the number that encryption adds to that.
	Between                             Between
	OverlayMTU, OverlayHead, TunnelHead int
	// Sockets are the options of sockets in network namespaces.
	Sockets roce.UDPOptions
	// HostRoutes are the routes of NICs in the host's own network.
	HostRoutes registry.Routes
	// HostAddresses are the addresses at which other hosts reach this one at first. NICs in the host's network have no others.
	// nil: there are no other hosts.
	HostAddresses []netip.Addr
	// Succeeds: another daemon hands its NICs over (Thaw). Until then its sockets stay its own.
	Succeeds bool
	// Returns: engines may start containers while the daemon is stopped, so the files that containers mount stay.
	Returns bool
	// Switch connects virtual machines and containers as Ethernet; nil: there is none.
	Switch *vswitch.Switch
	// Events records what policies refuse, caps that NICs reach, connections of declared NICs, and containers without an
	// interface; nil: nothing does. The loop records, too.
	Events    events.Sink
	Placement Placement // nil: programs can use every NIC here
	Workloads Workloads // nil: no NIC is bound to a container
}

// Between opens the sockets of virtual networks between hosts, when the first network needs them.
type Between interface {
	// OpenOverlay opens the VXLAN sockets.
	OpenOverlay() (*Overlay, error)
	// OpenTunnel opens the tunnel of encrypted networks.
	OpenTunnel() (roce.Tunnel, error)
}

// Placement decides which host a NIC is on.
type Placement interface {
	// Claim takes the NIC for this host, or says why programs cannot use it here.
	Claim(tenant.Key) error
	// Release gives the NIC up, if it has no users, so that another host can claim it. Without Release that happens within seconds.
	Release(tenant.Key) error
}

// Workloads are the containers that NICs are bound to.
type Workloads interface {
	// Bound are the bindings that a NIC had when the last daemon ended.
	Bound(tenant.Key) []server.Binding
	// Plugs reports whether the engine of the container that the NIC is bound to makes it an interface.
	Plugs(tenant.Key) bool
	// Changed is called when NICs were created or removed.
	Changed()
}

// A Provisioner creates and removes the NICs of a daemon. Its methods are not called at the same time, except those
// that say so.
//
// Lock order: mu before switchPort.mu; switchPort.tapping before switchPort.showing before switchPort.mu; directories.mu
// before workQueue.mu. No two of the other locks are held together.
type Provisioner struct {
	*host
	listeners   Listeners
	work        *workQueue
	directories directories
	accounts    accounts
	addresses   addresses
	connection  connection
	namespaces  namespaces

	mu     sync.Mutex                   // for methods that may be called at any time
	nics   map[tenant.Key]*hostedNIC    // guarded by mu
	rules  *policy.Rules                // nil: no world has been enforced yet
	aging  atomic.Pointer[policy.Rules] // rules, for Age
	first  *registry.NIC                // the default NIC; nil: there is none
	faults declaredFaults               // touched on the loop

	waiting  *launch.Place                // nil: there is no directory for containers whose NIC does not exist yet
	networks atomic.Pointer[[]tenant.Key] // see Networks
	exposed  *exposed                     // nil: the default NIC has no directory for containers
	// hostAddresses are those at which other hosts reach this one now; nil: there are no other hosts.
	hostAddresses atomic.Pointer[[]netip.Addr]
}

// A host is what the parts of a Provisioner share.
type host struct {
	cfg     Config
	running bool // the engine's loop runs
}

// onLoop runs f where the engine may be touched. It fails only after the loop has ended, and with it all NICs.
func (h *host) onLoop(f func()) error {
	if !h.running {
		f()
		return nil
	}
	return h.cfg.Engine.Do(f)
}

// A hostedNIC is a declared NIC on this host.
type hostedNIC struct {
	key       tenant.Key
	nic       *registry.NIC
	place     launch.Place
	account   *account
	made      made
	namespace *namespacePort // nil: the NIC's packets do not pass through a network namespace
	open      openness
	guard     *policy.Guard // nil: everything is allowed
	ethernet  *switchPort   // nil: the NIC is not in the switch
	port      atomic.Pointer[vswitch.Port]
	programs  atomic.Int32 // that have it open
	leaving   bool         // its listener is closed, and a program still has it open
}

// made is what a NIC consists of and does not change during its life.
type made struct {
	network   string
	addresses string
	mtu       uint8
	namespace bool
}

// New makes a Provisioner without NICs. Before NICs are declared, Open passes it the listeners.
func New(c Config) *Provisioner {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Events == nil {
		c.Events = events.Discard
	}
	h, work := &host{cfg: c}, new(workQueue)
	r := &Provisioner{
		host: h, work: work, nics: make(map[tenant.Key]*hostedNIC),
		directories: directories{host: h, work: work, passage: passage{dir: filepath.Dir(c.Place.Socket), log: c.Log}}, accounts: accounts{host: h, of: make(map[string]*account)}, connection: connection{host: h},
	}
	r.hostAddresses.Store(&c.HostAddresses)
	r.namespaces.pace.Set(readdressRate)
	return r
}

// Open sets what opens listeners. The loop runs from now on.
func (r *Provisioner) Open(d Listeners) {
	r.listeners, r.running = d, true
	r.directories.passage.clear() // a daemon that was killed leaves its list
	r.work.start()
}

// Default creates the NIC that exists when nothing is declared. The daemon's own listener serves it. It is called
// before Open.
func (r *Provisioner) Default(device nic.Config) (*registry.NIC, error) {
	device.Name = DeviceName
	var err error
	r.first, err = r.insert(device, registry.NIC{Name: registry.Default, Network: registry.HostNetwork, Routes: r.cfg.HostRoutes}, nil)
	return r.first, err
}

// insert creates a NIC, calls prepare with its device, and adds it to the loop.
func (r *Provisioner) insert(device nic.Config, n registry.NIC, prepare func(*nic.NIC)) (*registry.NIC, error) {
	n.Owner, n.Device = r.cfg.Owner, nic.New(device)
	if prepare != nil {
		prepare(n.Device)
	}
	n.Manager = rdmacm.New(n.Device, r.cfg.Engine.MADs(n.Device))
	n.Manager.Crowded = func(peer netip.Addr) {
		r.cfg.Log.Warn("connections end faster than the connection manager can keep their last state: the oldest are forgotten early, which only repeated "+
			"messages notice (this is logged once for each NIC)", "nic", n.Device.Name, "peer", peer)
	}
	if key := n.Key(); key != (tenant.Key{}) {
		n.Manager.Notice = func(of rdmacm.Notice) { r.cfg.Events.Record(connected(key, of)) }
	}
	if routes, ok := n.Routes.(*network); ok {
		routes.of = &n
	}
	if err := r.cfg.NICs.Add(&n); err != nil {
		return nil, err
	}
	var err error
	if perr := r.onLoop(func() {
		if err = r.cfg.Engine.Add(n.Device, n.Manager); err == nil {
			r.cfg.NICs.RerouteIn(n.Network)
		}
	}); perr != nil {
		err = perr
	}
	if err != nil {
		r.cfg.NICs.Remove(&n)
		return nil, err
	}
	return &n, nil
}

// onePass is how many NICs the loop removes at once, so that others do not wait.
const onePass = 64

// extract undoes insert. No program has the NICs open any more.
func (r *Provisioner) extract(hosted []*hostedNIC) {
	nics := make([]*registry.NIC, len(hosted))
	for i, s := range hosted {
		nics[i] = s.nic
	}
	r.cfg.NICs.Remove(nics...)
	for _, s := range hosted {
		if s.namespace != nil {
			s.namespace.detach()
		}
	}
	for some := range slices.Chunk(nics, onePass) {
		r.onLoop(func() { // fails only after the loop has ended
			networks := make(map[string]bool)
			for _, n := range some {
				r.setFaults(n.Device, nil)
				r.cfg.Engine.Remove(n.Device)
				networks[n.Network] = true
			}
			for name := range networks {
				r.cfg.NICs.RerouteIn(name)
			}
		})
	}
}

// Put creates a NIC, or changes an existing one to what is declared. Addresses, network and MTU change only while no
// program uses the NIC.
func (r *Provisioner) Put(t *tenant.Tenant, n *tenant.Network, c *tenant.NIC) error {
	k := c.Key()
	m, err := r.plan(n, c)
	if err != nil {
		return err
	}
	if s := r.find(k); s != nil {
		if s.made == m && !s.leaving {
			return r.change(s, t, c)
		}
		if err := r.Remove([]tenant.Key{k}, s.leaving)[k]; err != nil {
			return fmt.Errorf("the addresses, network and MTU of a NIC change only while no program uses it: %w", err)
		}
	}
	return r.put(t, n, c, m)
}

// plan is what the NIC will consist of.
func (r *Provisioner) plan(n *tenant.Network, c *tenant.NIC) (m made, err error) {
	switch n.Spec.Way {
	case tenant.WayVXLAN, "":
		m.network = n.Metadata.Tenant + "/" + n.Metadata.Name
	case tenant.WayHost:
		m.network = registry.HostNetwork
	case tenant.WayNamespace:
		m.network = n.Metadata.Tenant + "/" + n.Metadata.Name
		m.namespace = true
	default:
		return m, fmt.Errorf("%v: way %s is not one that this daemon knows: use vxlan, host or namespace", n.Key(), n.Spec.Way)
	}
	list := c.Addresses()
	if m.namespace && len(list) > 0 {
		return m, fmt.Errorf("%v has an address, and in %v the engine assigns addresses: delete it and declare it again", c.Key(), n.Key())
	}
	if len(list) == 0 && !m.namespace {
		return m, fmt.Errorf("%v has no address", c.Key())
	}
	for _, a := range list {
		served := *r.hostAddresses.Load()
		if n.Spec.Way == tenant.WayHost && len(served) > 0 && !slices.Contains(served, a) {
			return m, fmt.Errorf("%v is in a network with way host, and this daemon does not serve other hosts at %v: it serves %v; start vrdma daemon --no-default-nic with this address in --addr", c.Key(), a, served)
		}
	}
	m.addresses = fmt.Sprint(list)
	m.mtu = r.mtu(n)
	return m, nil
}

// put creates a NIC that does not exist.
func (r *Provisioner) put(t *tenant.Tenant, n *tenant.Network, c *tenant.NIC, m made) (err error) {
	s := &hostedNIC{key: c.Key(), made: m}
	s.open.set(c.Spec.Open)
	if s.place, err = r.cfg.Place.NIC(c.Metadata.Tenant, c.Metadata.Name); err != nil {
		return err
	}
	v := registry.NIC{Name: s.key.Path(), Network: m.network, Routes: r.cfg.HostRoutes, Frames: s.frames}
	if s.namespace = r.newNamespacePort(n); s.namespace != nil {
		v.Namespace, v.Routes = s.namespace.number, &s.namespace.routes
	} else if m.network != registry.HostNetwork {
		v.Routes = &network{table: r.cfg.NICs, name: m.network, subnets: n.Spec.Subnets}
	}
	if s.nic, err = r.insert(r.device(c, m), v, r.guardFor(s)); err != nil {
		return err
	}
	if s.namespace != nil {
		s.namespace.nic = s.nic
	}
	s.account = r.accounts.hold(t)
	r.onLoop(func() { // fails only after the loop has ended
		r.share(t, c, s.nic.Device)
		r.faultsOfNew(s.nic.Device, c)
	})
	err = r.plugIn(s, t, n, c)
	if err == nil {
		err = r.listen(s)
	}
	if err != nil {
		s.ethernet.pull()
		r.extract([]*hostedNIC{s})
		r.accounts.drop(s.account)
		return fmt.Errorf("%v: %w", s.key, err)
	}
	r.mu.Lock()
	r.nics[s.key] = s
	r.mu.Unlock()
	r.changed()
	r.work.add(func() { // a program that connects before writes it at once
		if err := s.nic.Tree.Sketch(); err != nil {
			r.cfg.Log.Warn("a NIC has no device tree", "nic", s.nic.Name, "error", err)
		}
	})
	return nil
}

// changed reports that NICs were created or removed.
func (r *Provisioner) changed() {
	if r.cfg.Workloads != nil {
		r.cfg.Workloads.Changed()
	}
}

// device is the configuration of a NIC's device.
func (r *Provisioner) device(c *tenant.NIC, m made) nic.Config {
	d := nic.Config{Name: DeviceName, NodeGUID: r.guid(c.Key().Path()), MTU: m.mtu, Limits: lower(nic.DefaultLimits, c.Spec.Limits)}
	key := c.Key()
	d.Denied = func(of nic.Denial) { r.cfg.Events.Record(denied(key, of)) }
	spell := &capSpell{sink: r.cfg.Events, key: key, throttled: func() time.Duration { return r.throttled(key) }}
	d.Capped = spell.capped
	for _, a := range c.Addresses() {
		g := nic.GIDEntry{GID: a.As16()}
		if m.network == registry.HostNetwork {
			g.NetDev = r.addresses.at(a)
		}
		d.GIDs = append(d.GIDs, g)
	}
	return d
}

// guid is a locally administered EUI-64.
func (r *Provisioner) guid(name string) uint64 {
	h := sha256.New()
	h.Write(r.cfg.Seed)
	h.Write([]byte(name))
	b := h.Sum(nil)
	b[0] = b[0]&^1 | 2
	return binary.BigEndian.Uint64(b)
}

// change applies what may change while the NIC is used: spec.open, which also holds for programs that have it open, and
// limits, for devices that are opened from now on.
func (r *Provisioner) change(s *hostedNIC, t *tenant.Tenant, c *tenant.NIC) error {
	s.account.set(r.cfg.Budget, t)
	if err := r.onLoop(func() {
		s.nic.Device.Limits = lower(nic.DefaultLimits, c.Spec.Limits)
		r.share(t, c, s.nic.Device)
	}); err != nil {
		return err
	}
	s.ethernet.rate(c)
	if !s.open.set(c.Spec.Open) {
		return nil
	}
	err := errors.Join(r.directories.allow(s), s.ethernet.allow())
	r.listeners.Recheck(s.nic)
	return err
}

// Remove removes NICs, all at once, and returns why some still exist. If one is in use, which is a *tenant.InUse, all
// stay, unless force is set: then its programs see the removal of a device. Removing a NIC that does not exist is no
// error.
func (r *Provisioner) Remove(keys []tenant.Key, force bool) map[tenant.Key]error {
	var hosted []*hostedNIC
	var nics []*registry.NIC
	for _, k := range keys {
		if s := r.find(k); s != nil {
			hosted, nics = append(hosted, s), append(nics, s.nic)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	errs, inUse := make(map[tenant.Key]error), false
	if !force {
		for _, s := range hosted {
			if by := s.ethernet.connected(); len(by) > 0 {
				errs[s.key] = &tenant.InUse{NIC: s.key, By: by}
			}
		}
		if len(errs) > 0 {
			return errs
		}
	}
	failures := r.listeners.CloseListeners(ctx, nics, force)
	for _, s := range hosted {
		err := failures[s.nic]
		var used *server.InUse
		switch {
		case errors.As(err, &used):
			inUse = true
			errs[s.key] = &tenant.InUse{NIC: s.key, By: used.Users()}
		case err != nil:
			s.leaving = true // Remove can be called again
			errs[s.key] = err
		}
	}
	if inUse {
		return errs
	}
	r.mu.Lock()
	hosted = slices.DeleteFunc(hosted, func(s *hostedNIC) bool { return errs[s.key] != nil })
	for _, s := range hosted {
		delete(r.nics, s.key)
	}
	r.mu.Unlock()
	r.changed()
	r.extract(hosted)
	for _, s := range hosted {
		s.ethernet.unplugTap(func(*tap) bool { return true })
		s.ethernet.pull()
		r.accounts.drop(s.account)
		r.directories.discard(s)
	}
	return errs
}

// Enforce applies the quotas, rules and shares of a world.
func (r *Provisioner) Enforce(w *tenant.World) {
	r.accounts.enforce(w)
	r.enforceRules(w)
	r.enforceFaults(w)
	r.shareTenants(w)
	r.noteNetworks(w)
}

// Close removes the files in the NICs' directories, after the listeners have been closed. The directories themselves
// stay for the next daemon, because containers have them mounted.
func (r *Provisioner) Close() {
	r.work.stop()
	m := findMounts()
	for _, s := range r.nics {
		s.ethernet.pull()
		if err := clearPlace(s.place, r.keeps(m, s.place)); err != nil {
			r.cfg.Log.Warn("something is left of a NIC", "nic", s.nic.Name, "error", err)
		}
	}
	r.unexpose(m)
	r.removeWaiting(m)
	r.directories.passage.clear()
	r.directories.empty()
}

// find returns a NIC; nil: it is not on this host.
func (r *Provisioner) find(k tenant.Key) *hostedNIC {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nics[k]
}

// NIC returns a declared NIC; nil: it is not on this host. It may be called at any time, and so may the methods below.
func (r *Provisioner) NIC(k tenant.Key) *registry.NIC {
	if s := r.find(k); s != nil {
		return s.nic
	}
	return nil
}

// Users are the users of a NIC, one text each.
func (r *Provisioner) Users(k tenant.Key) (out []string) {
	if s := r.find(k); s != nil {
		for _, g := range r.listeners.Users(s.nic) {
			out = append(out, g.String())
		}
		out = append(out, s.ethernet.users()...)
	}
	return out
}

// Socket is the path of a NIC's listener; "": it is not on this host.
func (r *Provisioner) Socket(k tenant.Key) string {
	if s := r.find(k); s != nil {
		return s.place.Socket
	}
	return ""
}

// Keys are the NICs on this host, sorted.
func (r *Provisioner) Keys() (out []tenant.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.nics {
		out = append(out, k)
	}
	slices.SortFunc(out, tenant.Key.Compare)
	return out
}
