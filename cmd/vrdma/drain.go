package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
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
			printInterfaces(w, impactOf(s))
			return nil
		}
		if left != last {
			printImpact(w, impactOf(s))
			last = left
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d programs are left; the daemon refuses new ones until vrdma drain --off", left)
		}
	}
}

// An impact is what the end of the daemon would do to one program, or to one interface.
type impact struct {
	protocol.ProgramStatus
	// Interface: it is no program but an interface of a container, or the network card of a virtual machine.
	Interface   bool   `json:"interface,omitempty"`
	QueuePairs  int    `json:"queuePairs"`
	Connected   int    `json:"connected"` // queue pairs with a peer
	Outstanding uint64 `json:"outstanding"`
	Memory      uint64 `json:"registeredBytes"`
}

// impactOf lists the programs that the end of a daemon would hit, those with the most connections first, then interfaces.
func impactOf(s *protocol.Status) []impact {
	type who struct {
		nic string
		pid int
	}
	at := make(map[who]int)
	out := make([]impact, 0, len(s.Programs))
	for _, p := range s.Programs {
		at[who{p.NIC, p.Pid}] = len(out)
		out = append(out, impact{ProgramStatus: p})
	}
	for _, ses := range s.Sessions {
		i, ok := at[who{ses.NIC, ses.Pid}]
		if !ok {
			continue
		}
		e := &out[i]
		e.QueuePairs += len(ses.QPs)
		e.Memory += ses.MRBytes
		for _, q := range ses.QPs {
			e.Outstanding += uint64(q.Outstanding)
			if q.DestQPN != 0 {
				e.Connected++
			}
		}
	}
	slices.SortStableFunc(out, func(a, b impact) int {
		return cmp.Or(cmp.Compare(b.Connected, a.Connected), cmp.Compare(a.NIC, b.NIC), cmp.Compare(a.Pid, b.Pid))
	})
	programs := len(out)
	for _, n := range s.NICs {
		if n.RoCE != "" { // it is attached
			out = append(out, impact{ProgramStatus: protocol.ProgramStatus{NIC: n.Tenant + "/" + n.NIC, Container: n.Container}, Interface: true})
		}
	}
	slices.SortFunc(out[programs:], func(a, b impact) int { return cmp.Compare(a.NIC, b.NIC) })
	return out
}

// printImpact prints the programs and interfaces that the end of the daemon would hit.
func printImpact(w io.Writer, list []impact) {
	defer printInterfaces(w, list)
	programs := slices.DeleteFunc(slices.Clone(list), func(e impact) bool { return e.Interface })
	if len(programs) == 0 {
		fmt.Fprintln(w, "no program would be hit")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NIC\tPROGRAM\tPID\tUID\tCONTAINER\tQPS\tCONNECTED\tOUTSTANDING\tMEMORY")
	for _, e := range programs {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%d\t%d\t%d\t%s\n", e.NIC, cmp.Or(plain(e.Program), "?"), e.Pid, e.UID, cmp.Or(plain(e.Container), "-"),
			e.QueuePairs, e.Connected, e.Outstanding, bytesText(e.Memory))
	}
	t.Flush()
	fmt.Fprintf(w, "%d programs get DEVICE_FATAL when the daemon ends\n", len(programs))
}

// printInterfaces prints the interfaces that lose their network when the daemon ends.
func printInterfaces(w io.Writer, list []impact) {
	interfaces := slices.DeleteFunc(slices.Clone(list), func(e impact) bool { return !e.Interface })
	if len(interfaces) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NIC\tINTERFACE OF")
	for _, e := range interfaces {
		fmt.Fprintf(t, "%s\t%s\n", e.NIC, cmp.Or(plain(e.Container), "?"))
	}
	t.Flush()
	fmt.Fprintf(w, "%d interfaces have no network while no daemon runs\n", len(interfaces))
}

// showImpact answers vrdma status --impact.
func showImpact(w io.Writer, s *protocol.Status, asJSON bool) error {
	if s.Control == "" {
		return lacks("only the daemon's user and root may list the affected programs")
	}
	list := impactOf(s)
	if !asJSON {
		printImpact(w, list)
		return nil
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(list)
}
