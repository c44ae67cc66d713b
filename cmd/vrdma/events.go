package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func eventsCommand(o *options) *cobra.Command {
	var follow bool
	var last int
	var output string
	c := &cobra.Command{
		Use:   "events [-f] [TENANT[/NIC]]",
		Short: "show events: changes, connections refused and revoked, quotas reached",
		Long: `Prints events since the daemon's start, as far as it keeps them: changed objects and who
changed them, connections refused or revoked and the rule, quotas reached, NICs that a cap
delays. With -f it continues with new events. The daemon's user and root see all events,
administrators those of their tenant, other users those of NICs that they may open.`,
		Example: "  vrdma events -f\n  vrdma events red/web -n 20",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return usage("-o %s: choose text or json", output)
			}
			var which control.Selection
			if len(args) == 1 {
				which = selectionOf(args[0])
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			stream, err := control.Events(place.Socket, which, last, follow)
			if err != nil {
				return unanswered(place, err)
			}
			defer stream.Close()
			return printEvents(os.Stdout, stream, output == "json")
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new events")
	c.Flags().IntVarP(&last, "last", "n", 0, "number of past events (default: all that the daemon keeps)")
	c.Flags().StringVarP(&output, "output", "o", "text", "text, or json: one event per line")
	return c
}

// selectionOf selects all objects of a tenant, or one NIC.
func selectionOf(arg string) control.Selection {
	of, name, isNIC := strings.Cut(arg, "/")
	if isNIC {
		return control.Selection{Kind: tenant.KindNIC, Tenant: of, Name: name}
	}
	return control.Selection{Tenant: of}
}

// printEvents prints a stream to its end.
func printEvents(w io.Writer, stream *control.Stream, asJSON bool) error {
	for {
		reply, err := stream.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range reply.Events {
			if asJSON {
				text, err := json.Marshal(e)
				if err != nil {
					return err
				}
				fmt.Fprintln(w, string(text))
				continue
			}
			fmt.Fprintln(w, eventLine(&e))
		}
	}
}

// eventLine formats an event for people, without control characters from clients.
func eventLine(e *events.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %-12s", e.Time.Local().Format(time.DateTime), e.Verb)
	if e.Object != (tenant.Key{}) {
		fmt.Fprintf(&b, " %v", e.Object)
	}
	if e.Peer != "" {
		fmt.Fprintf(&b, " (peer %s)", plain(e.Peer))
	}
	if e.By != (events.Actor{}) {
		fmt.Fprintf(&b, " by %s", actorText(&e.By))
	}
	if e.Reason != "" {
		fmt.Fprintf(&b, ": %s", plain(e.Reason))
	}
	if e.Missed > 0 {
		fmt.Fprintf(&b, " (%d more before it)", e.Missed)
	}
	return b.String()
}

func actorText(a *events.Actor) string {
	var list []string
	if a.UID >= 0 {
		list = append(list, fmt.Sprintf("uid %d", a.UID))
	}
	if a.Pid > 0 {
		list = append(list, fmt.Sprintf("pid %d", a.Pid))
	}
	name := plain(a.Program)
	if name == "" {
		name = "a program"
	}
	if len(list) == 0 {
		return name
	}
	return fmt.Sprintf("%s (%s)", name, strings.Join(list, ", "))
}

// plain returns a text on one line without control characters.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return '?'
		}
		return r
	}, s)
}
