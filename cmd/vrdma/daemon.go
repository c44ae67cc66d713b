package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"vrdma/internal/budget"
	"vrdma/internal/control"
	"vrdma/internal/engine"
	"vrdma/internal/ethernet"
	"vrdma/internal/frontdoor"
	"vrdma/internal/inspect"
	"vrdma/internal/launch"
	"vrdma/internal/link"
	"vrdma/internal/meter"
	"vrdma/internal/nic"
	"vrdma/internal/overlay"
	"vrdma/internal/rack"
	"vrdma/internal/routes"
	"vrdma/internal/store"
	"vrdma/internal/tunnel"
	"vrdma/internal/vnic"
)

const (
	// grace is how long an ephemeral daemon waits for the next program.
	grace = 3 * time.Second
	// closeTimeout bounds a clean stop.
	closeTimeout = 5 * time.Second
)

// daemonFlags are how a daemon is to be.
type daemonFlags struct {
	config    string
	addr      []string
	mode      string
	logFormat string
	logLevel  string
	profile   string
	ephemeral bool
	detach    bool
	network   bool
	noGSO     bool
	noGRO     bool
	strangers bool
	noDefault bool
	usage     string
	store     string
	// storeConfig is the file that says who we are to etcd.
	storeConfig string
	hostName    string
	metrics     string
	perNIC      bool
	under       []string
	overlayPort int
	tunnelPort  int
	tunnelKey   string
	cdi         string
	hook        string
	guests      []string
}

