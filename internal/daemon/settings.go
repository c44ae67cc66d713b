package daemon

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/provision"
)

// settings are the options and the file, checked.
type settings struct {
	*Options
	flags         Options // without the file's values
	log           *slog.Logger
	level         *slog.LevelVar // of log
	place         launch.Place
	mode, dirMode fs.FileMode // of the socket and its directories
	device        nic.Config  // the default NIC; without GIDs there is none
	under         underlay
	ports         *roce.Ports // from which the host's own network is served; nil: any
	host          string      // this host's name
	seed          []byte      // see guidSeed
	from          *successor  // nil: the daemon begins anew
	machine       budget.Machine
	service       service
	loops         int
	autoLoops     bool
}

// check reads the file and checks the options.
func (o *Options) check() (s *settings, err error) {
	s = &settings{Options: o}
	s.flags = *o
	if err := o.readFile(); err != nil {
		return nil, exit.Usage("%w", err)
	}
	if s.log, s.level, err = o.logger(os.Stderr); err != nil {
		return nil, err
	}
	if s.place, err = o.Place(o.Socket); err != nil {
		return nil, err
	}
	s.seed = guidSeed(s.place.Socket)
	mode, err := strconv.ParseUint(o.Mode, 8, 9)
	if err != nil {
		return nil, exit.Usage("--mode %s: want octal permissions such as 0600", o.Mode)
	}
	s.mode, s.dirMode = fs.FileMode(mode), launch.DirectoryMode(fs.FileMode(mode))
	if s.place.Socket == launch.System && s.dirMode != 0o700 { // the store may have made the directory for root alone
		if err := os.Chmod(filepath.Dir(s.place.Socket), s.dirMode); err != nil {
			return nil, exit.Lacks("%w", err)
		}
	}
	if err := s.setDevice(); err != nil {
		return nil, err
	}
	if err := s.setUnderlay(); err != nil {
		return nil, err
	}
	if s.host, err = hostName(o.HostName); err != nil {
		return nil, err
	}
	if s.loops, s.autoLoops, err = o.countLoops(); err != nil {
		return nil, err
	}
	if s.machine = budget.ThisMachine(); s.machine.Files < budget.FewestFiles {
		return nil, exit.Lacks("too few file descriptors for a daemon (ulimit -n is %d): it needs at least %d; run ulimit -n 1024 first", s.machine.Files, budget.FewestFiles)
	}
	return s, nil
}

// setDevice sets the device of the default NIC.
func (s *settings) setDevice() error {
	all, err := machineAddresses()
	if err != nil {
		return exit.Lacks("%w", err)
	}
	addresses := defaultOrder(all)
	if list := s.Addr; len(list) > 0 {
		if addresses, err = parseAddresses(list, all); err != nil {
			return exit.Usage("%w", err)
		}
	}
	s.device = nic.Config{NodeGUID: randomGUID(), Limits: provision.SetLimits(nic.DefaultLimits, s.Limits)}
	for _, a := range addresses {
		s.device.GIDs = append(s.device.GIDs, nic.GIDEntry{GID: a.ip.As16(), NetDev: a.netdev})
	}
	return nil
}

// served reports whether the daemon serves other hosts on the host's own network.
func (s *settings) served() bool {
	return s.Network && !s.Ephemeral && (!s.NoDefault || len(s.Addr) > 0)
}

// filesMode is the mode of the directory with the files for programs: those who may use the socket read them. The service manager
// chooses the mode of its socket.
func (s *settings) filesMode() fs.FileMode {
	if s.service.socket != nil || s.from.kept(s.place.Socket) {
		if info, err := os.Stat(s.place.Socket); err == nil {
			return launch.DirectoryMode(info.Mode().Perm())
		}
	}
	return s.dirMode
}

// claim takes the place for this daemon.
func (s *settings) claim() (_ *launch.Claim, err error) {
	if s.Takeover {
		if s.from, err = s.succeed(); err != nil {
			return nil, err
		}
		s.under.opts.Inherited = s.from.sockets
		return s.from.claim(s.place)
	}
	if err := os.MkdirAll(filepath.Dir(s.place.Socket), s.dirMode); err != nil {
		return nil, exit.Lacks("cannot make the socket's directory: %w; choose another path with --socket", err)
	}
	take := func() (*launch.Claim, error) { return s.place.Claim(s.Ephemeral) }
	if s.service.socket != nil {
		if err := s.service.checkSocket(s.place.Socket); err != nil {
			return nil, err
		}
		take = s.place.ClaimAround
	}
	claim, err := take()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return nil, exit.Lacks("%w; choose another path with --socket", err)
	}
	return claim, err
}
