package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/instrument/demo"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

func demoCommand(o *options) *cobra.Command {
	var rounds int
	c := &cobra.Command{
		Use:    "demo",
		Short:  "compare RDMA through vrdma with TCP on this machine",
		Hidden: true, // a tool of the repository, see make demo
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := needTools("ibv_devinfo", "ib_write_bw", "qperf", "rping", "ip", "nsenter"); err != nil {
				return err
			}
			ordinary, name := testbed.OrdinaryUser()
			return inLab(ordinary, func(ctx context.Context, lab *testbed.Lab) error {
				speed := demo.Speed{
					Lab: lab, Out: c.OutOrStdout(), Progress: os.Stderr, Rounds: rounds,
					Colour: isTerminal(os.Stdout), As: name,
				}
				return speed.Run(ctx)
			})
		},
	}
	c.Flags().IntVar(&rounds, "rounds", 3, "how often every tool is run")
	c.AddCommand(demoNetworksCommand(), demoMigrateCommand(o))
	return c
}
