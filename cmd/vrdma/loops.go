package main

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/show"
)

func loopsCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "loops",
		Short: "show the daemon's loops, or move a program to another loop",
		Long: `Lists the loops of the daemon: the open devices that each serves, and for how long it has worked for
them. A loop is a thread that moves the data of some programs, on this host and to other hosts. Loop 0
also runs commands. vrdma daemon --loops sets their number.`,
		Example: "  vrdma loops\n  vrdma loops move 4242 1",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			s, err := protocol.QueryStatus(place.Socket)
			if err != nil {
				return unanswered(place, err)
			}
			if s.Control == "" {
				return lacks("only the daemon's user and root see its loops")
			}
			return printLoops(c.OutOrStdout(), s, time.Now())
		},
	}
	c.AddCommand(&cobra.Command{
		Use:   "move PID LOOP",
		Short: "move a program, and those that it is connected to, to another loop",
		Long: `Moves the open devices of a program, and of the programs that it is connected to, to another loop
while their traffic goes on. The daemon moves them by itself when one loop is much busier than
another. Programs with datagrams, with peers in a virtual network or a network namespace, or with
faults stay on loop 0.`,
		Example: "  vrdma loops move 4242 1",
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			pid, err := strconv.Atoi(args[0])
			if err != nil || pid < 1 {
				return usage("%s: want the number of a process", args[0])
			}
			loop, err := strconv.Atoi(args[1])
			if err != nil || loop < 0 {
				return usage("%s: want the number of a loop, see vrdma loops", args[1])
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			if err := protocol.MoveProcess(place.Socket, pid, loop); err != nil {
				return unanswered(place, err)
			}
			return nil
		},
	})
	return c
}

// printLoops prints the loops for people.
func printLoops(w io.Writer, s *protocol.Status, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LOOP\tUSED\tSESSIONS\tBUSY\tSHARE SINCE START")
	for _, l := range s.Loops {
		used := "no"
		if l.Used {
			used = "yes"
		}
		fmt.Fprintf(t, "%d\t%s\t%d\t%s\t%.1f %%\n", l.Number, used, l.Sessions, l.Busy.Round(time.Millisecond), 100*l.Busy.Seconds()/max(now.Sub(s.Started).Seconds(), 0.001))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, ses := range s.Sessions {
		fmt.Fprintf(w, "loop %d  pid %d  %s\n", ses.Loop, ses.Pid, show.Plain(ses.Program))
	}
	fmt.Fprintf(w, "%d sessions have moved\n", s.Moves)
	return nil
}
