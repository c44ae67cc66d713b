package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/show"
	"vrdma.dev/vrdma/internal/tenancy/control"
)

// waitStep is the time between two questions.
const waitStep = 200 * time.Millisecond

func waitCommand(o *options) *cobra.Command {
	var of, condition string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "wait KIND NAME --for STATE",
		Short: "wait until a declared object has a state",
		Long: `Waits until a NIC or a host is ready, or has another state that vrdma get shows. It can also
wait until an object exists, or until it is deleted.

  vrdma wait nic red/web --for ready
  vrdma wait host node-b --for gone --timeout 2m
  vrdma wait nic red/web --for delete`,
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
			for end := time.Now().Add(timeout); ; time.Sleep(waitStep) {
				reply, err := control.Get(place.Socket, control.Selection{Kind: key.Kind, Tenant: key.Tenant, Name: key.Name})
				if err != nil {
					return objectsError(place, err)
				}
				now := stateOf(reply.Items)
				if now == condition || condition == "create" && now != "delete" {
					fmt.Fprintf(c.OutOrStdout(), "%s %s\n", show.Key(key), condition)
					return nil
				}
				if time.Now().After(end) {
					return fmt.Errorf("after %v %v is not %s: it is %s", timeout, key, condition, now)
				}
			}
		},
	}
	c.Flags().StringVarP(&of, "tenant", "t", "", "the tenant of a name without one")
	c.Flags().StringVar(&condition, "for", "ready", "create, delete, or a state: ready, failed, elsewhere, gone, unknown, unwatched")
	c.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait")
	return c
}

// stateOf is the state of the only item; delete: there is none.
func stateOf(items []control.Item) string {
	switch {
	case len(items) != 1:
		return "delete"
	case items[0].Status == nil:
		return "ready" // a tenant, network or policy has no state
	}
	return string(items[0].Status.State)
}