func daemonCommand(o *options) *cobra.Command {
	f := &daemonFlags{}
	c := &cobra.Command{
		Use:   "daemon",
		Short: "be the RDMA device, in the foreground",
		Long: `Serves the device rxe0 on a unix socket until SIGTERM or SIGINT. Programs reach it
with vrdma run, containers with vrdma nic args or, with --cdi, as devices of their engine.

vrdma stop, vrdma pcap and the status of all users go through a control socket outside
that directory: HASH.sock in vrdma-control-UID of /run, /run/user/UID, /tmp or /var/tmp,
the first that can be used. It answers this user and root, and no container. What other
users may make the daemon hold is limited; vrdma status -o json shows it.

What vrdma apply declares is kept in a file, which is made then: --store, or one of this
daemon's own in $XDG_STATE_HOME/vrdma, for root /var/lib/vrdma, else ~/.local/state/vrdma,
or beside the socket.
Daemons of many hosts share a store in etcd: --store etcd://A:2379,B:2379,C:2379, with
credentials in the file of --store-config. Each keeps a copy of what it last saw where its
file would be, and goes on, and starts, with that while etcd is away.
The next daemon at the same socket has it again, one that vrdma run starts too. While a
tenant has administrators, they are answered at HASH.sock in vrdma-tenants-UID beside the
control socket's directory.

A file for --config, every line of which may be left out, and over which flags win:

  socket: /run/vrdma/vrdma.sock
  addr: [192.0.2.10, 127.0.0.1]
  underlay: [192.0.2.10]
  overlay:
    port: 4789
    tunnelPort: 51820
  limits:               # of NIC default, for each opened device; also pds, cqs, mrs, mws,
    qps: 1000           # srqs, ahs, channels. Declared NICs have limits of their own
    memory: 1073741824  # registered bytes, for each process`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if f.detach {
				return launch.Detach(undetached(os.Args[1:]))
			}
			err := serveDaemon(o, f)
			launch.Ready(err) // nothing, if it was ready before
			return err
		},
	}
	c.Flags().StringVar(&f.config, "config", "", "a YAML file with socket, addr, limits")
	c.Flags().StringSliceVar(&f.addr, "addr", nil, "the addresses that become the device's GIDs (default: this machine's, loopback last)")
	c.Flags().StringVar(&f.mode, "mode", "0600", "the socket's permissions; 0666 lets other users in")
	c.Flags().StringVar(&f.logFormat, "log-format", "text", "text or json")
	c.Flags().StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	c.Flags().BoolVar(&f.network, "network", true, "serve other hosts too: RoCEv2 on UDP port 4791 of the addresses that are not loopback")
	c.Flags().StringSliceVar(&f.under, "underlay", nil, "the addresses that packets of virtual networks travel between hosts from, one of IPv4 and one of IPv6 at most (default: the first of --addr, else those of the default route)")
	c.Flags().IntVar(&f.overlayPort, "overlay-port", overlay.DefaultPort, "the UDP port for packets of virtual networks (VXLAN); opened when a network has members on other hosts")
	c.Flags().IntVar(&f.tunnelPort, "tunnel-port", overlay.DefaultTunnelPort, "the UDP port for packets of encrypted networks (WireGuard); opened when one has members on other hosts")
	c.Flags().StringVar(&f.tunnelKey, "tunnel-key", "", "the file of this host's private key for them, made when it is needed (default: a file of this daemon's own where --store is by default)")
	c.Flags().BoolVar(&f.noGSO, "no-gso", false, "send each packet by itself")
	c.Flags().BoolVar(&f.noGRO, "no-gro", false, "receive each packet by itself")
	c.Flags().BoolVar(&f.strangers, "no-recognise", false, "treat other vrdma hosts as any host: nothing is used that the kernel's rxe would not understand")
	c.Flags().BoolVar(&f.noDefault, "no-default-nic", false, "have no NIC but declared ones: programs name theirs with vrdma run --nic, or have its directory mounted; --addr then names the addresses for NICs of networks with way host")
	c.Flags().StringVar(&f.store, "store", "", "the file that keeps declared objects, or etcd://HOST:PORT,… for many hosts")
	c.Flags().StringVar(&f.hostName, "host-name", "", "this host's name, as NICs name it (default: the machine's)")
	c.Flags().StringVar(&f.storeConfig, "store-config", "", "a YAML file with ca, certificate, key, user, passwordFile for etcd; only this user may read the secrets")
	c.Flags().BoolVar(&f.ephemeral, "ephemeral", false, "end when the last program is gone")
	c.Flags().StringVar(&f.usage, "usage", "", "the file that keeps what tenants have used over restarts, none for none (default: beside the store; none with --ephemeral)")
	c.Flags().StringVar(&f.metrics, "metrics", "", "serve metrics for Prometheus, /healthz and /readyz at HOST:PORT (default: not at all)")
	c.Flags().BoolVar(&f.perNIC, "metrics-per-nic", false, "have NICs as a label in the metrics, 256 at most")
	c.Flags().StringVar(&f.cdi, "cdi", "", "the directory for CDI files, by which podman and others know the NICs (vrdma cdi prints them), none for none (default: "+systemCDI+" for root's daemon with its socket in /run or /var/lib; else none)")
	c.Flags().StringVar(&f.hook, "hook", "", "the path of vrdma as engines see it, for the hooks in CDI files, none for none (default: this program; one in a container of its own has another path)")
	c.Flags().StringSliceVar(&f.guests, "guest", nil, "NICs for virtual machines, default or TENANT/NAME: sockets for QEMU are made, see vrdma guest args (default: none)")
	c.Flags().StringVar(&f.profile, "cpuprofile", "", "write a CPU profile of the whole life to this file, for go tool pprof")
	c.Flags().BoolVar(&f.detach, "detach", false, "start in the background, for vrdma run")
	c.Flags().MarkHidden("detach") // fails only for a flag that is not there
	return c
}

// undetached is our command line without --detach.
func undetached(args []string) []string {
	var out []string
	for _, a := range args {
		if a != "--detach" {
			out = append(out, a)
		}
	}
	return out
}

// directoryMode lets those search directories whom mode lets use the socket.
func directoryMode(mode fs.FileMode) fs.FileMode {
	dir := fs.FileMode(0o700)
	if mode&0o070 != 0 {
		dir |= 0o050
	}
	if mode&0o007 != 0 {
		dir |= 0o005
	}
	return dir
}

func (f *daemonFlags) logger() (*slog.Logger, error) {
	options := &slog.HandlerOptions{}
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return nil, usage("--log-level %s: choose debug, info, warn or error", f.logLevel)
	}
	options.Level = level
	switch f.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
	}
	return nil, usage("--log-format %s: choose text or json", f.logFormat)
}

