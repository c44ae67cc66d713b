package main

import (
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/show"
	"vrdma.dev/vrdma/internal/tenancy/control"
)

func describeCommand(o *options) *cobra.Command {
	var of string
	c := &cobra.Command{
		Use:   "describe KIND NAME",
		Short: "show a declared object with its state, its users and its last events",
		Long: `Shows a tenant, network, nic or policy: its declaration, what was allocated, its state, its
users, and its last events.

  vrdma describe nic red/web
  vrdma describe policy no-batch-to-store -t red`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			kind, err := kindArg(args[0])
			if err != nil {
				return err
			}
			key, err := objectKey(kind, args[1], of, false)
			if err != nil {
				return err
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			reply, err := control.Describe(place.Socket, key)
			if err != nil {
				return objectsError(place, err)
			}
			return show.Description(c.OutOrStdout(), reply, time.Now())
		},
	}
	c.Flags().StringVarP(&of, "tenant", "t", "", "the tenant of a name without one")
	return c
}
