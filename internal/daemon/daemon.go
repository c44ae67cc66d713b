package daemon

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/diag"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/client/vm"
	"vrdma.dev/vrdma/internal/device/engine"
	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/routes"
	"vrdma.dev/vrdma/internal/net/tunnel"
	"vrdma.dev/vrdma/internal/net/vswitch"
	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/platform/systemd"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/meter"
	"vrdma.dev/vrdma/internal/tenancy/provision"
)

const (
	// grace is how long an ephemeral daemon waits for the next program.
	grace = 3 * time.Second
	// closeTimeout bounds a clean stop.
	closeTimeout = 5 * time.Second
)

// A daemon is the parts of a running daemon. Fields are set while it opens and do not change then.
type daemon struct {
	*settings
	claim       *launch.Claim
	store       *storage
	journal     *control.Journal
	audit       *control.AuditLog // nil: none is kept
	budget      *budget.Ledger
	nics        *registry.Table
	port        hostPort
	engine      *engine.Engine
	ethernet    *vswitch.Switch
	between     *between
	provisioner *provision.Provisioner
	server      *server.Server
	plane       *plane
	workloads   *workloads
	cdi         *cdiFiles
	measured    *measured
	machines    []*vm.Sockets // of --guest
	reloading   reloading
	started     time.Time
	stop        chan string // holds one: why the daemon is to end
	serving     atomic.Bool // programs are served
}

// Run is a daemon, from the claim of its socket to its end by a signal, a tool or idleness.
func Run(o Options) (failure error) {
	service, err := inheritService()
	if err != nil {
		return err
	}
	s, err := o.check()
	if err != nil {
		return err
	}
	s.service = service
	claim, err := s.claim()
	if s.from != nil {
		defer func() {
			if !s.from.done { // the deferred calls would undo the other daemon's work
				s.from.abandon(failure)
			}
		}()
	}
	if err != nil {
		return err
	}
	defer s.unlessAbandoned(func() { claim.Release() })
	if s.from == nil {
		if err := launch.InstallLibraries(s.place, s.filesMode()); err != nil {
			return err
		}
	}
	launch.WarnNoExec(s.place, s.log)
	d, err := newDaemon(s, claim)
	if err != nil {
		return err
	}
	if d.store, err = s.openStore(d.plane); err != nil {
		return err
	}
	defer s.unlessAbandoned(func() { d.store.Close() })
	if d.audit, err = s.openAudit(); err != nil {
		return err
	}
	defer s.unlessAbandoned(func() { d.audit.Close() })
	d.journal.Audit(d.audit)
	closeDevice, err := d.openDevice()
	if err != nil {
		return err
	}
	defer s.unlessAbandoned(closeDevice)
	if s.from != nil {
		if err := s.from.take(d); err != nil {
			return err
		}
		if err := launch.ReplaceLibraries(s.place); err != nil {
			d.log.Warn("new programs load the shared objects of the daemon before", "error", err)
		}
		d.log.Info("took over from the previous daemon", "version", s.from.offer.Header.Version)
	}
	end, err := d.openExtras()
	if err != nil {
		return err
	}
	defer end()
	launch.Ready(nil)
	d.tell(systemd.Ready, d.statusLine())
	if s.Ephemeral {
		go d.retire()
	}
	return d.serve()
}

// unlessAbandoned calls f, unless the daemon has failed to take over.
func (s *settings) unlessAbandoned(f func()) {
	if s.from == nil || s.from.done {
		f()
	}
}

// newDaemon makes the parts that hold nothing yet.
func newDaemon(s *settings, claim *launch.Claim) (*daemon, error) {
	key, err := s.tunnelKey()
	if err != nil {
		return nil, err
	}
	s.limitHeap()
	d := &daemon{
		settings: s, claim: claim, journal: control.NewJournal(), budget: budget.New(s.machine.Limits()), nics: registry.NewTable(),
		plane: newPlane(), started: time.Now(), stop: make(chan string, 1),
		between: &between{under: s.under, key: key, log: s.log},
	}
	d.between.silent.Store(s.from != nil)
	d.cdi = &cdiFiles{dir: s.cdiDirectory(), mode: s.mode, place: s.place, nics: d.nics, log: s.log, wake: make(chan struct{}, 1)}
	d.workloads = &workloads{nics: d.nics, events: d.journal, log: s.log, cdi: d.cdi, wake: make(chan struct{}, 1)}
	return d, nil
}

// openDevice opens the port to other hosts, the usage file, the CDI directory and the device. closed is called when the daemon ends.
func (d *daemon) openDevice() (closed func(), err error) {
	if d.served() {
		d.ports = d.holdPorts()
		if d.port, err = openHostPort(&d.device, d.sockets(), d.follows(), d.log); err != nil {
			return nil, err
		}
	}
	if d.NoDefault {
		d.device.GIDs = nil
	}
	used, err := d.openMeter()
	if err != nil {
		return nil, err
	}
	if d.cdi.hook, err = container.HookProgram(d.Hook); err == nil {
		err = d.cdi.take(d.CDI != "")
	}
	if err != nil {
		used.Close()
		return nil, err
	}
	if err := d.open(used); err != nil {
		err = errors.Join(err, d.cdi.release())
		used.Close()
		return nil, err
	}
	kept := d.cdi.keep()
	return func() {
		kept()
		used.Close()
	}, nil
}

