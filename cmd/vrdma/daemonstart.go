package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"vrdma/internal/budget"
	"vrdma/internal/launch"
	"vrdma/internal/link"
	"vrdma/internal/nic"
	"vrdma/internal/rack"
	"vrdma/internal/vnic"
)

// How a daemon starts:
//
//	flags and file ──▶ setup ──▶ place claimed ──▶ store, port, meter ──▶ device ──▶ served to the end

// A setup is what flags and file say, checked.
type setup struct {
	log       *slog.Logger
	config    config
	place     launch.Place
	mode, dir fs.FileMode // of the socket and its directories
	device    nic.Config  // the default NIC
	under     underlay
	host      string
	machine   budget.Machine
}

// setup reads flags and file.
func (f *daemonFlags) setup(o *options) (s setup, err error) {
	if s.log, err = f.logger(); err != nil {
		return s, err
	}
	if s.config, err = readConfig(f.config); err != nil {
		return s, usage("%w", err)
	}
	if o.socket == "" {
		o.socket = s.config.Socket
	}
	own := launch.ForDaemon
	if f.ephemeral {
		own = launch.Default
	}
	if s.place, err = o.placeBy(own); err != nil {
		return s, err
	}
	mode, err := strconv.ParseUint(f.mode, 8, 9)
	if err != nil {
		return s, usage("--mode %s: want octal permissions such as 0600", f.mode)
	}
	s.mode, s.dir = fs.FileMode(mode), directoryMode(fs.FileMode(mode))
	if s.place.Socket == launch.System && s.dir != 0o700 { // the store may have made it, for root alone
		if err := os.Chmod(filepath.Dir(s.place.Socket), s.dir); err != nil {
			return s, lacks("%w", err)
		}
	}
	if s.device, err = f.device(s.config); err != nil {
		return s, err
	}
	if s.under, err = f.underlay(s.config); err != nil {
		return s, err
	}
	if s.host, err = f.host(); err != nil {
		return s, err
	}
	if s.machine = budget.ThisMachine(); s.machine.Files < budget.FewestFiles {
		return s, lacks("too few file descriptors for a daemon (ulimit -n is %d): it needs at least %d; run ulimit -n 1024 first", s.machine.Files, budget.FewestFiles)
	}
	return s, nil
}

// claim makes the place the daemon's own.
func (s *setup) claim(ephemeral bool) (*launch.Claim, error) {
	if err := os.MkdirAll(filepath.Dir(s.place.Socket), s.dir); err != nil {
		return nil, lacks("cannot make the socket's directory: %w; choose another place with --socket", err)
	}
	claim, err := s.place.Claim(ephemeral)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return nil, lacks("%w; choose another place with --socket", err)
	}
	return claim, err
}

// serveDaemon claims the place, builds the device and serves it to the end.
func serveDaemon(o *options, f *daemonFlags) error {
	s, err := f.setup(o)
	if err != nil {
		return err
	}
	claim, err := s.claim(f.ephemeral)
	if err != nil {
		return err
	}
	defer claim.Release()
	if err := installLibraries(s.place, s.dir); err != nil {
		return err
	}
	warnNoExec(s.place, s.log)
	key, err := f.tunnel(s.config, s.place)
	if err != nil {
		return err
	}
	d := &daemon{
		tunnel: key, place: s.place, claim: claim, log: s.log, budget: budget.New(s.machine.Limits()), nics: vnic.NewTable(), recognise: !f.strangers,
		mode: s.mode, dirMode: s.dir, under: s.under, host: s.host, ephemeral: f.ephemeral, racked: make(chan struct{}, 1), plugs: make(chan struct{}, 1), stop: make(chan string, 1),
	}
	if err := d.openStore(f); err != nil {
		return err
	}
	defer d.store.Close()
	closeDevice, err := d.openDevice(f, &s)
	if err != nil {
		return err
	}
	defer closeDevice()
	end, err := d.observe(f, s.device)
	if err != nil {
		return err
	}
	defer end()
	launch.Ready(nil)
	if f.ephemeral {
		go d.retire()
	}
	return d.serve()
}

// openDevice opens the way to other hosts, what keeps the usage, and the device. closed is called when
// the daemon ends.
func (d *daemon) openDevice(f *daemonFlags, s *setup) (closed func(), err error) {
	if f.network && !f.ephemeral && (!f.noDefault || len(f.addr)+len(s.config.Addr) > 0) {
		if err := d.connect(&s.device, link.UDPOptions{NoGSO: f.noGSO, NoGRO: f.noGRO}); err != nil {
			return nil, err
		}
	}
	if f.noDefault {
		s.device.GIDs = nil
	}
	used, err := f.meter(d.place, d.log)
	if err != nil {
		return nil, err
	}
	if d.hook, err = hookProgram(f.hook); err != nil {
		used.Close()
		return nil, err
	}
	cdi := f.cdiDirectory(d.place)
	files, err := d.takeCDI(cdi, f.cdi != "")
	if err != nil {
		used.Close()
		return nil, err
	}
	if err := d.open(s.device, used); err != nil {
		if files != nil {
			err = errors.Join(err, files.Close())
		}
		used.Close()
		return nil, err
	}
	kept := d.keepCDI(cdi, files)
	return func() {
		kept()
		used.Close()
	}, nil
}

// observe serves metrics and writes a profile, if these are wanted, until end is called.
func (d *daemon) observe(f *daemonFlags, device nic.Config) (end func(), err error) {
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
	if f.metrics != "" {
		m, err := d.serveMetrics(f.metrics, f.perNIC)
		if err != nil {
			return nil, err
		}
		ends = append(ends, func() { m.Close() })
		d.log.Info("serving metrics", "address", m.Addr().String())
	}
	if len(f.guests) > 0 {
		closed, err := d.openGuests(f.guests)
		if err != nil {
			return nil, err
		}
		ends = append(ends, closed)
	}
	d.log.Info("serving", "version", version, "socket", d.place.Socket, "device", rack.DeviceName, "gids", gidTexts(device.GIDs), "ephemeral", f.ephemeral)
	if f.profile != "" {
		file, err := os.Create(f.profile)
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
