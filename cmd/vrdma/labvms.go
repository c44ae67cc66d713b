package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/instrument/course"
	"vrdma.dev/vrdma/internal/instrument/rxeguest"
)

func labVMsCommand() *cobra.Command {
	var source string
	c := &cobra.Command{
		Use:   "vms",
		Short: "boot a server and a client with Linux' own rxe, ready to log in",
		Long: `Boots two virtual machines with a wire between them: server, 10.77.0.1, and client, 10.77.0.2.
Each has the kernel's rxe0, rdma-core's programs, perftest, and the C programs of the lab. vrdma
lab console logs in. The machines are emulated, need no root, and end with Ctrl-C.

The first time it makes the machines' image, which downloads a Debian kernel. It needs the
repository, QEMU, and the packages of tools/install-deps test.`,
		Example: "  vrdma lab vms",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := needTools(append(rxeguest.Tools, "go", "gcc", "make")...); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			image, err := rxeguest.Image(ctx, source)
			if err != nil {
				return err
			}
			dir, err := os.MkdirTemp("/tmp", "vrdma-lab") // a short path: it holds sockets
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			m := &course.Guests{Image: image, Dir: dir}
			build := exec.CommandContext(ctx, "make", "-s", "-C", filepath.Join(source, "examples", "lab-c"), "OUT="+dir)
			if out, err := build.CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w\n%s", build, err, out)
			}
			for _, name := range []string{"kv_server", "kv_client", "file_server", "file_client"} {
				m.Programs = append(m.Programs, filepath.Join(dir, name))
			}
			w := c.OutOrStdout()
			err = m.Run(ctx, func(name, address, console string) {
				fmt.Fprintf(w, "%s  %s  vrdma lab console %s\n", name, address, console)
			})
			if errors.Is(err, ctx.Err()) {
				return nil
			}
			return err
		},
	}
	c.Flags().StringVar(&source, "source", ".", "the repository, which builds the machines")
	return c
}

func labConsoleCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "console PATH",
		Short: "log in to a machine of vrdma lab vms",
		Long:  "Connects this terminal to a machine's serial console. Ctrl-] leaves it; the machine keeps running.",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return course.Console(args[0], os.Stdin, c.OutOrStdout())
		},
	}
}