// device is the NIC that flags and file describe.
func (f *daemonFlags) device(c config) (nic.Config, error) {
	all, err := machineAddresses()
	if err != nil {
		return nic.Config{}, lacks("%w", err)
	}
	list := f.addr
	if len(list) == 0 {
		list = c.Addr
	}
	addresses := defaultOrder(all)
	if len(list) > 0 {
		if addresses, err = parseAddresses(list, all); err != nil {
			return nic.Config{}, usage("%w", err)
		}
	}
	device := nic.Config{NodeGUID: randomGUID(), Limits: rack.SetLimits(nic.DefaultLimits, c.Limits)}
	for _, a := range addresses {
		device.GIDs = append(device.GIDs, nic.GIDEntry{GID: a.ip.As16(), NetDev: a.netdev})
	}
	return device, nil
}

// guidSeed makes the GUIDs of declared NICs: those of a daemon are the same after a restart, and
// not those of another host's.
func guidSeed(socket string) []byte {
	machine, err := os.ReadFile("/etc/machine-id")
	if err != nil || len(machine) < 32 {
		return []byte(rand.Text())
	}
	return append(machine, socket...)
}

// randomGUID is an EUI-64 of nobody's: the bit for local administration is set.
func randomGUID() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	b[0] = b[0]&^1 | 2
	return binary.BigEndian.Uint64(b[:])
}

// daemon is the running thing.
type daemon struct {
	place  launch.Place
	claim  *launch.Claim
	log    *slog.Logger
	budget *budget.Ledger
	nics   *vnic.Table
	engine *engine.Engine
	server *frontdoor.Server
	store  store.Store
	// storeName is that of a store that other hosts share.
	storeName string
	plane     atomic.Pointer[control.Plane]
	rack      *rack.Rack
	ethernet  *ethernet.Switch
	frames    frameSender
	// mode and dirMode are those of the socket and its directories.
	mode, dirMode fs.FileMode
	under         underlay                      // of virtual networks
	tunnel        tunnelSpec                    // of those that are encrypted
	tunnelled     atomic.Pointer[tunnel.Tunnel] // when it is open
	host          string                        // this host's name
	underlay      int                           // MTU of the host's network; 0: no other hosts
	port          *link.Port                    // nil: no other hosts
	addresses     []netip.Addr                  // that it has
	wake          []int                         // its descriptors
	window        uint32                        // bytes on their way to a peer
	flight        uint32                        // those of all queue pairs together
	clerk         *meter.Clerk
	census        *inspect.Census
	// recognise other vrdma hosts
	recognise bool
	ephemeral bool          // it ends when nobody uses it
	racked    chan struct{} // holds one: the rack has changed
	hook      string        // our program, as engines see it; "": CDI files have no hooks
	stop      chan string   // why
	serving   atomic.Bool   // programs are
	plugs     chan struct{} // holds one: NICs have come
	bound     bindings
}