// open starts the engine, opens the socket with the default NIC behind it, if that has an address, and then the control plane.
func (d *daemon) open(used *meter.Meter) (err error) {
	d.engine, err = engine.New(engine.Options{
		Resolver: d.nics, Loops: d.loops, Auto: d.autoLoops,
		Port: d.port.port, Wake: d.port.wake, Window: d.port.window, InFlight: d.port.flight, Recognise: !d.NoRecognise, Version: d.Version, Log: d.log, Deaf: d.from != nil,
		Evict: func(s *nic.Session) { d.server.Evict(s) },
		Fault: func(n *nic.NIC, h fault.Hit) { d.server.Fault(n, h) },
		Faced: func(n *nic.NIC) { go d.renewTree(n) },
	})
	if err != nil {
		return exit.Lacks("%w", err)
	}
	if d.loops > 1 {
		// A loop keeps one of Go's processors busy. The goroutines beside the loops need theirs.
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + d.loops - 1)
	}
	d.ethernet = vswitch.New(vswitch.Config{Log: d.log, Hosts: d.engine})
	if err := d.workloads.saved.read(d.place.Socket + ".bound"); err != nil {
		d.log.Warn("bindings of NICs to containers are lost: their file cannot be read", "error", err)
	}
	d.provisioner = provision.New(d.provisionConfig())
	d.workloads.provisioner, d.cdi.provisioner = d.provisioner, d.provisioner
	first := server.Listener{Socket: d.place.Socket, Inherited: d.service.socket, DirMode: d.filesMode(), SocketMode: d.mode}
	if len(d.device.GIDs) > 0 {
		if first.NIC, err = d.provisioner.Default(d.device); err != nil {
			return err
		}
	}
	d.measured = &measured{budget: d.budget, census: diag.NewCensus(d.engine, d.nics), nics: d.nics, engine: d.engine, store: d.store, plane: d.plane, serving: &d.serving}
	d.measured.collector = meter.NewCollector(used, d.measured.census.Read, func(err error) {
		d.log.Error("the usage of tenants cannot be written, and would be lost when the daemon ends; it is tried again every second", "error", err)
	})
	d.server, err = server.Listen(server.Config{
		Listeners: []server.Listener{first}, Engine: d.engine, Log: d.log, Version: d.Version, Budget: d.budget, NICs: d.nics, Collector: d.measured.collector,
		Stop: func() { d.ask("vrdma stop") }, Operation: d, Store: d.store, Guests: d.provisioner, Events: d.journal, Inherited: d.from.inherited(),
		ContainerTakeover: d.ContainerTakeover,
	})
	if err != nil {
		return err
	}
	d.server.ServeSuccession(&succession{d: d})
	d.server.ServeMigration(&migrations{d: d})
	d.workloads.server = d.server
	d.engine.Start()
	d.provisioner.Open(d.server)
	d.expose(first.NIC)
	if err := d.openPlane(); err != nil {
		if d.from != nil {
			d.from.abandon(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		err = errors.Join(err, d.server.Close(ctx))
		d.provisioner.Close()
		d.engine.Stop()
		return err
	}
	return nil
}

// expose makes the directories that containers mount.
func (d *daemon) expose(device *registry.NIC) {
	if device != nil {
		if err := d.provisioner.Expose(device, d.Ephemeral); err != nil {
			d.log.Warn("containers cannot have the default NIC: its directory cannot be made", "error", err)
		}
	}
	if !d.Ephemeral {
		if err := d.provisioner.Await(); err != nil {
			d.log.Warn("no NICs can be made for containers: the directory in which they wait cannot be made", "error", err)
		}
	}
}

// provisionConfig is how NICs are made.
func (d *daemon) provisionConfig() provision.Config {
	c := provision.Config{
		Engine: d.engine, NICs: d.nics, Budget: d.budget, Log: d.log, Place: d.place, Mode: d.mode, DirMode: d.dirMode, Owner: os.Geteuid(),
		Seed: d.seed, Underlay: d.port.mtu, OverlayMTU: d.under.mtu, OverlayHead: d.under.head(), HostRoutes: routes.Kernel{},
		Sockets: roce.UDPOptions{NoGSO: d.NoGSO, NoGRO: d.NoGRO, Shards: d.loops, Ports: d.ports}, Switch: d.ethernet, Returns: d.cdi.stay(),
		Events: d.journal, Placement: d.plane, Workloads: d.workloads, Succeeds: d.from != nil,
	}
	c.HostAddresses = d.port.addresses
	if d.port.port == nil && !(d.served() && d.follows()) {
		c.HostRoutes = routes.None{}
	}
	if d.under.mtu != 0 {
		c.Between, c.TunnelHead = d.between, tunnel.Head
	}
	return c
}

// openExtras opens the metrics, the sockets for virtual machines and the profile, if these are wanted, until end is called.
func (d *daemon) openExtras() (end func(), err error) {
	var ends []func()
	endAll := func() {
		for _, f := range slices.Backward(ends) {
			f()
		}
	}
	defer func() {
		if err != nil {
			endAll()
		}
	}()
	d.reloading.mu.Lock()
	err = d.serveMetrics()
	d.reloading.mu.Unlock()
	if err != nil {
		return nil, exit.Lacks("%w", err)
	}
	ends = append(ends, d.endMetrics)
	if d.from == nil { // else the daemon before has opened them
		if err := d.openGuests(); err != nil {
			return nil, err
		}
	}
	ends = append(ends, d.closeGuests)
	d.log.Info("serving", "version", d.Version, "socket", d.place.Socket, "device", provision.DeviceName, "gids", gidTexts(d.device.GIDs), "ephemeral", d.Ephemeral, "loops", d.loops)
	if d.Profile != "" {
		file, err := os.Create(d.Profile)
		if err != nil {
			return nil, err
		}
		ends = append(ends, func() { file.Close() })
		if err := pprof.StartCPUProfile(file); err != nil {
			return nil, err
		}
		ends = append(ends, pprof.StopCPUProfile)
	}
	return endAll, nil
}

// ask requests a stop; only the first request counts.
func (d *daemon) ask(why string) {
	select {
	case d.stop <- why:
	default:
	}
}

// serve serves programs until a signal, a tool or idleness ends it. A second signal kills the daemon.
func (d *daemon) serve() error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	endHangups := d.followHangups()
	defer endHangups()
	metered := d.measured.keep()
	defer metered()
	served := make(chan error, 1)
	go func() { served <- d.server.Serve() }()
	d.serving.Store(true)
	working, stopWork := context.WithCancel(context.Background())
	defer stopWork()
	restored := make(chan struct{})
	go func() {
		defer close(restored)
		d.workloads.restore(working)
	}()
	go d.followKey(working)
	go d.followPressure(working)
	unfollow := d.followAddresses(working)
	go d.followService(working)

	var failure error
	select {
	case s := <-signals:
		d.log.Info("stopping", "why", s.String())
		signal.Reset(syscall.SIGTERM, syscall.SIGINT)
	case why := <-d.stop:
		d.log.Info("stopping", "why", why)
	case failure = <-served:
		d.log.Error("stopping", "why", failure)
	}
	d.serving.Store(false)
	d.tell(systemd.Stopping, systemd.Status("stopping"))
	stopWork()
	unfollow()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := d.close(ctx, restored)
	metered() // what the last sessions used
	d.engine.Stop()
	d.ethernet.Close()
	d.provisioner.Disconnect()
	d.port.close()
	d.log.Info("stopped")
	return errors.Join(failure, err)
}

