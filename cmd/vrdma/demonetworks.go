package main

import (
	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/instrument/demo"
)

func demoNetworksCommand() *cobra.Command {
	var inside bool
	c := &cobra.Command{
		Use:   "networks",
		Short: "show two tenants with equal addresses on two hosts, and a rule that changes under traffic",
		Long: `Creates two hosts in network namespaces on this machine, with a link between them, etcd on
the first and a daemon on each. Declares two tenants with the same addresses, runs rping
between the hosts for both, and ends one tenant's connection with a policy. Removes everything
at the end. It needs no root, and these programs: etcd (Debian: etcd-server), ip, nsenter,
unshare, rping.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := needTools("ip", "nsenter", "unshare", "rping"); err != nil {
				return err
			}
			return demo.Networks(c.OutOrStdout(), inside)
		},
	}
	c.Flags().BoolVar(&inside, "inside", false, "the process is in namespaces of its own")
	c.Flags().MarkHidden("inside") // fails only for a flag that is not there
	return c
}
