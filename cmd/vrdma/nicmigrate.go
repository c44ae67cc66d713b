package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// withinFlag bounds the time of a part of a move.
func withinFlag(c *cobra.Command, within *time.Duration, usual, what string) {
	c.Flags().DurationVar(within, "within", 0, "how long "+what+" may take (default "+usual+")")
}

// migrate does a part of a NIC's move with its programs.
func (o *options) migrate(move, nic string, sealed []byte, within time.Duration) (m protocol.Migration, k tenant.Key, err error) {
	k, err = objectKey(tenant.KindNIC, strings.Replace(nic, ".", "/", 1), "", false)
	if err != nil {
		return m, k, err
	}
	place, err := o.place()
	if err != nil {
		return m, k, err
	}
	m, err = protocol.MigrateNIC(place.Socket, move, k.Path(), sealed, within)
	return m, k, err
}

func nicLeaveCommand(o *options) *cobra.Command {
	var within time.Duration
	c := &cobra.Command{
		Use:   "leave TENANT/NAME FILE",
		Short: "make the programs of a NIC let go of this host, and save the NIC's state",
		Long: `The first part of a NIC's move to another host with its programs: docs/how-to/move-a-program.md.
The programs let go of the daemon, and wait for one that has the NIC's state. Peers wait, too.
FILE gets the state: queue pairs, keys, connections. It is authenticated, not encrypted.

The move goes on with vrdma nic arrive on the other host, or ends with vrdma nic stay on this
one. Without either the connections are lost after ten minutes.`,
		Example: "  vrdma nic leave red/web web.state     # on node-a\n  vrdma nic arrive red/web web.state    # on node-b",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if info, err := os.Lstat(args[1]); err == nil && !info.Mode().IsRegular() {
				return usage("%s is no file: name one that may be replaced", args[1])
			}
			var m protocol.Migration
			var k tenant.Key
			left := false
			err := writeWhole(args[1], 0o600, func(w io.Writer) (err error) {
				if m, k, err = o.migrate(protocol.MoveLeave, args[0], nil, within); err != nil {
					return err
				}
				left = true
				_, err = w.Write(m.State)
				return err
			})
			if left && err != nil {
				_, _, back := o.migrate(protocol.MoveStay, args[0], nil, 0)
				if back == nil {
					return fmt.Errorf("the state cannot be saved, and the NIC stays here: %w", err)
				}
				return fmt.Errorf("the state cannot be saved (%w), and the programs do not continue: %w", err, back)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "NIC %s: %d programs with %d queue pairs have let go\n", k.Path(), m.Programs, m.QPs)
			return nil
		},
	}
	withinFlag(c, &within, "10s", "the programs")
	return c
}

func nicStayCommand(o *options) *cobra.Command {
	var within time.Duration
	c := &cobra.Command{
		Use:   "stay TENANT/NAME",
		Short: "give up a move: the programs of a NIC continue on this host",
		Long: `Gives up a move that vrdma nic leave has begun. The programs of the NIC continue on this host, and so do
their connections. The saved state is of no use any more. It fails if the NIC is on another host by now.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			_, k, err := o.migrate(protocol.MoveStay, args[0], nil, within)
			if err == nil {
				fmt.Fprintf(c.OutOrStdout(), "NIC %s stays\n", k.Path())
			}
			return err
		},
	}
	withinFlag(c, &within, "1m", "the programs")
	return c
}

func nicArriveCommand(o *options) *cobra.Command {
	var within time.Duration
	c := &cobra.Command{
		Use:   "arrive TENANT/NAME FILE",
		Short: "continue the programs of a NIC that has left another host",
		Long: `The second part of a NIC's move to another host with its programs. It waits until all programs of the
NIC have come to this host's daemon. Then the NIC is on this host, and its connections continue. If
that fails, nothing has changed: try again, or run vrdma nic stay on the other host.`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			sealed, err := os.ReadFile(args[1])
			if err != nil {
				return err
			}
			m, k, err := o.migrate(protocol.MoveArrive, args[0], sealed, within)
			if err == nil {
				fmt.Fprintf(c.OutOrStdout(), "NIC %s: %d programs with %d queue pairs continue here\n", k.Path(), m.Programs, m.QPs)
			}
			return err
		},
	}
	withinFlag(c, &within, "1m", "the programs")
	return c
}
