package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/platform/preflight"
)

// startTimeout bounds finding or starting a daemon. It is long, because a machine may be busy.
const startTimeout = 20 * time.Second

func runCommand(o *options) *cobra.Command {
	var quiet, sockets bool
	var nic string
	var faults []string
	c := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARGS...]",
		Short: "run a program with an RDMA device",
		Long: `Runs PROGRAM with an RDMA device called rxe0. If no daemon serves the socket, it starts one
for this user, which ends after the last program. The exit status is the program's; 127 if
there is no such program, 3 if it could not see the device.

With --nic the device is a declared NIC of a running daemon. In the host's own network only
RDMA has its address: connect by rdma_cm (ib_send_bw -R). In a container sockets have it too.

With --fault something of the program fails on purpose: packets, messages, connections or
calls. docs/reference/faults.md lists the rules.

If PROGRAM is podman or docker with run or create, the container gets the device: vrdma adds
the arguments that vrdma nic args prints. If it is bwrap, the sandbox gets the device: it often
has a /tmp of its own.`,
		Example: "  vrdma run -- ib_send_bw\n  vrdma run -- ib_send_bw 127.0.0.1\n  vrdma run --nic red/web -- ib_send_bw\n  vrdma run --fault drop,probability=1% -- ib_send_bw 127.0.0.1\n  vrdma run -- podman run IMAGE ib_send_bw",
		RunE: func(_ *cobra.Command, args []string) error {
			if err := setFaults(faults); err != nil {
				return err
			}
			if format, at := engineRun(args); at > 0 {
				if len(faults) > 0 {
					return usage("--fault is for programs of this host: in a container set VRDMA_FAULT, with --env VRDMA_FAULT=%s", faults[0])
				}
				return runEngine(o, nic, sockets, args, format, at)
			}
			path, err := checkProgram(args, quiet)
			if err != nil {
				return err
			}
			find := o.place
			if nic != "" {
				find = o.placeOfNIC
			}
			place, err := find()
			if err != nil {
				return err
			}
			reach := ensureDaemon
			if nic != "" {
				if place, err = findNIC(place, nic); err != nil {
					return err
				}
				reach = func(launch.Place) (*os.File, error) { return nil, nil }
			}
			if sockets {
				return runSockets(place, reach, path, args)
			}
			lease, err := reach(place)
			if err != nil {
				return err
			}
			if err := bequeath(lease); err != nil {
				return err
			}
			env := place.Environment(os.Environ(), "")
			err = execute(path, place.InSandbox(args, env), env)
			return &exit.Error{Status: 126, Err: fmt.Errorf("cannot execute %s: %w", path, err)}
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().BoolVar(&sockets, "sockets", false, "carry the program's TCP connections over RDMA, with rdma-core's rsockets")
	c.Flags().StringVar(&nic, "nic", "", "a declared NIC, TENANT/NAME")
	c.Flags().StringArrayVar(&faults, "fault", nil, "make something of the program fail on purpose, for example drop,probability=1%; can be given several times")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not warn about what the machine lacks")
	return c
}

// setFaults puts rules into the environment, where the library of the program finds them.
func setFaults(specs []string) error {
	if len(specs) == 0 {
		return nil
	}
	for _, spec := range specs {
		r, err := fault.Parse(spec)
		if err != nil {
			return usage("--fault %s: %v", spec, err)
		}
		if r.Action.OfNIC() {
			return usage("--fault %s: a program cannot have it, only a NIC: vrdma fault add %s", spec, spec)
		}
	}
	all := strings.Join(specs, " ")
	if len(all) >= protocol.MaxFaults {
		return usage("the faults have %d bytes together, and a program may have %d: declare a Fault for its NIC instead", len(all), protocol.MaxFaults-1)
	}
	return os.Setenv(fault.Variable, all)
}

// execute replaces this process by the program, as execvp does: the shell runs a script without #!.
func execute(path string, args, env []string) error {
	err := syscall.Exec(path, args, env)
	if errors.Is(err, syscall.ENOEXEC) {
		err = syscall.Exec(preflight.Shell, append([]string{preflight.Shell, path}, args[1:]...), env)
	}
	return err
}

// checkProgram finds the program and reports what would keep it from the device.
func checkProgram(args []string, quiet bool) (string, error) {
	if len(args) == 0 {
		return "", usage("no program given: vrdma run -- PROGRAM [ARGS...]")
	}
	path, status, err := preflight.Find(args[0])
	if err != nil {
		return "", &exit.Error{Status: status, Err: err}
	}
	findings := slices.Concat(preflight.Program(path), preflight.Environment(args), preflight.Machine("/"))
	if fatal, found := preflight.Fatal(findings); found {
		return "", lacks("%s", fatal)
	}
	if quiet {
		return path, nil
	}
	for _, finding := range findings {
		fmt.Fprintln(os.Stderr, "vrdma: warning:", finding)
	}
	return path, nil
}

// ensureDaemon makes sure that a daemon serves place.
func ensureDaemon(place launch.Place) (lease *os.File, err error) {
	// A directory that is missing may be a mistake in --socket: vrdma daemon makes one, and this command does not.
	if _, err := os.Stat(filepath.Dir(place.Socket)); err != nil {
		return nil, lacks("no daemon runs at %s, and one cannot be started there: the socket's directory: %w; have its owner start it, or choose another path with --socket", place.Socket, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	lease, daemon, err := launcher(place).Ensure(ctx)
	if err != nil {
		return nil, lacks("%w", err)
	}
	if daemon.NoDevice {
		lease.Close()
		return nil, lacks("the daemon at %s has no default NIC: name one with --nic; %w", place.Socket, absentNIC(place, "default"))
	}
	return lease, nil
}

// bequeath makes the lease survive exec, at a high descriptor number: programs expect low ones.
func bequeath(lease *os.File) error {
	if lease == nil {
		return nil
	}
	for _, lowest := range []int{960, 200, 32} {
		_, err := unix.FcntlInt(lease.Fd(), unix.F_DUPFD, lowest)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINVAL) { // EINVAL: above the limit
			return lacks("cannot keep the daemon's lease open: %w", err)
		}
	}
	return lacks("too few file descriptors: run ulimit -n 1024 first")
}
