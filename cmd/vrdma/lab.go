package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/examples"
	"vrdma.dev/vrdma/examples/kv/lab"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/verbs"
)

func labCommand(o *options) *cobra.Command {
	l := &lab.Options{}
	c := &cobra.Command{
		Use:   "lab [flags]",
		Short: "measure a key-value store: RPC, one-sided reads, TCP",
		Long: `Starts a small key-value store in its own process. Clients read and update it in three ways:
RPC (messages over RDMA), one-sided (RDMA READ of the server's memory) and TCP. Prints
operations per second, latencies, and the processor time of server, clients and daemon.
docs/tutorials/lab.md is the course around it. With --server the store is on another host,
where vrdma lab serve runs.`,
		Example: `  vrdma lab
  vrdma lab --mixes A,B,C --values 8,128,4096 --clients 8 --skew zipfian
  vrdma lab --mixes reads --ways read --values 4096 --writers 2
  vrdma lab serve --listen 10.0.0.1:7471
  vrdma lab --server 10.0.0.1:7471`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := l.Check(); err != nil {
				return usage("%w", err)
			}
			var progress io.Writer
			if isTerminal(os.Stderr) {
				progress = os.Stderr
			}
			return withDevice(o, func(ctx context.Context, socket string) error {
				self, err := os.Executable()
				if err != nil {
					return err
				}
				l.Device, l.Start = verbs.Options{Socket: socket}, []string{self, "lab", "serve", "--socket", socket}
				return l.Run(ctx, c.OutOrStdout(), progress)
			})
		},
	}
	addFlags(c, l.Flags)
	c.AddCommand(labServeCommand(o), labExerciseCommand(), labVMsCommand(), labConsoleCommand())
	return c
}

func labExerciseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "exercise DIRECTORY",
		Short: "write the C programs of the lab without the solution",
		Long: `Writes the C programs of the lab, and a README.md with the task, into a new directory. The body
of one_sided() in kv_client.c is missing: the student reads the table by RDMA READ.`,
		Example: "  vrdma lab exercise ~/lab",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			files, err := examples.Exercise()
			if err != nil {
				return err
			}
			if err := os.Mkdir(args[0], 0o777); err != nil { // it overwrites nothing
				return err
			}
			for name, text := range files {
				if err := os.WriteFile(filepath.Join(args[0], name), []byte(text), 0o666); err != nil {
					return err
				}
			}
			fmt.Fprintf(c.OutOrStdout(), "the task is in %s\n", filepath.Join(args[0], "README.md"))
			return nil
		},
	}
}

func labServeCommand(o *options) *cobra.Command {
	s := &lab.Service{}
	c := &cobra.Command{
		Use:   "serve [flags]",
		Short: "run the key-value store of vrdma lab",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withDevice(o, func(ctx context.Context, socket string) error {
				s.Device = verbs.Options{Socket: socket}
				if st, err := protocol.QueryStatus(socket); err == nil {
					s.Daemon = st.Pid
				}
				return s.Serve(ctx, c.OutOrStdout())
			})
		},
	}
	addFlags(c, s.Flags)
	return c
}

// addFlags adds flags that another package defines.
func addFlags(c *cobra.Command, define func(*flag.FlagSet)) {
	f := flag.NewFlagSet(c.Name(), flag.ContinueOnError)
	define(f)
	c.Flags().AddGoFlagSet(f)
}

// withDevice runs f with the daemon's socket until a signal. It starts a daemon if none runs.
func withDevice(o *options, f func(context.Context, string) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	place, err := o.place()
	if err != nil {
		return err
	}
	lease, err := ensureDaemon(place)
	if err != nil {
		return err
	}
	defer lease.Close() // a daemon that was started ends after its last lease
	return f(ctx, place.Socket)
}
