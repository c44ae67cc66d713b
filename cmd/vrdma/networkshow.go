package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/show"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func networkCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "network",
		Short: "show the members of a virtual network",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return usage("say what: vrdma network show TENANT/NETWORK") },
	}
	c.AddCommand(networkShowCommand(o))
	return c
}

func networkShowCommand(o *options) *cobra.Command {
	var linux, static bool
	var of string
	c := &cobra.Command{
		Use:   "show TENANT/NETWORK",
		Short: "list the members of a network and their hosts",
		Long: `Lists the members of a network and their hosts. With --linux it prints commands for each NIC
on a host of type linux. They make a Linux machine with the kernel's vxlan and rxe a member. The machine then learns the other members from their packets; with --static it is
configured with all of them. Print and run the commands again after a host changed, with
--static also after a NIC changed. Only the operator sees hosts.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			k, err := objectKey(tenant.KindNetwork, args[0], of, false)
			if err != nil {
				return err
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			items, err := membersOf(place, k)
			if err != nil {
				return objectsError(place, err)
			}
			m, err := show.NewMembership(k.Name, items)
			if err != nil {
				return err
			}
			if m.Network == nil {
				return fmt.Errorf("there is no network %s that you may see", k.Path())
			}
			if linux || static {
				return m.Commands(c.OutOrStdout(), static)
			}
			return m.Print(c.OutOrStdout())
		},
	}
	c.Flags().StringVarP(&of, "tenant", "t", "", "the tenant of a name without one")
	c.Flags().BoolVar(&linux, "linux", false, "print the commands for Linux machines that are members")
	c.Flags().BoolVar(&static, "static", false, "with --linux: configure every member, so that the machine need not learn")
	return c
}

// membersOf returns a network, the NICs of its tenant, and all hosts.
func membersOf(place launch.Place, network tenant.Key) (items []control.Item, err error) {
	for _, which := range []control.Selection{
		{Kind: tenant.KindNetwork, Tenant: network.Tenant, Name: network.Name}, {Kind: tenant.KindNIC, Tenant: network.Tenant}, {Kind: tenant.KindHost},
	} {
		reply, err := control.Get(place.Socket, which)
		if err != nil {
			return nil, err
		}
		items = append(items, reply.Items...)
	}
	return items, nil
}