// followHangups handles SIGHUP until end is called. The end of a daemon's terminal ends the daemon, too.
// Without a terminal the signal asks for the configuration to be read again.
func (d *daemon) followHangups() (end func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	go func() {
		for range hangups {
			if tty, err := os.Open("/dev/tty"); err == nil {
				tty.Close()
				d.ask("the terminal has ended")
				continue
			}
			d.Reload() // the log has the result
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(hangups)
	}
}

// close ends the control plane, the sessions and the NICs. restored is closed when no interface is being made.
func (d *daemon) close(ctx context.Context, restored <-chan struct{}) error {
	// A change in progress may wait for clients to disconnect, so the plane and the server close together.
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		d.plane.Close()
	}()
	err := d.server.Close(ctx)
	select {
	case <-settled:
	case <-ctx.Done():
	}
	select {
	case <-restored: // an interface that is made while the provisioner closes would be lost
	case <-ctx.Done():
	}
	d.provisioner.Close()
	return err
}

// retire ends an ephemeral daemon when no program has used it for a while.
func (d *daemon) retire() {
	const every = 250 * time.Millisecond
	idle := time.Duration(0)
	for range time.Tick(every) {
		if idle += every; d.server.Sessions() > 0 || d.provisioner.AttachedCount() > 0 {
			idle = 0
		}
		if idle >= grace && d.claim.Retire() {
			d.ask("no program left")
			return
		}
	}
}

// gidTexts are the addresses of a GID table, for the log.
func gidTexts(entries []nic.GIDEntry) []string {
	var out []string
	for _, e := range entries {
		out = append(out, addressOf(e.GID).String())
	}
	return out
}

// renewTree makes the device tree of a NIC show what its port is now.
func (d *daemon) renewTree(n *nic.NIC) {
	for _, v := range d.nics.All() {
		if v.Device != n || v.Tree == nil {
			continue
		}
		if err := v.Tree.Renew(); err != nil {
			d.log.Warn("the device tree of a NIC does not show a change of its port", "nic", v.Name, "error", err)
		}
	}
}
