package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/show"
)

func drainCommand(o *options) *cobra.Command {
	var off bool
	var deadline time.Duration
	c := &cobra.Command{
		Use:   "drain [--deadline TIME | --off]",
		Short: "refuse new programs and wait until those that run have ended",
		Long: `Makes the daemon refuse new programs, prints the programs that still use it when their number
changes, and returns when none is left. With --deadline it gives up after that time, lists who is
left, and exits 1. The daemon goes on draining, also after Ctrl-C: --off ends it. It does not stop
the daemon; vrdma stop does.

It also lists interfaces of containers and network cards of virtual machines, and does not wait for
them: they lose their network when the daemon ends, and get it back from the next daemon.`,
		Example: "  vrdma drain --deadline 10m && systemctl restart vrdma\n  vrdma drain --off",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			if err := protocol.DrainDaemon(place.Socket, off); err != nil {
				return unanswered(place, err)
			}
			if off {
				return nil
			}
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, deadline)
				defer cancel()
			}
			return awaitEmpty(ctx, c.OutOrStdout(), func() (*protocol.Status, error) {
				s, err := protocol.QueryStatus(place.Socket)
				if err != nil {
					return nil, unanswered(place, err)
				}
				return s, nil
			})
		},
	}
	c.Flags().DurationVar(&deadline, "deadline", 0, "give up after this time, such as 10m (default: wait)")
	c.Flags().BoolVar(&off, "off", false, "admit new programs again")
	return c
}

// drainInterval is how often drain asks who is left.
const drainInterval = 200 * time.Millisecond

// awaitEmpty waits until the daemon has no programs.
func awaitEmpty(ctx context.Context, w io.Writer, query func() (*protocol.Status, error)) error {
	tick := time.NewTicker(drainInterval)
	defer tick.Stop()
	last := -1
	for {
		s, err := query()
		if err != nil {
			return err
		}
		left := len(s.Programs)
		if left == 0 {
			fmt.Fprintln(w, "no program is left")
			show.PrintInterfaces(w, show.ImpactOf(s))
			return nil
		}
		if left != last {
			show.PrintImpact(w, show.ImpactOf(s))
			last = left
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d programs are left; the daemon refuses new ones until vrdma drain --off", left)
		}
	}
}

// showImpact answers vrdma status --impact.
func showImpact(w io.Writer, s *protocol.Status, asJSON bool) error {
	if s.Control == "" {
		return lacks("only the daemon's user and root may list the affected programs")
	}
	list := show.ImpactOf(s)
	if !asJSON {
		show.PrintImpact(w, list)
		return nil
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(list)
}
