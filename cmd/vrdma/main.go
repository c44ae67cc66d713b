// Command vrdma gives programs an RDMA device on machines that have none.
//
//	vrdma run -- PROGRAM     a program with a device; starts a daemon if none runs
//	vrdma daemon             the device itself, in the foreground
//	vrdma status             what it is doing
//	vrdma trace -- PROGRAM   what a program asks of it
//	vrdma cp FILE HOST:DIR   copies files over RDMA
//	vrdma apply -f FILE      declares tenants, networks, NICs and policies
//	vrdma fault add SPEC     makes NICs fail on purpose
//
// Every subcommand is one file here and only connects the packages that do the
// work. Results go to stdout, everything else to stderr; the exit status is 0 (ok),
// 1 (failed), 2 (wrong usage), 3 (the machine lacks something), and for run and
// trace the program's own.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/platform/launch"
)

// The main goroutine has the first thread to itself. The kernel delivers the process's signals to
// that thread, and a thread that a client's memory blocks (memory.Pool) would not take them.
func init() { runtime.LockOSThread() }

// usage returns an error in the command line.
func usage(format string, args ...any) error { return exit.Usage(format, args...) }

// lacks returns an error for something that the machine lacks.
func lacks(format string, args ...any) error { return exit.Lacks(format, args...) }

// options are the flags that every subcommand has.
type options struct {
	socket string
}

// place returns the place of the daemon: --socket, VRDMA_SOCKET, or the user's own.
func (o *options) place() (launch.Place, error) { return o.placeBy(launch.Default) }

// placeOfNIC returns the place of the daemon that has declared NICs: place, unless the user named none and has no daemon. Then it is
// that of root's daemon.
func (o *options) placeOfNIC() (launch.Place, error) {
	place, err := o.place()
	if err != nil || o.socket != "" || os.Getenv("VRDMA_SOCKET") != "" {
		return place, err
	}
	if _, err := os.Lstat(place.Socket); err == nil {
		return place, nil
	}
	return launch.At(launch.System)
}

// useSocket takes the socket of a configuration file, if the user has named none.
func (o *options) useSocket(socket string) {
	if o.socket == "" && os.Getenv("VRDMA_SOCKET") == "" {
		o.socket = socket
	}
}

// placeBy is place with another default.
func (o *options) placeBy(own func(getenv func(string) string, uid int, tmp, system string) (launch.Place, error)) (launch.Place, error) {
	socket := o.socket
	if socket == "" {
		socket = os.Getenv("VRDMA_SOCKET")
	}
	if socket != "" {
		place, err := launch.At(socket)
		if err != nil {
			return place, usage("%w", err)
		}
		return place, nil
	}
	place, err := own(os.Getenv, os.Getuid(), "/tmp", launch.System)
	if err != nil {
		return place, lacks("%w", err)
	}
	return place, nil
}

func rootCommand() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   "vrdma",
		Short: "RDMA for programs on machines without RDMA hardware",
		Long: `vrdma gives unmodified RDMA programs a device on machines without RDMA hardware, without
a kernel module and without root: programs on libibverbs and librdmacm (rdma_cm), perftest,
UCX and MPI, on one machine and between hosts. run --sockets carries ordinary TCP programs.

  vrdma run -- ib_write_bw               in one terminal
  vrdma run -- ib_write_bw 127.0.0.1     in another`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage("%w; see %s --help", err, c.CommandPath())
	})
	root.PersistentFlags().StringVar(&o.socket, "socket", "", "the daemon's socket (default: VRDMA_SOCKET, else this user's own)")
	root.AddCommand(criuCommand(o))
	root.AddCommand(
		applyCommand(o),
		auditCommand(o),
		benchCommand(),
		bugreportCommand(o),
		cdiCommand(o),
		cniCommand(o),
		configCommand(),
		cpCommand(o),
		daemonCommand(o),
		deleteCommand(o),
		demoCommand(o),
		describeCommand(o),
		diffCommand(o),
		doctorCommand(),
		drainCommand(o),
		loopsCommand(o),
		editCommand(o),
		eventsCommand(o),
		faultCommand(o),
		getCommand(o),
		goperfCommand(o),
		guestCommand(o),
		labCommand(o),
		manCommand(),
		netnsCommand(),
		networkCommand(o),
		nicCommand(o),
		ociHookCommand(o),
		ociRuntimeCommand(o),
		pcapCommand(o),
		policyCommand(o),
		reloadCommand(o),
		reportCommand(),
		runCommand(o),
		statusCommand(o),
		stopCommand(o),
		upgradeCommand(o),
		storeCommand(o),
		topCommand(o),
		traceCommand(o),
		usageCommand(o),
		versionCommand(),
		waitCommand(o),
	)
	completeAll(o, root)
	showUse(root)
	return root
}

// showUse makes every command print its usage line after a wrong number of arguments.
func showUse(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			err := check(c, args)
			if e := (*exit.Error)(nil); err == nil || errors.As(err, &e) {
				return err
			}
			return usage("%w: %s; see %s --help", err, c.UseLine(), c.CommandPath())
		}
	}
	for _, sub := range c.Commands() {
		showUse(sub)
	}
}

func main() { os.Exit(run(argumentsOf(os.Args))) }

func run(args []string) int {
	root := rootCommand()
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return 0
	}
	var e *exit.Error
	if !errors.As(err, &e) {
		e = &exit.Error{Status: exit.StatusFailed, Err: err}
		// Cobra has no type for these.
		if text := err.Error(); strings.HasPrefix(text, "unknown command") || strings.Contains(text, "arg(s)") {
			e.Status = exit.StatusUsage
		}
	}
	if e.Err != nil {
		fmt.Fprintln(os.Stderr, "vrdma:", e.Err)
	}
	return e.Status
}
