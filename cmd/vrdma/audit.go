package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/show"
	"vrdma.dev/vrdma/internal/daemon"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/control"
)

func auditCommand(o *options) *cobra.Command {
	var file, output string
	var last int
	c := &cobra.Command{
		Use:   "audit [TENANT[/NIC]]",
		Short: "show the audit log: who changed what, and what was revoked",
		Long: `Prints the audit log: changes of objects and who made them, and connections that a change revoked.
The log is a file that survives the daemon, and is readable for the daemon's user only. Its path is that of the running daemon, of --file, or
beside the default store.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return usage("-o %s: choose text or json", output)
			}
			if file == "" {
				place, err := o.place()
				if err != nil {
					return err
				}
				if s, err := protocol.QueryStatus(place.Socket); err == nil && s.Audit != "" {
					file = s.Audit
				} else {
					file = daemon.AuditPath("", place)
				}
			}
			var list []events.Event
			err := control.ReadAudit(file, func(e *events.Event) error {
				if len(args) == 1 && !concerns(e, args[0]) {
					return nil
				}
				if list = append(list, *e); last > 0 && len(list) > last {
					list = list[1:]
				}
				return nil
			})
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				return lacks("%w", err)
			}
			if err != nil {
				return err
			}
			for i := range list {
				text := show.EventLine(&list[i])
				if output == "json" {
					line, err := json.Marshal(list[i])
					if err != nil {
						return err
					}
					text = string(line)
				}
				fmt.Fprintln(c.OutOrStdout(), text)
			}
			return nil
		},
	}
	c.Flags().StringVar(&file, "file", "", "the audit log (default: the daemon's)")
	c.Flags().IntVarP(&last, "last", "n", 0, "number of entries (default: all)")
	c.Flags().StringVarP(&output, "output", "o", "text", "text, or json: one entry per line")
	return c
}

// concerns reports whether an event is about a tenant or one of its objects.
func concerns(e *events.Event, what string) bool {
	of, name, isNIC := strings.Cut(what, "/")
	if isNIC {
		return e.Object.Tenant == of && e.Object.Name == name
	}
	return e.Object.Tenant == of || e.Object.Name == of
}
