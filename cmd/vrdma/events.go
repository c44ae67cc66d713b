package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/show"
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
			fmt.Fprintln(w, show.EventLine(&e))
		}
	}
}
