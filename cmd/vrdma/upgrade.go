package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/platform/launch"
)

func upgradeCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "upgrade [PROGRAM]",
		Short: "replace the running daemon by another version, without an interruption for programs",
		Long: `Makes the daemon start PROGRAM (default: this program) as the next daemon, with the same command line and
environment, and hand everything over to it: programs, their connections, queues and registered memory continue. If the
next daemon fails, the running one continues, and the command says why.

Programs notice a pause of some milliseconds. Connections of vrdma top, trace and pcap end.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			program, err := successor(args)
			if err != nil {
				return err
			}
			before, err := protocol.QueryStatus(place.Socket)
			if err != nil {
				if absent(err) {
					return lacks("no daemon serves %s: start one with vrdma daemon", place.Socket)
				}
				return improper(place, err)
			}
			return replace(c.OutOrStdout(), place, before, program)
		},
	}
}

// replace makes the daemon with status before hand over to a program, and prints the result.
func replace(w io.Writer, place launch.Place, before *protocol.Status, program string) error {
	u, err := protocol.RequestUpgrade(place.Socket, program)
	if err != nil {
		return fmt.Errorf("the daemon (pid %d, version %s) continues: %w", before.Pid, before.Version, err)
	}
	now, err := protocol.QueryStatus(place.Socket)
	if err != nil {
		return improper(place, err)
	}
	fmt.Fprintf(w, "upgraded: pid %d, version %s; before: pid %d, version %s; programs paused for %v\n",
		now.Pid, now.Version, before.Pid, before.Version, u.Blackout.Round(10*time.Microsecond))
	return nil
}

// successor is the absolute path of the next daemon's program.
func successor(args []string) (string, error) {
	if len(args) == 0 {
		return os.Executable()
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return "", usage("%s is not a program that can be started: %w", args[0], err)
	}
	return filepath.Abs(path)
}