// open starts the engine and opens the socket. Behind it is the default NIC, if it has an
// address.
func (d *daemon) open(device nic.Config, used *meter.Meter) (err error) {
	d.engine, err = engine.New(engine.Options{
		Resolver: d.nics,
		Port:     d.port, Wake: d.wake, Window: d.window, InFlight: d.flight, Recognise: d.recognise, Version: version, Log: d.log,
		Evict: func(s *nic.Session) { d.server.Evict(s) },
	})
	if err != nil {
		return lacks("%w", err)
	}
	d.ethernet = ethernet.New(ethernet.Config{Log: d.log, Send: d.frames.send})
	if err := d.bound.read(d.place.Socket + ".bound"); err != nil {
		d.log.Warn("which NICs are bound to containers is not known", "error", err)
	}
	d.rack = rack.New(d.rackConfig())
	door := frontdoor.Door{Socket: d.place.Socket, DirMode: d.dirMode, SocketMode: d.mode}
	if len(device.GIDs) > 0 {
		if door.NIC, err = d.rack.Default(device); err != nil {
			return err
		}
	}
	d.census = inspect.NewCensus(d.engine, d.nics)
	d.clerk = meter.NewClerk(used, d.census.Read, func(err error) {
		d.log.Error("what tenants use cannot be kept, and would be lost when the daemon ends; it is tried again every second", "error", err)
	})
	d.server, err = frontdoor.Listen(frontdoor.Config{
		Doors: []frontdoor.Door{door}, Engine: d.engine, Log: d.log, Version: version, Budget: d.budget, NICs: d.nics, Clerk: d.clerk,
		Stop:  func() { d.ask("vrdma stop") },
		Store: d.storeStatus, Machines: d.rack.Machines,
		Objects: d.serveObjects, Administers: d.administers, Overdrawn: d.overdrawn, Refused: d.refused, Opened: d.opened,
	})
	if err != nil {
		return err
	}
	d.engine.Start()
	d.rack.Open(d.server)
	if door.NIC != nil {
		if err := d.rack.Expose(door.NIC, d.ephemeral); err != nil {
			d.log.Warn("containers cannot have the default NIC: its directory cannot be made", "error", err)
		}
	}
	if !d.ephemeral {
		if err := d.rack.Await(); err != nil {
			d.log.Warn("no NICs can be made for containers: the directory cannot be made that they wait in", "error", err)
		}
	}
	if err := d.openPlane(); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		err = errors.Join(err, d.server.Close(ctx))
		d.rack.Close()
		d.engine.Stop()
		return err
	}
	return nil
}

// rackConfig is how declared NICs are made.
func (d *daemon) rackConfig() rack.Config {
	c := rack.Config{
		Engine: d.engine, NICs: d.nics, Budget: d.budget, Log: d.log, Place: d.place, Mode: d.mode, DirMode: d.dirMode, Owner: os.Geteuid(),
		Seed: guidSeed(d.place.Socket), Underlay: d.underlay, OverlayMTU: d.under.mtu, OverlayHead: d.under.head(), HostRoutes: routes.Kernel{}, Denied: d.denied, Capped: d.capped, Connected: d.connected, Claim: d.claimNIC, Changed: d.rackChanged, Bound: d.bound.of, NoInterface: d.noInterface, PlugsSoon: d.plugsSoon,
		Sockets: link.UDPOptions{NoGSO: d.under.opts.NoGSO, NoGRO: d.under.opts.NoGRO}, Windows: windows,
		Switch: d.ethernet,
	}
	if d.port == nil {
		c.HostRoutes = routes.None{}
	} else {
		c.HostAddresses = d.addresses
	}
	if d.under.mtu != 0 {
		c.OpenOverlay, c.OpenTunnel, c.TunnelHead = d.openOverlay, d.openTunnel, tunnel.Head
	}
	return c
}

// ask requests a stop; only the first request counts.
func (d *daemon) ask(why string) {
	select {
	case d.stop <- why:
	default:
	}
}

// serve runs until a signal, a tool or retirement ends it. A second signal ends it
// the hard way.
func (d *daemon) serve() error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	metered := d.meter()
	defer metered()
	served := make(chan error, 1)
	go func() { served <- d.server.Serve() }()
	d.serving.Store(true)
	working, stopWork := context.WithCancel(context.Background())
	defer stopWork()
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		d.keepInterfaces(working)
	}()
	stopKey := d.watchKey()

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
	stopWork()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	stopKey()
	// A change that is being made ends with the doors, which it may wait for.
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		d.plane.Load().Close()
	}()
	err := d.server.Close(ctx)
	select {
	case <-settled:
	case <-ctx.Done():
	}
	select {
	case <-kept: // an interface that is made while the rack closes would go for good
	case <-ctx.Done():
	}
	d.rack.Close()
	metered() // what the last sessions used
	d.engine.Stop()
	d.ethernet.Close()
	d.frames.close()
	d.rack.Disconnect()
	if d.port != nil {
		d.port.Close()
	}
	d.log.Info("stopped")
	return errors.Join(failure, err)
}

// retire ends an ephemeral daemon when nobody has used it for a while.
func (d *daemon) retire() {
	const every = 250 * time.Millisecond
	idle := time.Duration(0)
	for range time.Tick(every) {
		if idle += every; d.server.Sessions() > 0 || d.rack.Guests() > 0 {
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
